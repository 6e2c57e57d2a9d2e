"""Commit, then verify: tokens that the model finds unlikely in the committed text are masked and filled again."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.errors import whole, within
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Recheck:
    """Run up to `passes` passes. Each fills what the previous one masked and masks tokens less likely than `below`.

    The last pass masks nothing, so a single pass would do nothing. `answer`: whether the answer region is checked too.
    """

    passes: int = 2
    below: float = 0.5
    answer: bool = True

    def __post_init__(self) -> None:
        whole("recheck's passes", self.passes, 2)
        within("recheck's below", self.below, 0.0, 1.0)

    def __call__(self, beliefs: Beliefs, state: StateView) -> Tensor:
        doubted = beliefs.confidence < self.below
        return doubted if self.answer else doubted & ~state.answer
