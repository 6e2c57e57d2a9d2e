"""The part of the window behind the current block, which windows thin out."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.loop.view import StateView


def distance_after_block(state: StateView) -> Tensor:
    """How far each position is behind the last of the current block; 0 and below inside and in front of it. [B, N]"""
    last = torch.where(state.in_block, state.positions, 0).amax(dim=1, keepdim=True)
    return state.positions - last
