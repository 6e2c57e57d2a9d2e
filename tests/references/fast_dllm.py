"""Fast-dLLM's decoders for LLaDA and Dream, with caches, on a network that keeps keys and values in a dictionary."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from foretell.models.transformer import Block, Transformer, rotate, rotations
from tests.references.distributions import Row, cut, without

Probs = dict[int, Row]  # by column
Rule = Callable[[Probs, int], list[int]]  # the masks, and the number of the pass in its block -> those that are filled


class Cached:
    """A network that keeps the keys and values of every column, one row, no batching."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.store: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def outputs(self, canvas: list[int], columns: list[int]) -> dict[int, Row]:
        """The outputs at `columns`, whose keys and values are written anew; the others are read."""
        at, config = torch.tensor(columns), self.model.config
        x = self.model.embed(torch.tensor(canvas)[at])
        turn = [part[0, 0] for part in rotations(at[None], config.head_dim, config.rope_theta)]
        for layer, block in enumerate(self.model.blocks):
            assert isinstance(block, Block)
            h = block.attn_norm(x)
            q, k, v = (
                part(h).unflatten(-1, (-1, config.head_dim)) for part in (block.attn.q, block.attn.k, block.attn.v)
            )
            q, k = (rotate(part.transpose(0, 1), *turn).transpose(0, 1) for part in (q, k))
            self.store |= {(layer, column): (k[i], v[i]) for i, column in enumerate(columns)}
            held = sorted(column for depth, column in self.store if depth == layer)
            keys, values = (torch.stack([self.store[layer, column][i] for column in held]) for i in (0, 1))
            group = config.heads // config.kv_heads
            keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
            weight = torch.einsum("qhd,khd->hqk", q, keys) / config.head_dim**0.5
            mixed = torch.einsum("hqk,khd->qhd", weight.softmax(-1), values)
            x = x + block.attn.out(mixed.flatten(1))
            h = block.mlp_norm(x)
            x = x + block.down(F.silu(block.gate(h)) * block.up(h))
        rows: list[Row] = self.model.head(self.model.norm(x)).tolist()
        return dict(zip(columns, rows, strict=True))


@torch.inference_mode()
def generate(
    model: Transformer,
    prompt: list[int],
    length: int,
    block: int,
    cache: str,
    rule: Rule,
    *,
    dream: bool = False,
    top_k: int = 0,
) -> tuple[list[int], int]:
    """The window, and how many passes it took; `cache` is off, prefix or dual."""
    mask, start, cached, passes = model.mask_id, len(prompt), Cached(model), 0
    canvas = [*prompt, *[mask] * length]
    for first in range(start, len(canvas), block):
        last, index = min(first + block, len(canvas)), 0
        while masks := [c for c in range(first, last) if canvas[c] == mask]:
            columns = list(range(len(canvas)))
            if cache != "off" and index > 0:
                columns = list(range(first, last if cache == "dual" else len(canvas)))
            outputs, passes = cached.outputs(canvas, columns), passes + 1
            # On entering, Dream fills the block's first token alone, for it is read from the column before the block.
            forced = dream and cache != "off" and index == 0
            read = masks[:1] if forced else masks
            probs = {c: cut(without(outputs[c - dream], mask), 0.0, 1.0, top_k) for c in read}
            for c in read if forced else rule(probs, index):
                canvas[c] = probs[c].index(max(probs[c]))
            index += 1
    return canvas[start:], passes


def one(probs: Probs, index: int) -> list[int]:
    """The surest mask."""
    return _surest(probs)[:1]


def threshold(value: float) -> Rule:
    """Every mask of that confidence, and the surest one."""
    return lambda probs, index: [c for rank, c in enumerate(_surest(probs)) if rank == 0 or max(probs[c]) >= value]


def factor(value: float) -> Rule:
    """The masks before the first that fails; but all of them where that is the last mask of the block."""

    def choose(probs: Probs, index: int) -> list[int]:
        order = _surest(probs)
        bars = [-math.inf, *(1 - value / (n + 1) for n in range(2, len(order) + 1))]
        fails = [rank for rank, bar in enumerate(bars) if max(probs[order[rank]]) < bar]
        return order[: fails[0]] if fails and fails[0] < len(order) - 1 else order

    return choose


def timesteps(steps: int, eps: float) -> Rule:
    """A share of the masks by Dream's schedule, in `steps` steps per block, the lowest entropies first."""
    times = torch.linspace(1, eps, steps + 1)

    def choose(probs: Probs, index: int) -> list[int]:
        share = 1 - float(times[index + 1] / times[index]) if index < steps - 1 else 1.0
        order = sorted(probs, key=lambda c: (-sum(p * math.log(p) for p in probs[c] if p > 0), c))
        return order[: int(len(order) * share)]

    return choose


def _surest(probs: Probs) -> list[int]:
    return sorted(probs, key=lambda c: (-max(probs[c]), c))
