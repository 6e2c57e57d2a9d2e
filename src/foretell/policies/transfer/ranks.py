"""The order in which masks would be filled."""

from __future__ import annotations

import torch
from torch import Tensor


def best(scores: Tensor, count: Tensor) -> Tensor:
    """True on the `count` [B] highest scores of each row [B, N]; of equal scores the leftmost first."""
    rank = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return torch.as_tensor(rank < count[:, None])
