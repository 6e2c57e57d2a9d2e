"""Dream's decoder with all its options."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tests.references.distributions import Row, cut, draw, gumbel, without

Uniform = Callable[[int, int], float]  # step, position -> a number between 0 and 1


def generate(
    logits_of: Callable[[list[int]], list[Row]],  # a whole canvas -> the outputs of every column, not shifted
    prompt: list[int],
    length: int,
    mask: int,
    *,
    steps: int,
    alg: str,
    uniform: dict[str, Uniform],  # draws for a "token", for the "order" and for an independent "coin"
    eps: float = 1e-3,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 50,
    alg_temp: float = 0.0,
) -> list[int]:
    """Fill a window of `length` masks."""
    canvas, start = [*prompt, *[mask] * length], len(prompt)
    times = torch.linspace(1, eps, steps + 1)
    for step in range(steps):
        masks = [i for i in range(length) if canvas[start + i] == mask]
        share = 1 - float(times[step + 1] / times[step]) if step < steps - 1 else 1.0
        outputs = logits_of(canvas)
        scores, tokens = {}, {}
        for i in masks:
            probs = cut(without(outputs[start + i - 1], mask), temperature, top_p, top_k)
            tokens[i] = draw(probs, uniform["token"](step, i)) if temperature else probs.index(max(probs))
            scores[i] = _score(probs, tokens[i], alg)
            if alg_temp:  # the best n of these are n draws without replacement
                scores[i] = scores[i] / alg_temp + gumbel(uniform["order"](step, i))
        if alg == "origin":
            chosen = [i for i in masks if uniform["coin"](step, i) < share]
        else:
            chosen = sorted(masks, key=lambda i: (-scores[i], i))[: int(len(masks) * share)]
        for i in chosen:
            canvas[start + i] = tokens[i]
    return canvas[start:]


def _score(probs: Row, token: int, alg: str) -> float:
    if alg == "topk_margin":
        first, second = sorted(probs, reverse=True)[:2]
        return first - second
    if alg == "entropy":
        return math.fsum(p * math.log(p) for p in probs if p > 0)
    return probs[token]
