"""Commit once the answer has not changed for a few steps and has low entropy (DiffusionGemma's rule)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import whole, within
from foretell.loop.protocols import Beliefs, Verdict
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Stable:
    """Settle once `steps` consecutive steps left the region's draft unchanged and its mean entropy is below `entropy`.

    An answer that is found in the text counts as changed when it moves, grows or shrinks.
    With an infinite entropy only the draft decides: SchED's second condition.
    """

    steps: int = 1
    entropy: float = 0.005

    def __post_init__(self) -> None:
        whole("stable's steps", self.steps, 1)
        within("stable's entropy", self.entropy, 0.0)

    def reads(self, state: StateView) -> Tensor:
        return state.answer

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        age = torch.where(beliefs.tokens == state.draft, state.unchanged + 1, 0)
        still = ((age >= self.steps) | ~state.answer).all(dim=1)
        still &= state.answer_age >= self.steps
        return Verdict(state.answer.any(dim=1) & still & self._sure(beliefs, state))

    def _sure(self, beliefs: Beliefs, state: StateView) -> Tensor:
        if self.entropy == torch.inf:
            return torch.ones_like(state.done)
        size = state.answer.sum(dim=1).clamp(min=1)
        mean = torch.where(state.answer, beliefs.entropy, 0).sum(dim=1) / size
        return mean < self.entropy
