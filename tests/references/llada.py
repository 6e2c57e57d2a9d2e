"""LLaDA's decoder with all its options, and the released Prophet on top of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.references.distributions import Row, gumbel, softmax, without

Logits = Callable[[list[int]], list[Row]]  # a whole canvas -> the logits of every column


@dataclass
class Written:
    window: list[int]
    steps: int  # passes until no mask was left
    exit: int | None = None  # the step, from 1, at which Prophet committed everything


def generate(
    logits_of: Logits,
    prompt: list[int],
    length: int,
    mask: int,
    *,
    steps: int,
    block: int,
    pins: dict[int, int] | None = None,
    random: Callable[[int, int], float] | None = None,  # step, position -> a score, for remasking="random"
    noise: Callable[[int, int], list[float]] | None = None,  # step, position -> a number in (0, 1) per token
    temperature: float = 0.0,
    cfg_scale: float = 0.0,
    logits_eos_inf: int | None = None,  # the end token that is banned
    confidence_eos_eot_inf: tuple[int, ...] = (),  # the end tokens that are left out of the confidence
    prophet: tuple[float, float, float] | None = None,  # thresholds
) -> Written:
    """Fill a window of `length` masks; `length` is a multiple of `block`, and `steps` of the number of blocks."""
    pins, start = pins or {}, len(prompt)
    canvas = [*prompt, *(pins.get(i, mask) for i in range(length))]
    given = [i for i, token in enumerate(canvas) if token != mask]
    per_block, step = steps // (length // block), 0
    for first in range(0, length, block):
        masks = sum(canvas[start + i] == mask for i in range(first, first + block))
        quotas = [masks // per_block + (i < masks % per_block) for i in range(per_block)]
        for quota in quotas:
            if mask not in canvas:
                return Written(canvas[start:], step)
            step += 1
            rows = [without(row, mask) for row in _guided(logits_of, canvas, given, mask, cfg_scale)[start:]]
            if logits_eos_inf is not None:
                rows = [without(row, logits_eos_inf) for row in rows]
            proposals, scores = [], []
            for i, row in enumerate(rows):
                noisy = (
                    [z + temperature * gumbel(u) for z, u in zip(row, noise(step - 1, i), strict=True)]
                    if noise
                    else row
                )
                proposals.append(noisy.index(max(noisy)))
                sure = softmax(without(row, *confidence_eos_eot_inf))[proposals[-1]]
                scores.append(random(step - 1, i) if random else sure)
            if prophet and pins and _settled(rows, max(pins) + 2, step / steps, prophet):
                window = [token if token != mask else proposals[i] for i, token in enumerate(canvas[start:])]
                return Written(window, step, exit=step)
            here = [i for i in range(first, first + block) if canvas[start + i] == mask]
            for i in sorted(here, key=lambda i: (-scores[i], i))[:quota]:
                canvas[start + i] = proposals[i]
    return Written(canvas[start:], step)


def _guided(logits_of: Logits, canvas: list[int], given: list[int], mask: int, scale: float) -> list[Row]:
    """All that was given, pinned tokens included, is masked in the second pass."""
    rows = logits_of(canvas)
    if scale == 0:
        return rows
    blind = logits_of([mask if i in given else token for i, token in enumerate(canvas)])
    return [[u + (scale + 1) * (c - u) for c, u in zip(*pair, strict=True)] for pair in zip(rows, blind, strict=True)]


def _settled(rows: list[Row], first: int, progress: float, thresholds: tuple[float, float, float]) -> bool:
    """The mean gap of the five positions from `first` on, as far as the window goes."""
    gaps = [best - second for best, second in (sorted(row, reverse=True)[:2] for row in rows[first : first + 5])]
    high, mid, low = thresholds
    tau = high if progress < 0.33 else mid if progress < 0.67 else low
    return bool(gaps) and math.fsum(gaps) / len(gaps) >= tau
