"""Commit once the answer has not changed for a few steps and has low entropy (DiffusionGemma's rule)."""

from __future__ import annotations

from collections.abc import Hashable
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
        return Verdict(self.settles(self.score(beliefs, state), state))

    @property
    def scored_by(self) -> Hashable:
        return Stable, self.steps, self.entropy == torch.inf

    def score(self, beliefs: Beliefs, state: StateView) -> Tensor:
        """Return the region's mean entropy, infinite where the draft has changed. [B]"""
        age = torch.where(beliefs.tokens == state.draft, state.unchanged + 1, 0)
        still = ((age >= self.steps) | ~state.answer).all(dim=1)
        still &= (state.answer_age >= self.steps) & state.answer.any(dim=1)
        return torch.where(still, self._mean_entropy(beliefs, state), torch.inf)

    def settles(self, score: Tensor, state: StateView) -> Tensor:  # noqa: ARG002
        return score < self.entropy

    def _mean_entropy(self, beliefs: Beliefs, state: StateView) -> Tensor:
        size = state.answer.sum(dim=1).clamp(min=1)
        if self.entropy == torch.inf:
            return torch.zeros_like(size, dtype=torch.float)  # any entropy is low enough, so none is read
        return torch.where(state.answer, beliefs.entropy, 0).sum(dim=1) / size
