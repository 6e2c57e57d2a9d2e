"""Fill every mask whose entropy is low enough, and always the best one (MED)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.errors import within
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView
from foretell.policies.transfer.ranks import at_least_one, fillable


@dataclass(frozen=True, slots=True)
class EntropyThreshold:
    """Fill masks of entropy < `entropy`, in nats; if there are none, the best by score."""

    parallel: ClassVar[bool] = True
    entropy: float = 0.2

    def __post_init__(self) -> None:
        within("entropy_threshold's entropy", self.entropy, 0.0)

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
        return at_least_one(fillable(scores, state) & (beliefs.entropy < self.entropy), scores, state)
