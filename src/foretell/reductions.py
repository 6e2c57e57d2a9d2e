"""Reductions over the vocabulary, in as few passes over the logits as they take.

All of them see [n, V] in float32 (or better), a few rows at a time, so that no second copy of the logits is made.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK = 1 << 19  # logits looked at together: about what a core's cache holds in float32
_GROUP = 64


def argmax(logits: Tensor) -> Tensor:
    """The best token of each position, the first of equals. [n]

    The maximum of every group of neighbours comes first: maxima alone are several times faster than maxima with
    their indices, and what is left to search is short.
    """
    if logits.shape[-1] % _GROUP:
        return logits.argmax(dim=-1)
    groups = logits.view(len(logits), -1, _GROUP)  # [n, V / 64, 64]
    best = groups.amax(dim=-1).argmax(dim=-1, keepdim=True)  # [n, 1]
    within = groups.gather(1, best[..., None].expand(-1, 1, _GROUP)).squeeze(1).argmax(dim=-1)
    return best.squeeze(1) * _GROUP + within


def best_two(logits: Tensor) -> Tensor:
    """The best token of each position and its runner-up. [n, 2]

    Hides the winner for a moment, in place, and looks for the best again.
    """
    winner = argmax(logits)[:, None]
    first = logits.gather(-1, winner)
    logits.scatter_(-1, winner, -torch.inf)
    second = argmax(logits)[:, None]
    logits.scatter_(-1, winner, first)
    return torch.cat([winner, second], dim=-1)


def log_sum_exp(logits: Tensor) -> Tensor:
    """The normaliser of the softmax. [n]"""
    return in_chunks(lambda part: _precise(part).logsumexp(dim=-1), logits)


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy in nats. [n]"""
    return in_chunks(lambda part: _entropy(_precise(part)), logits)


def _entropy(logits: Tensor) -> Tensor:
    below = logits - logits.amax(dim=-1, keepdim=True)
    weight = below.exp()
    total = weight.sum(dim=-1)
    # A banned token has weight 0 at -inf, and their product would be nan.
    return total.log() - (weight * below.clamp_(min=torch.finfo(below.dtype).min)).sum(dim=-1) / total


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def in_chunks(statistic: Callable[..., Tensor], logits: Tensor, *others: Tensor) -> Tensor:
    """`statistic` of a few rows of logits [n, V] (and of `others` [n]) at a time. [n]"""
    rows = max(1, CHUNK // logits.shape[-1])
    pieces = zip(*(torch.split(part, rows) for part in (logits, *others)), strict=True)
    return torch.cat([statistic(*piece) for piece in pieces])
