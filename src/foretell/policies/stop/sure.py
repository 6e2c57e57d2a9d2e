"""Commit once the answer's mean entropy is low enough (answer entropy, as in No Compute Left Behind)."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from foretell.errors import one_of, within
from foretell.loop.protocols import Beliefs, Verdict
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Sure:
    """Settle once the mean entropy of the answer region is below `entropy`, in nats. An empty region never settles.

    With `entropy=0` nothing settles. `over`: all positions of the region, or only its masks; once no mask is left,
    nothing can change the answer any more and it is settled.
    The value shown is a certainty, exp(-mean entropy), which rises to the bar as a gap does; 1 is complete certainty.
    """

    entropy: float = 0.1
    over: Literal["all", "masked"] = "all"

    def __post_init__(self) -> None:
        within("sure's entropy", self.entropy, 0.0)
        one_of("sure's over", self.over, ("all", "masked"))

    def reads(self, state: StateView) -> Tensor:
        return state.answer & state.masked if self.over == "masked" else state.answer

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        mean = self.score(beliefs, state)
        bar = torch.full_like(mean, math.exp(-self.entropy))
        return Verdict(self.settles(mean, state), (-mean).exp(), bar, "certainty")

    @property
    def scored_by(self) -> Hashable:
        return Sure, self.over

    def score(self, beliefs: Beliefs, state: StateView) -> Tensor:
        """Return the region's mean entropy. [B]"""
        read = self.reads(state)
        mean = torch.where(read, beliefs.entropy, 0).sum(dim=1) / read.sum(dim=1).clamp(min=1)
        mean = mean.clamp(min=0)  # rounding may make the sum negative
        return torch.where(state.answer.any(dim=1), mean, torch.inf)

    def settles(self, score: Tensor, state: StateView) -> Tensor:  # noqa: ARG002
        return score < self.entropy
