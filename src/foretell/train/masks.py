"""Choose the tokens of a response to hide in training: uniform noise, and states that occur in decoding.

Uniform noise alone teaches copying, not arithmetic: a result is repeated as the next operand and as the answer, and
one of its copies is nearly always visible. So a share of the rows is masked in an order that a decoder could have
followed, block by block, and often exactly where the next token must be computed.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEVEL, BLOCK, NEVER = 1e3, 1e6, np.inf  # each is larger than any sum of the smaller ones
JITTER = (1.0, 6.0, 200.0)  # how far a row's order deviates from left to right, in positions
FAR = 0.1  # the least weight of a hidden token
HARD = 2  # tokens from this level on must be computed, not copied


class Masking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How hidden sets are drawn."""

    decoding: float = 0.5  # share of rows in a decoder's order
    aimed: float = 0.6  # share of those that are cut at a token that must be computed
    focus: float = 0.0  # in cut rows, tokens over which the loss weight fades; 0: equal weights

    def draw(self, rng: Generator, level: Ints, free: Bools, block: int) -> tuple[Bools, Floats]:
        """Draw hidden positions [b, N] of responses with `level` [b, N], and the weight of each in its row.

        Only `free` [b, N] positions may be hidden.
        """
        rows, _ = level.shape
        keys = np.where(rng.random((rows, 1)) < self.decoding, draw_order(rng, level, block), rng.random(level.shape))
        keys = np.where(free, keys, -NEVER)
        hidden = select_latest(keys, draw_counts(rng, free.sum(1)))
        ordered = keys.max(1) > 1  # uniform keys stay below 1
        aim = (rng.random(rows) < self.aimed) & ordered
        hidden = np.where(aim[:, None], cut_at_hard_token(rng, keys, level, free, hidden), hidden)
        weight = weigh_by_nearness(keys, hidden, self.focus) if self.focus else np.ones(level.shape)
        return hidden, np.where(ordered[:, None], weight, 1.0)


def draw_counts(rng: Generator, sizes: Ints) -> Ints:
    """Draw how many tokens to hide per row: t ~ U(0, 1), stratified over the b rows, at least one token."""
    rows = len(sizes)
    t = (rng.permutation(rows) + rng.random(rows)) / rows
    return np.ceil(t * sizes).astype(np.int64).clip(1, sizes)


def select_latest(keys: Floats, count: Ints) -> Bools:
    """Select the `count` [b] positions with the highest keys [b, N]."""
    rank = np.argsort(np.argsort(-keys, axis=1), axis=1)
    return rank < count[:, None]


def weigh_by_nearness(keys: Floats, hidden: Bools, focus: float) -> Floats:
    """Return weights that fall in the order in which a decoder fills tokens: late tokens are not yet predictable."""
    ahead = np.argsort(np.argsort(keys, axis=1), axis=1) - np.sum(~hidden, axis=1, keepdims=True)
    fading: Floats = np.exp(-ahead.clip(0) / focus)
    return FAR + (1 - FAR) * fading


def draw_order(rng: Generator, level: Ints, block: int) -> Floats:
    """Draw when each position is filled: by block, in some rows by level, then roughly left to right."""
    rows, size = level.shape
    position = np.arange(size)
    jitter = rng.choice(JITTER, size=(rows, 1)) * rng.random((rows, size))
    by_level = np.where(rng.random((rows, 1)) < 0.6, level * LEVEL, 0.0)
    return 2.0 + position // block * BLOCK + by_level + position + jitter


def cut_at_hard_token(rng: Generator, keys: Floats, level: Ints, free: Bools, fallback: Bools) -> Bools:
    """Hide a token that must be computed and all tokens that a decoder would fill after it.

    Half of the cuts start at any such token, half at the first one of a level, so that the whole level is hidden.
    """
    hard = free & (level >= HARD)
    chosen = np.argmax(np.where(hard, rng.random(level.shape), -1.0), axis=1)  # [b]
    whole = np.equal(level, level[np.arange(len(level)), chosen][:, None])
    first = np.argmin(np.where(whole & free, keys, NEVER), axis=1)
    start = np.where(rng.random(len(level)) < 0.5, chosen, first)
    cut = free & np.greater_equal(keys, keys[np.arange(len(level)), start][:, None])
    return np.where(np.any(hard, axis=1, keepdims=True), cut, fallback)
