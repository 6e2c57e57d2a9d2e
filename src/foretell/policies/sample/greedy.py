"""Propose the most likely token."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.loop.protocols import Logits
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Greedy:
    def __call__(self, logits: Logits, state: StateView, row: Tensor, position: Tensor) -> Tensor:  # noqa: ARG002
        return logits.best
