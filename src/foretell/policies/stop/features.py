"""What a learned stopping rule looks at: numbers about the answer and the text around it, from beliefs and state alone.

The same function serves a live step and a stored trace, whose steps are the rows of one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView

LEAST = 1e-6  # of a chance and of its complement, so that log-odds stay finite


class Look:
    """One look at a batch; every feature is [B] and is computed from what stands here."""

    def __init__(self, beliefs: Beliefs, state: StateView) -> None:
        self.beliefs, self.state = beliefs, state
        self.answer = state.answer  # [B, N]
        self.text = text(state)  # [B, N]

    @cached_property
    def log_odds(self) -> Tensor:
        """[B, N] of the proposed tokens."""
        return log_odds(self.beliefs.confidence)

    @cached_property
    def stood(self) -> Tensor:
        """[B, N] log of 1 + the comparisons in a row that found the draft unchanged, this step's included."""
        same = self.beliefs.tokens == self.state.draft
        return torch.where(same, self.state.unchanged + 1, 0).float().log1p()

    @cached_property
    def stayed(self) -> Tensor:
        """[B, N] the same of the answer, which has changed when it is found in another place."""
        return torch.minimum(self.stood, self.state.answer_age.float().log1p()[:, None])

    @cached_property
    def ends(self) -> Tensor:
        """[B, N] chance of an end of text, where that is what is proposed."""
        tokens = self.beliefs.tokens
        return self.beliefs.confidence * torch.isin(tokens, tokens.new_tensor(self.state.end_ids))


def text(state: StateView) -> Tensor:
    """Masks outside of the answer. [B, N]"""
    return state.masked & ~state.answer


def log_odds(chance: Tensor) -> Tensor:
    """log p / (1 - p)."""
    return torch.logit(chance.float(), eps=LEAST)


def mean(values: Tensor, where: Tensor) -> Tensor:
    """[B] over the positions `where` [B, N]; of none, 0."""
    return torch.where(where, values, 0).sum(dim=1) / where.sum(dim=1).clamp(min=1)


def least(values: Tensor, where: Tensor) -> Tensor:
    """[B] the same for the smallest."""
    return quantile(values, where, 0.0)


def quantile(values: Tensor, where: Tensor, q: float) -> Tensor:
    """[B] the same for the value of rank q (n - 1), rounded down."""
    size = where.sum(dim=1)
    rank = (q * (size - 1)).long().clamp(min=0)
    found = values.masked_fill(~where, torch.inf).sort(dim=1).values.gather(1, rank[:, None]).squeeze(1)
    return torch.where(size > 0, found, 0)


ANSWER: Mapping[str, Callable[[Look], Tensor]] = {
    "gap_mean": lambda one: mean(one.beliefs.gap, one.answer),
    "gap_min": lambda one: least(one.beliefs.gap, one.answer),
    "gap_q25": lambda one: quantile(one.beliefs.gap, one.answer, 0.25),
    "gap_median": lambda one: quantile(one.beliefs.gap, one.answer, 0.5),
    "log_odds_mean": lambda one: mean(one.log_odds, one.answer),
    "log_odds_min": lambda one: least(one.log_odds, one.answer),
    "margin_min": lambda one: least(one.beliefs.margin, one.answer),
    "entropy_mean": lambda one: mean(one.beliefs.entropy, one.answer),
    "entropy_max": lambda one: -least(-one.beliefs.entropy, one.answer),
    "stood_mean": lambda one: mean(one.stayed, one.answer),
    "stood_min": lambda one: least(one.stayed, one.answer),
    "ends": lambda one: mean(one.ends, one.answer),
    "answer_masked": lambda one: mean(one.state.masked.float(), one.answer),
    "progress": lambda one: one.state.progress,
    "filled": lambda one: one.state.filled,
}
TEXT: Mapping[str, Callable[[Look], Tensor]] = {
    "text_left": lambda one: one.text.float().mean(dim=1),
    "text_gap_mean": lambda one: mean(one.beliefs.gap, one.text),
    "text_gap_min": lambda one: least(one.beliefs.gap, one.text),
    "text_entropy_mean": lambda one: mean(one.beliefs.entropy, one.text),
    "text_entropy_max": lambda one: -least(-one.beliefs.entropy, one.text),
    "text_stood_mean": lambda one: mean(one.stood, one.text),
    "text_stood_min": lambda one: least(one.stood, one.text),
    "text_ends": lambda one: mean(one.ends, one.text),
}
FEATURES: Mapping[str, Callable[[Look], Tensor]] = {**ANSWER, **TEXT}


def features(beliefs: Beliefs, state: StateView, names: Sequence[str] = tuple(FEATURES)) -> Tensor:
    """The named features of every row. [B, F]"""
    look = Look(beliefs, state)
    return torch.stack([FEATURES[name](look).float() for name in names], dim=1)
