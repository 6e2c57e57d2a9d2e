"""Reductions over the vocabulary, in as few passes over the logits as possible.

None of them copies all logits. Anything but a maximum is computed for a few rows at a time, as many as fit in the
cache of a processor core.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

CHUNK = 1 << 18  # logits reduced at a time: a megabyte in float32, and as much for their exponentials
_GROUP = 64


class Reductions:
    """Implements `protocols.Logits`: the logits of n positions, each reduction computed when it is first read.

    The two best tokens share one pass, which finds the maximum of each group of neighbouring tokens: this is several
    times faster than maxima with indices, and leaves one group to search. The normaliser and the entropy share another
    pass, if the entropy is read first.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values  # [n, V]
        # A vocabulary whose size is not a multiple of the group size is a single group.
        size = _GROUP if values.shape[-1] % _GROUP == 0 else values.shape[-1]
        self._groups = values.view(len(values), -1, size)  # [n, V / size, size]

    @cached_property
    def best(self) -> Tensor:
        """The best token of each position; ties go to the first. [n]"""
        group = self._peaks.argmax(dim=-1, keepdim=True)  # [n, 1]
        return (group * self._groups.shape[-1] + self._members(group).argmax(dim=-1, keepdim=True)).squeeze(1)

    @cached_property
    def top(self) -> Tensor:
        """The logit of the best token. NaN or infinite if any logit is NaN or inf, or if all are -inf. [n]"""
        return self.of(self.best[:, None]).squeeze(1)

    @cached_property
    def best_two(self) -> Tensor:
        """The best token of each position and its runner-up. [n, 2]"""
        size, winner = self._groups.shape[-1], self.best[:, None]
        home = winner // size
        others = self._members(home).scatter(1, winner % size, -torch.inf)  # of the winner's group
        group = self._peaks.scatter(1, home, others.amax(dim=-1, keepdim=True)).argmax(dim=-1, keepdim=True)
        members = torch.where(group == home, others, self._members(group))
        return torch.cat([winner, group * size + members.argmax(dim=-1, keepdim=True)], dim=-1)

    @cached_property
    def normaliser(self) -> Tensor:
        """The normaliser of the softmax, log sum exp, without a matrix of probabilities. [n]"""
        return map_chunks(_normaliser, self.values, self.top)

    @cached_property
    def entropy(self) -> Tensor:
        """Shannon entropy in nats. [n]"""
        self.normaliser, entropy = map_chunks(_normaliser_and_entropy, self.values, self.top).unbind(-1)
        return entropy

    def of(self, tokens: Tensor) -> Tensor:
        """Return the logits of `tokens` [n, k], in float32 or better. [n, k]"""
        return _precise(self.values.gather(-1, tokens))

    @cached_property
    def _peaks(self) -> Tensor:
        return self._groups.amax(dim=-1)  # [n, V / size]

    def _members(self, group: Tensor) -> Tensor:
        """Return the logits of one `group` [n, 1] per position. [n, size]"""
        return self._groups.gather(1, group[..., None].expand(-1, 1, self._groups.shape[-1])).squeeze(1)


def _normaliser(logits: Tensor, top: Tensor) -> Tensor:
    return top + (_precise(logits) - top[:, None]).exp_().sum(dim=-1).log()


def _normaliser_and_entropy(logits: Tensor, top: Tensor) -> Tensor:
    """Return both, from one pass over the logits. [n, 2]"""
    below = _precise(logits) - top[:, None]
    weight = below.exp()
    total = weight.sum(dim=-1)
    # A banned token has weight 0 at -inf, and their product would be nan.
    weight *= below.clamp_(min=torch.finfo(below.dtype).min)
    return torch.stack([top + total.log(), total.log() - weight.sum(dim=-1) / total], dim=-1)


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def map_chunks(statistic: Callable[..., Tensor], logits: Tensor, *others: Tensor) -> Tensor:
    """Compute `statistic` for a few rows of logits [n, V] (and of `others` [n]) at a time. [n] or [n, k]"""
    rows = max(1, CHUNK // logits.shape[-1])
    pieces = zip(*(torch.split(part, rows) for part in (logits, *others)), strict=True)
    return torch.cat([statistic(*piece) for piece in pieces])
