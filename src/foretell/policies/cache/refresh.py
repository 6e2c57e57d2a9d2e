"""When the cache of a row has to be recomputed."""

from __future__ import annotations

from torch import Tensor

from foretell.loop.view import StateView


def needs_refresh(state: StateView, every: int) -> Tensor:
    """Return rows with an empty cache, or whose last full pass is at least `every` steps old (0: at any age). [B]"""
    empty = state.ledger.block < 0
    return empty | (state.step - state.ledger.step >= every) if every else empty
