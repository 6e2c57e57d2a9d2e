"""Random remasking: fill masks in an order that has nothing to do with the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.noise import uniform
from foretell.protocols import Beliefs
from foretell.state import DecodeState

_STREAM = 3


@dataclass(frozen=True, slots=True)
class Random:
    def __call__(self, beliefs: Beliefs, state: DecodeState) -> Tensor:  # noqa: ARG002
        row = torch.arange(len(state.step), device=state.step.device).repeat_interleave(state.length)
        draws = uniform(state, row, state.positions.repeat(len(state.step)), _STREAM)
        return draws.view_as(state.draft)
