"""Propose the most likely token."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.protocols import Logits
from foretell.state import DecodeState


@dataclass(frozen=True, slots=True)
class Greedy:
    def __call__(self, logits: Logits, state: DecodeState, row: Tensor, position: Tensor) -> Tensor:  # noqa: ARG002
        return logits.best
