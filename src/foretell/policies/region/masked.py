"""Whatever is still masked is the answer (SchED's region)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.state import DecodeState


@dataclass(frozen=True, slots=True)
class Masked:
    sought: ClassVar[bool] = False

    def __call__(self, state: DecodeState) -> Tensor:
        return state.masked
