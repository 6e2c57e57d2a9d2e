"""Random remasking: fill masks in an order that does not depend on the model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.loop.noise import draw_grid
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView

_STREAM = 3


@dataclass(frozen=True, slots=True)
class Random:
    def __call__(self, beliefs: Beliefs, state: StateView) -> Tensor:  # noqa: ARG002
        return draw_grid(state, _STREAM)
