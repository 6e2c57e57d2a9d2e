"""The part of the window after the current block, of which visible policies keep only some positions."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.loop.view import StateView


def distance_after_block(state: StateView) -> Tensor:
    """Return the distance of each position after the current block's end; 0 or less inside and before it. [B, N]"""
    last = torch.where(state.in_block, state.positions, 0).amax(dim=1, keepdim=True)
    return state.positions - last
