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
_AT_ONCE = 8  # most rows that are reduced at a time because each has a thread of its own
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
        return map_chunks(_normaliser, self.values, self.top, self.best)

    @cached_property
    def entropy(self) -> Tensor:
        """Shannon entropy in nats. [n]"""
        self.normaliser, entropy = map_chunks(_normaliser_and_entropy, self.values, self.top, self.best).unbind(-1)
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


def _normaliser(logits: Tensor, top: Tensor, best: Tensor) -> Tensor:
    return _from_scaled(_scale(logits), top, best)


def _normaliser_and_entropy(logits: Tensor, top: Tensor, best: Tensor) -> Tensor:
    """Return both, from one pass over the logits. [n, 2]"""
    scaled = _scale(logits)
    normaliser, weight = _from_scaled(scaled, top, best), scaled.exp()
    # A banned token has weight 0 at -inf, and their product would be nan.
    weight *= scaled.clamp_(min=torch.finfo(scaled.dtype).min)
    return torch.stack([normaliser, -weight.sum(dim=-1)], dim=-1)


def _scale(logits: Tensor) -> Tensor:
    """Return log probabilities: one kernel, which sums the exponentials without storing them. [n, V]"""
    return torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _from_scaled(scaled: Tensor, top: Tensor, best: Tensor) -> Tensor:
    return top - scaled.gather(-1, best[:, None]).squeeze(1)


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def map_chunks(statistic: Callable[..., Tensor], logits: Tensor, *others: Tensor) -> Tensor:
    """Compute `statistic` for a few rows of logits [n, V] (and of `others` [n]) at a time. [n] or [n, k]"""
    rows = max(CHUNK // logits.shape[-1], min(torch.get_num_threads(), _AT_ONCE))
    pieces = zip(*(torch.split(part, rows) for part in (logits, *others)), strict=True)
    return torch.cat([statistic(*piece) for piece in pieces])
