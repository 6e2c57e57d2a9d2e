"""The oracle: Algorithm 1 of the paper in plain Python, one prompt at a time, nothing shared with the library."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Run:
    """What a decoding did."""

    tokens: list[int]
    steps: int
    exit: int | None = None  # the step, from 0, that committed everything early
    filled: list[list[int]] = field(default_factory=list)  # positions, by step


def decode(
    logits_of: Callable[[list[int]], list[list[float]]],
    canvas: list[int],
    length: int,
    mask: int,
    steps: int,
    block: int,
    answer: list[int],
    tau: Callable[[float], float] | None,
    remasking: str = "confidence",
    draw: Callable[[int, int], float] | None = None,
    one_based: bool = False,
    reduce: Callable[[list[float]], float] = lambda gaps: sum(gaps) / len(gaps),
) -> Run:
    """Fill the last `length` places of `canvas`, block by block, or all at once when the gap reaches tau(p)."""
    canvas, start, run = list(canvas), len(canvas) - length, Run([], 0)
    for step in range(steps):
        masks = [i for i in range(length) if canvas[start + i] == mask]
        if not masks:
            break
        logits = [[-math.inf if token == mask else z for token, z in enumerate(row)] for row in logits_of(canvas)]
        best = [row.index(max(row)) for row in logits]
        run.steps += 1

        progress = (step + 1) / steps if one_based else step / steps
        gaps = [gap(logits[i]) for i in answer]
        settled = tau is not None and bool(gaps) and reduce(gaps) >= tau(progress)
        if settled:
            run.exit = step

        first = masks[0] // block * block
        due = math.ceil(min(first + block, length) * steps / length)
        # A block whose last step this is goes along, if there are fewer steps than blocks.
        last = [i for i in masks if math.ceil(min(i // block * block + block, length) * steps / length) <= step + 1]
        here = [i for i in masks if first <= i < first + block or i in last]
        quota = math.ceil(len(here) / max(1, due - step))
        order = sorted(here, key=lambda i: (-score(logits[i], remasking, draw and draw(step, i)), i))
        chosen = masks if settled or step + 1 == steps else order[:quota]
        for i in chosen:
            canvas[start + i] = best[i]
        run.filled.append(sorted(chosen))
        if settled:
            break
    run.tokens = canvas[start:]
    return run


def gap(logits: list[float]) -> float:
    first, second = sorted(logits, reverse=True)[:2]
    return first - second


def score(logits: list[float], remasking: str, draw: float | None) -> float:
    if remasking == "random":
        assert draw is not None
        return draw
    top = max(logits)
    weights = [math.exp(z - top) for z in logits]
    probs = sorted((w / sum(weights) for w in weights), reverse=True)
    if remasking == "margin":
        return probs[0] - probs[1]
    if remasking == "entropy":
        return sum(p * math.log(p) for p in probs if p > 0)
    return probs[0]


def llada_fills(masks: list[int], steps: int) -> list[list[int]]:
    """LLaDA's table: for blocks with so many masks, how many are filled in each step, idle ones included."""
    table = []
    for count in masks:
        base, more = divmod(count, steps)
        table.append([base + (i < more) for i in range(steps)])
    return table
