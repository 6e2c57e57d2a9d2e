"""Dream's schedule: fill a share 1 - s/t of the remaining masks, for t falling linearly from 1 to `eps`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretell.errors import within
from foretell.loop.noise import draw_grid
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView
from foretell.policies.transfer.ranks import best

_STREAM = 6


@dataclass(frozen=True, slots=True)
class Timesteps:
    """In every block t runs from 1 to `eps` over the block's steps; Dream's own loop has a single block.

    The share is rounded down, so early steps may fill nothing, and a block's last step takes what is left.
    `independent`: each mask is filled with this share as its probability, ignoring its score (Dream's `alg=origin`).
    """

    parallel: ClassVar[bool] = False
    eps: float = 1e-3
    independent: bool = False

    def __post_init__(self) -> None:
        within("timesteps' eps", self.eps, 0.0, 1.0)

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:  # noqa: ARG002
        block = state.block
        start, end = state.due(block - 1), state.due(block)
        steps = (end - start).clamp(min=1)
        index = torch.minimum((state.step - start).clamp(min=0), steps - 1)
        t, s = (1 - (1 - self.eps) * at / steps for at in (index, index + 1))
        share = torch.where(index + 1 == steps, 1, 1 - s / t)
        if self.independent:
            return state.eligible & (draw_grid(state, _STREAM) < share[:, None])
        return best(scores, (state.eligible.sum(dim=1) * share).long())
