"""Fill as many masks as their confidences allow: filling more at once requires higher confidences (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.errors import within
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView
from foretell.policies.transfer.ranks import at_least_one, fillable, first, order_by


@dataclass(frozen=True, slots=True)
class Factor:
    """Fill the largest n with (n + 1)(1 - c_n) < `factor`, for confidences c in falling order; at least one.

    `last`: fill a block's last mask with the others even if it fails this test, as the released code does.
    """

    parallel: ClassVar[bool] = True
    factor: float = 1.0
    last: bool = False

    def __post_init__(self) -> None:
        within("factor's factor", self.factor, 0.0)

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
        among = fillable(scores, state)
        order = order_by(beliefs.confidence, scores, among)
        doubt = 1 - beliefs.confidence.gather(1, order)
        n = state.positions + 1
        holds = ((n + 1) * doubt < self.factor) & among.gather(1, order)
        if self.last:
            size = among.sum(dim=1, keepdim=True)
            holds |= (n == size) & (holds.sum(dim=1, keepdim=True).clamp(min=1) >= size - 1)  # one is always filled
        return at_least_one(first(order, holds), scores, state)
