"""Which tokens of a response are hidden in training: uniform noise, and states that a decoder really meets.

Uniform noise alone teaches copying, not arithmetic: a result stands again as the next operand and as the answer, and
one of its copies is nearly always in sight. So a share of the rows is masked in an order that a decoder could have
followed, block by block, and often exactly where the next token has to be worked out.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEVEL, BLOCK, NEVER = 1e3, 1e6, np.inf  # each outweighs any sum of the ones before
JITTER = (1.0, 6.0, 200.0)  # how far a row's order strays from left to right, in positions
FAR = 0.1  # the least weight of a hidden token
HARD = 2  # tokens from this level on must be worked out


class Masking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How hidden sets are drawn."""

    decoding: float = 0.5  # share of rows in a decoder's order
    aimed: float = 0.6  # share of those that are cut where something must be worked out
    focus: float = 0.0  # in those, how many tokens ahead the loss looks before it fades; 0 looks at all alike

    def draw(self, rng: Generator, level: Ints, free: Bools, block: int) -> tuple[Bools, Floats]:
        """Hidden positions [b, N] of responses with `level` [b, N], and the weight of each in its row.

        Only `free` [b, N] positions may be hidden.
        """
        rows, _ = level.shape
        keys = np.where(
            rng.random((rows, 1)) < self.decoding, decoding_order(rng, level, block), rng.random(level.shape)
        )
        keys = np.where(free, keys, -NEVER)
        hidden = latest(keys, counts(rng, free.sum(1)))
        ordered = keys.max(1) > 1  # uniform keys stay below 1
        aim = (rng.random(rows) < self.aimed) & ordered
        hidden = np.where(aim[:, None], cut_at_work(rng, keys, level, free, hidden), hidden)
        weight = nearness(keys, hidden, self.focus) if self.focus else np.ones(level.shape)
        return hidden, np.where(ordered[:, None], weight, 1.0)


def counts(rng: Generator, sizes: Ints) -> Ints:
    """How many to hide of each row: t ~ U(0, 1), one t in each of b equal strata, at least one token."""
    rows = len(sizes)
    t = (rng.permutation(rows) + rng.random(rows)) / rows
    return np.ceil(t * sizes).astype(np.int64).clip(1, sizes)


def latest(keys: Floats, count: Ints) -> Bools:
    """The `count` [b] positions with the highest keys [b, N]."""
    rank = np.argsort(np.argsort(-keys, axis=1), axis=1)
    return rank < count[:, None]


def nearness(keys: Floats, hidden: Bools, focus: float) -> Floats:
    """Weights that fade from the next token a decoder would fill to the last; what is far cannot be known yet."""
    ahead = np.argsort(np.argsort(keys, axis=1), axis=1) - np.sum(~hidden, axis=1, keepdims=True)
    fading: Floats = np.exp(-ahead.clip(0) / focus)
    return FAR + (1 - FAR) * fading


def decoding_order(rng: Generator, level: Ints, block: int) -> Floats:
    """When each position is filled: blocks in order; inside, by level or not, left to right or less so."""
    rows, size = level.shape
    place = np.arange(size)
    stray = rng.choice(JITTER, size=(rows, 1)) * rng.random((rows, size))
    by_level = np.where(rng.random((rows, 1)) < 0.6, level * LEVEL, 0.0)
    return 2.0 + place // block * BLOCK + by_level + place + stray


def cut_at_work(rng: Generator, keys: Floats, level: Ints, free: Bools, fallback: Bools) -> Bools:
    """Hide a token that must be worked out and all that a decoder would fill after it.

    Half of the cuts take any such token, half the first one of a level, with the whole level still to do.
    """
    hard = free & (level >= HARD)
    chosen = np.argmax(np.where(hard, rng.random(level.shape), -1.0), axis=1)  # [b]
    whole = np.equal(level, level[np.arange(len(level)), chosen][:, None])
    first = np.argmin(np.where(whole & free, keys, NEVER), axis=1)
    start = np.where(rng.random(len(level)) < 0.5, chosen, first)
    cut = free & np.greater_equal(keys, keys[np.arange(len(level)), start][:, None])
    return np.where(np.any(hard, axis=1, keepdims=True), cut, fallback)
