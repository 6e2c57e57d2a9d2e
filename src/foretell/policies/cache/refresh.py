"""When a row's cache is due to be filled anew."""

from __future__ import annotations

from torch import Tensor

from foretell.loop.view import StateView


def due(state: StateView, every: int) -> Tensor:
    """Rows of which nothing is held yet, or whose last full pass is `every` steps old (0: however old). [B]"""
    empty = state.ledger.block < 0
    return empty | (state.step - state.ledger.step >= every) if every else empty
