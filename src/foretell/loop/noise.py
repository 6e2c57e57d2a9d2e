"""Randomness as a pure function of (row seed, step, position), so that batching and order never change a draw."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.loop.view import StateView

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, the odd number nearest to 2^64 / phi, as a signed integer
_MIX = (-4658895280553007687, -7723592293110705685)  # 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB (SplitMix64)


def uniform(state: StateView, row: Tensor, position: Tensor, stream: int) -> Tensor:
    """One draw [n] in (0, 1) for each `position` [n] of the state's rows `row` [n].

    `stream` keeps apart the draws that different policies make at the same place.
    """
    return unit(_key(state, row, position, stream))


def uniform_grid(state: StateView, stream: int) -> Tensor:
    """One draw [B, N] in (0, 1) for each position, new ones at every step."""
    row = state.rows.index.repeat_interleave(state.length)
    return uniform(state, row, state.positions.repeat(len(state.rows.index)), stream).view_as(state.draft)


def uniforms(state: StateView, row: Tensor, position: Tensor, stream: int, count: int) -> Tensor:
    """`count` draws [n, count] at each place, e.g. one for every word of the vocabulary."""
    lanes = torch.arange(count, device=row.device)
    return unit(scrambled(_key(state, row, position, stream)[:, None] + lanes * _GOLDEN))


def lasting(state: StateView, stream: int) -> Tensor:
    """One draw [B, N] in (0, 1) for each position, the same at every step."""
    key = scrambled(state.seed * _GOLDEN + stream)[:, None]
    return unit(scrambled(key + state.positions * _GOLDEN))


def _key(state: StateView, row: Tensor, position: Tensor, stream: int) -> Tensor:
    key = scrambled(state.seed[row] * _GOLDEN + stream)
    key = scrambled(key + state.step[row] * _GOLDEN)
    return scrambled(key + position * _GOLDEN)


def scrambled(code: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 codes; overflow wraps, which is what it wants, the same on every device."""
    code = (code ^ _shift(code, 30)) * _MIX[0]
    code = (code ^ _shift(code, 27)) * _MIX[1]
    return code ^ _shift(code, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical right shift; torch's own copies the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def unit(code: Tensor) -> Tensor:
    """Float64 in (0, 1) from the upper bits of scrambled codes."""
    return (_shift(code, 11).double() + 0.5) * 2.0**-53
