"""Whatever is still masked is the answer (SchED's region)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.state import DecodeState


@dataclass(frozen=True, slots=True)
class Masked:
    def __call__(self, state: DecodeState) -> Tensor:
        return state.masked
