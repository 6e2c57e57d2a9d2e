"""Every mask whose best token beats the runner-up by enough, the less of it the more neighbours are known (JoT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from foretell.errors import RecipeError, whole, within
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView
from foretell.policies.transfer.ranks import at_least_one, fillable

LARGEST = 1e6  # of a ratio: finite, so that a share of it is
FURTHEST = 1024  # each step outwards is a sum over the window


@dataclass(frozen=True, slots=True)
class JoT:
    """p1 / p2 >= high - (high - low) k, with k the weighted share of neighbours that are known.

    k sums `gamma` ** d over the known positions at distance d = 1 .. `distance` on both sides, as a share of what the
    sum would be if all of them were known. The prompt is known; padding and what lies beyond the window are not.
    The ratio is the exponential of the gap, so the comparison is one of logits. 30 is LLaDA's `high`, 90 Dream's.
    """

    parallel: ClassVar[bool] = True
    high: float = 30.0
    low: float = 1.0
    gamma: float = 0.5
    distance: int = 8

    def __post_init__(self) -> None:
        within("jot's high", self.high, 1.0, LARGEST)
        within("jot's low", self.low, 1.0, LARGEST)
        within("jot's gamma", self.gamma, 0.0, 1.0)
        whole("jot's distance", self.distance, 1, FURTHEST)
        if self.low > self.high:
            raise RecipeError(f"jot needs low <= high, got low={self.low!r}, high={self.high!r}")

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
        bar = self.high - (self.high - self.low) * self._known(state, beliefs.gap.dtype)
        return at_least_one(fillable(scores, state) & (beliefs.gap >= bar.log()), scores, state)

    def _known(self, state: StateView, dtype: torch.dtype) -> Tensor:
        """k. [B, N]"""
        known = F.pad(state.valid & (state.canvas != state.mask_id), (self.distance, self.distance)).to(dtype)
        start = state.prompt_length + self.distance
        weights = [self.gamma ** (d - 1) for d in range(1, self.distance + 1)]  # a common factor changes nothing
        near = torch.zeros_like(known[:, : state.length])
        for d, weight in enumerate(weights, 1):
            left, right = (known[:, at : at + state.length] for at in (start - d, start + d))
            near += weight * (left + right)
        return near / (2 * sum(weights))
