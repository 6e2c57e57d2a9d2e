"""The uniform schedule of LLaDA: spread the masks of a block evenly over its remaining steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView
from foretell.policies.transfer.ranks import best, required_count


@dataclass(frozen=True, slots=True)
class Quota:
    """With fewer steps than masks this is the static truncated budget: a step fills several masks.

    `idle` reproduces the reference code, which spends a block's unused steps on passes that fill nothing; only
    those after the last mask are left out, because they cannot change anything.
    """

    parallel: ClassVar[bool] = False
    idle: bool = False

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:  # noqa: ARG002
        quota = required_count(state)
        if self.idle:
            quota = torch.where(state.step < state.due(state.block - 1), 0, quota)
        return best(scores, quota)
