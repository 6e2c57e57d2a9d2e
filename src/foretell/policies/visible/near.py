"""Suffix pruning as in Streaming-dLLM: keep only the nearest masks after the current block, and the last one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.errors import whole
from foretell.loop.view import StateView
from foretell.policies.visible.suffix import distance_after_block


@dataclass(frozen=True, slots=True)
class Near:
    """Keep `suffix` positions after the block, and the window's last, which shows how long the text may become."""

    suffix: int = 32

    def __post_init__(self) -> None:
        whole("near's suffix", self.suffix, 0)

    def __call__(self, state: StateView) -> Tensor:
        return (distance_after_block(state) <= self.suffix) | (state.positions == state.length - 1)
