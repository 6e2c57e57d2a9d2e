"""Commit once the answer in the draft has not changed for a few steps (answer persistence)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import whole
from foretell.loop.protocols import Beliefs, Verdict
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Persistent:
    """Settle once `steps` consecutive steps left the answer unchanged.

    The answer is the region's draft up to and including its first end of text; what follows may still change.
    Without an end it is the whole region, which `stable` always compares. An answer that is found in the
    text counts as changed when it moves, grows or shrinks.
    """

    steps: int = 8

    def __post_init__(self) -> None:
        whole("persistent's steps", self.steps, 1)

    def reads(self, state: StateView) -> Tensor:
        return state.answer

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        least = self.score(beliefs, state)
        bar = torch.full_like(least, self.steps).float()
        return Verdict(self.settles(least, state), least.float(), bar, "unchanged")

    @property
    def scored_by(self) -> Hashable:
        return Persistent

    def score(self, beliefs: Beliefs, state: StateView) -> Tensor:
        """Return for how many steps the answer has been unchanged. [B]"""
        ends = state.answer & torch.isin(beliefs.tokens, beliefs.tokens.new_tensor(state.end_ids))
        later = (ends.cumsum(dim=1) - ends.long()) > 0
        read = state.answer & ~later
        age = torch.where(beliefs.tokens == state.draft, state.unchanged + 1, 0)
        least = age.masked_fill(~read, torch.iinfo(age.dtype).max).amin(dim=1)
        return torch.where(state.answer.any(dim=1), torch.minimum(least, state.answer_age), 0)

    def settles(self, score: Tensor, state: StateView) -> Tensor:  # noqa: ARG002
        return score >= self.steps
