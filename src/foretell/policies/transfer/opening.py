"""On entering a block, fill its first mask and nothing else (Fast-dLLM's cache for Dream)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.loop.protocols import Beliefs, Transfer
from foretell.loop.view import StateView
from foretell.policies.transfer.threshold import Threshold


@dataclass(frozen=True, slots=True)
class Opening:
    """Fill the first mask of a block in which nothing is filled yet; after that, what `transfer` fills."""

    transfer: Transfer = Threshold()

    @property
    def parallel(self) -> bool:
        return self.transfer.parallel

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
        masks = state.eligible
        untouched = (masks == (state.in_block & ~state.pinned)).all(dim=1, keepdim=True)
        return torch.where(untouched, masks & (masks.cumsum(dim=1) == 1), self.transfer(scores, beliefs, state))
