"""The whole text is the answer: every position that the request did not pin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.state import DecodeState


@dataclass(frozen=True, slots=True)
class Whole:
    sought: ClassVar[bool] = False

    def __call__(self, state: DecodeState) -> Tensor:
        return ~state.pinned
