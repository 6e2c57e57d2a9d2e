"""The answer is the whole text: every position that the request did not pin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Whole:
    sought: ClassVar[bool] = False

    def __call__(self, state: StateView) -> Tensor:
        return ~state.pinned
