"""Asking a region where the answer is, and leaving out what decoding cannot change."""

from __future__ import annotations

from torch import Tensor

from foretell.protocols import Region
from foretell.state import DecodeState


def locate_answer(region: Region, state: DecodeState) -> Tensor:
    """Return the positions of the answer that were masked at the start. [B, N]

    Pinned tokens inside a region, such as the givens of a Sudoku board, cannot change, so no rule counts them.
    """
    return region(state) & ~state.pinned
