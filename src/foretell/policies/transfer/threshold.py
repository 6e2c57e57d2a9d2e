"""Fill every mask that the model is sure enough of, and always the best one (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from foretell.errors import one_of, within
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView
from foretell.policies.transfer.ranks import at_least_one, fillable


@dataclass(frozen=True, slots=True)
class Threshold:
    """Fill masks of confidence >= `value`; if there are none, the best by score.

    `relax` lowers the bar as the block fills, to value (1 - relax (1 - share of the block that is masked))
    (Streaming-dLLM, with 0.3); pinned positions do not count.
    `by`: whether the model's confidence or the recipe's score is compared (the released code compares its score).
    """

    parallel: ClassVar[bool] = True
    value: float = 0.9
    relax: float = 0.0
    by: Literal["confidence", "score"] = "confidence"

    def __post_init__(self) -> None:
        within("threshold's value", self.value, 0.0, 1.0)
        within("threshold's relax", self.relax, 0.0, 1.0)
        one_of("threshold's by", self.by, ("confidence", "score"))

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
        confidence = scores if self.by == "score" else beliefs.confidence
        block = (state.in_block & ~state.pinned).sum(dim=1).clamp(min=1)
        masked = state.eligible.sum(dim=1).to(confidence.dtype) / block
        bar = self.value * (1 - self.relax * (1 - masked))
        return at_least_one(fillable(scores, state) & (confidence >= bar[:, None]), scores, state)
