"""The features of a learned stopping rule: numbers about the answer and the text around it, from beliefs and state.

The same function serves a live step and a stored trace, whose steps are the rows of one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView

LEAST = 1e-6  # probabilities are clamped to LEAST .. 1 - LEAST, so that log-odds stay finite


class FeatureSource:
    """What the features of a batch are computed from. Every feature is [B]."""

    def __init__(self, beliefs: Beliefs, state: StateView) -> None:
        self.beliefs, self.state = beliefs, state
        self.answer = state.answer  # [B, N]
        self.text = text_masks(state)  # [B, N]

    @cached_property
    def log_odds(self) -> Tensor:
        """[B, N] log-odds of the proposed tokens."""
        return log_odds(self.beliefs.confidence)

    @cached_property
    def draft_age(self) -> Tensor:
        """[B, N] log of 1 + the number of consecutive steps, including this one, that left the draft unchanged."""
        same = self.beliefs.tokens == self.state.draft
        return torch.where(same, self.state.unchanged + 1, 0).float().log1p()

    @cached_property
    def answer_age(self) -> Tensor:
        """[B, N] the same for the answer, which counts as changed when it is found in another place."""
        return torch.minimum(self.draft_age, self.state.answer_age.float().log1p()[:, None])

    @cached_property
    def ends(self) -> Tensor:
        """[B, N] probability of an end of text where one is proposed, otherwise 0."""
        tokens = self.beliefs.tokens
        return self.beliefs.confidence * torch.isin(tokens, tokens.new_tensor(self.state.end_ids))


def text_masks(state: StateView) -> Tensor:
    """Return the masks outside of the answer. [B, N]"""
    return state.masked & ~state.answer


def log_odds(probability: Tensor) -> Tensor:
    """Return log p / (1 - p)."""
    return torch.logit(probability.float(), eps=LEAST)


def mean(values: Tensor, where: Tensor) -> Tensor:
    """Return the mean over the positions `where` [B, N]; 0 if there are none. [B]"""
    return torch.where(where, values, 0).sum(dim=1) / where.sum(dim=1).clamp(min=1)


def least(values: Tensor, where: Tensor) -> Tensor:
    """Return the smallest value at the positions `where` [B, N]; 0 if there are none. [B]"""
    return quantile(values, where, 0.0)


def quantile(values: Tensor, where: Tensor, q: float) -> Tensor:
    """Return the value of rank q (n - 1), rounded down, of n positions `where` [B, N]; 0 if there are none. [B]"""
    size = where.sum(dim=1)
    rank = (q * (size - 1)).long().clamp(min=0)
    found = values.masked_fill(~where, torch.inf).sort(dim=1).values.gather(1, rank[:, None]).squeeze(1)
    return torch.where(size > 0, found, 0)


ANSWER: Mapping[str, Callable[[FeatureSource], Tensor]] = {
    "gap_mean": lambda one: mean(one.beliefs.gap, one.answer),
    "gap_min": lambda one: least(one.beliefs.gap, one.answer),
    "gap_q25": lambda one: quantile(one.beliefs.gap, one.answer, 0.25),
    "gap_median": lambda one: quantile(one.beliefs.gap, one.answer, 0.5),
    "log_odds_mean": lambda one: mean(one.log_odds, one.answer),
    "log_odds_min": lambda one: least(one.log_odds, one.answer),
    "margin_min": lambda one: least(one.beliefs.margin, one.answer),
    "entropy_mean": lambda one: mean(one.beliefs.entropy, one.answer),
    "entropy_max": lambda one: -least(-one.beliefs.entropy, one.answer),
    "stood_mean": lambda one: mean(one.answer_age, one.answer),
    "stood_min": lambda one: least(one.answer_age, one.answer),
    "ends": lambda one: mean(one.ends, one.answer),
    "answer_masked": lambda one: mean(one.state.masked.float(), one.answer),
    "progress": lambda one: one.state.progress,
    "filled": lambda one: one.state.filled,
}
TEXT: Mapping[str, Callable[[FeatureSource], Tensor]] = {
    "text_left": lambda one: one.text.float().mean(dim=1),
    "text_gap_mean": lambda one: mean(one.beliefs.gap, one.text),
    "text_gap_min": lambda one: least(one.beliefs.gap, one.text),
    "text_entropy_mean": lambda one: mean(one.beliefs.entropy, one.text),
    "text_entropy_max": lambda one: -least(-one.beliefs.entropy, one.text),
    "text_stood_mean": lambda one: mean(one.draft_age, one.text),
    "text_stood_min": lambda one: least(one.draft_age, one.text),
    "text_ends": lambda one: mean(one.ends, one.text),
}
FEATURES: Mapping[str, Callable[[FeatureSource], Tensor]] = {**ANSWER, **TEXT}


def features(beliefs: Beliefs, state: StateView, names: Sequence[str] = tuple(FEATURES)) -> Tensor:
    """Return the named features of every row. [B, F]"""
    source = FeatureSource(beliefs, state)
    return torch.stack([FEATURES[name](source).float() for name in names], dim=1)
