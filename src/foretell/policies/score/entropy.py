"""Entropy remasking (Dream): the positions of highest entropy stay masked."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Entropy:
    def __call__(self, beliefs: Beliefs, state: StateView) -> Tensor:  # noqa: ARG002
        return -beliefs.entropy
