"""An answer region at a fixed place: the one that the request declares, or an offset and a length in every window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.errors import whole
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Fixed:
    """Without a length, the region that the request's layout declares; it is empty if none is declared."""

    sought: ClassVar[bool] = False

    offset: int = 0
    length: int = 0

    def __post_init__(self) -> None:
        whole("the region's offset", self.offset, 0)
        whole("the region's length", self.length, 0)

    def __call__(self, state: StateView) -> Tensor:
        if self.length == 0:
            return state.declared
        inside = (state.positions >= self.offset) & (state.positions < self.offset + self.length)
        return inside.expand_as(state.declared)
