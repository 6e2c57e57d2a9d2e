"""Random remasking: fill masks in an order that has nothing to do with the model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.loop.noise import uniform_grid
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView

_STREAM = 3


@dataclass(frozen=True, slots=True)
class Random:
    def __call__(self, beliefs: Beliefs, state: StateView) -> Tensor:  # noqa: ARG002
        return uniform_grid(state, _STREAM)
