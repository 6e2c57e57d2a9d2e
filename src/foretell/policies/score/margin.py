"""Top-k margin remasking: positions with a close runner-up stay masked."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Margin:
    def __call__(self, beliefs: Beliefs, state: StateView) -> Tensor:  # noqa: ARG002
        return beliefs.margin
