"""Randomness as a pure function of (row seed, step, position), so that batching and order never change a draw."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.loop.view import StateView

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, the odd number nearest to 2^64 / phi, as a signed integer
_MIX = (-4658895280553007687, -7723592293110705685)  # 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB (SplitMix64)


def draw_uniform(state: StateView, row: Tensor, position: Tensor, stream: int) -> Tensor:
    """Return one draw [n] in (0, 1) for each `position` [n] of the state's rows `row` [n].

    Policies that draw at the same position use different streams, so that their draws are independent.
    """
    return to_unit(_key(state, row, position, stream))


def draw_grid(state: StateView, stream: int) -> Tensor:
    """Return one draw [B, N] in (0, 1) per position, new ones at every step."""
    row = state.rows.index.repeat_interleave(state.length)
    return draw_uniform(state, row, state.positions.repeat(len(state.rows.index)), stream).view_as(state.draft)


def draw_many(state: StateView, row: Tensor, position: Tensor, stream: int, count: int) -> Tensor:
    """Return `count` draws [n, count] per position, e.g. one for every token of the vocabulary."""
    lanes = torch.arange(count, device=row.device)
    return to_unit(scramble(_key(state, row, position, stream)[:, None] + lanes * _GOLDEN))


def draw_lasting(state: StateView, stream: int) -> Tensor:
    """Return one draw [B, N] in (0, 1) per position, the same at every step."""
    key = scramble(state.seed * _GOLDEN + stream)[:, None]
    return to_unit(scramble(key + state.positions * _GOLDEN))


def _key(state: StateView, row: Tensor, position: Tensor, stream: int) -> Tensor:
    key = scramble(state.seed[row] * _GOLDEN + stream)
    key = scramble(key + state.step[row] * _GOLDEN)
    return scramble(key + position * _GOLDEN)


def scramble(code: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser to int64 codes. Overflow wraps, as intended, in the same way on every device."""
    code = (code ^ _shift(code, 30)) * _MIX[0]
    code = (code ^ _shift(code, 27)) * _MIX[1]
    return code ^ _shift(code, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift copies the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def to_unit(code: Tensor) -> Tensor:
    """Return float64 numbers in (0, 1) from the upper bits of scrambled codes."""
    return (_shift(code, 11).double() + 0.5) * 2.0**-53
