"""Fill every mask whose best token is clearly more likely than the second; known neighbours lower the bar (JoT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from foretell.errors import RecipeError, show, whole, within
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView
from foretell.policies.transfer.ranks import at_least_one, fillable

LARGEST = 1e6  # the largest ratio: finite, so that a share of it is finite too
FURTHEST = 1024  # the largest distance: each unit costs a sum over the window


@dataclass(frozen=True, slots=True)
class JoT:
    """Fill masks with p1 / p2 >= high - (high - low) k, where k is the weighted share of neighbours that are known.

    k sums `gamma` ** d over the known positions at distance d = 1 .. `distance` on both sides, divided by
    the sum if all of them were known. The prompt is known; padding and what lies outside the window are not.
    The ratio is the exponential of the gap, so logits are compared. `high` is 30 for LLaDA and 90 for Dream.
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
            raise RecipeError(f"jot needs low <= high, got low={show(self.low)}, high={show(self.high)}")

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
        bar = self.high - (self.high - self.low) * self._known_share(state, beliefs.gap.dtype)
        return at_least_one(fillable(scores, state) & (beliefs.gap >= bar.log()), scores, state)

    def _known_share(self, state: StateView, dtype: torch.dtype) -> Tensor:
        """Return k. [B, N]"""
        known = F.pad(state.valid & (state.canvas != state.mask_id), (self.distance, self.distance)).to(dtype)
        start = state.prompt_length + self.distance
        weights = [self.gamma ** (d - 1) for d in range(1, self.distance + 1)]  # a common factor changes nothing
        near = torch.zeros_like(known[:, : state.length])
        for d, weight in enumerate(weights, 1):
            left, right = (known[:, at : at + state.length] for at in (start - d, start + d))
            near += weight * (left + right)
        return near / (2 * sum(weights))
