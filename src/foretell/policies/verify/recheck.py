"""Commit, then verify: what the model finds unlikely in the text that it committed to is masked and filled again."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.errors import whole, within
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Recheck:
    """Up to `passes` more passes, each filling what the one before it masked, and masking what is less likely than
    `below`.

    The last pass masks nothing, so one pass alone would do nothing. `answer`: whether the answer region is doubted too.
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
