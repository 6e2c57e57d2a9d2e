"""The answer is every position that is still masked (SchED's region)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Masked:
    sought: ClassVar[bool] = False

    def __call__(self, state: StateView) -> Tensor:
        return state.masked
