"""Suffix pruning as in DPad: masks after the current block are kept at random, with fewer at greater distances."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import whole, within
from foretell.loop.noise import draw_lasting
from foretell.loop.view import StateView
from foretell.policies.visible.suffix import distance_after_block

_STREAM = 4


@dataclass(frozen=True, slots=True)
class Decayed:
    """Keep a position at distance d with probability exp(-(steepness d / reach)^2 / 2), and none beyond `reach`.

    The draw depends only on the seed and the position: a dropped position returns only when the block gets nearer.
    """

    reach: int = 256
    steepness: float = 3.0

    def __post_init__(self) -> None:
        whole("decayed's reach", self.reach, 1)
        within("decayed's steepness", self.steepness, 0.0)

    def __call__(self, state: StateView) -> Tensor:
        distance = distance_after_block(state)
        odds = torch.exp(-0.5 * (self.steepness * distance.clamp(min=0) / self.reach) ** 2)
        return (distance <= 0) | ((draw_lasting(state, _STREAM) < odds) & (distance <= self.reach))
