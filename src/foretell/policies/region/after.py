"""The answer follows a pinned suffix prompt such as "The answer is"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretell.errors import whole
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class After:
    """`length` positions after the last pinned token (0: all of them), leaving out the first `skip`.

    The released code skips the space between "is" and the number. A row without pinned tokens has no region.
    """

    sought: ClassVar[bool] = False

    length: int = 0
    skip: int = 0

    def __post_init__(self) -> None:
        whole("the region's length", self.length, 0)
        whole("the region's skip", self.skip, 0)

    def __call__(self, state: StateView) -> Tensor:
        last = torch.where(state.pinned, state.positions, -1).amax(dim=1, keepdim=True)
        first = last + 1 + self.skip
        inside = (last >= 0) & (state.positions >= first)
        return inside & (state.positions < first + self.length) if self.length else inside
