"""Functions shared by transfer policies: the order of masks, and how many of them must be filled."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.loop.view import StateView


def best(scores: Tensor, count: Tensor) -> Tensor:
    """Return bool [B, N], true on the `count` [B] highest scores of each row; ties go to the leftmost."""
    rank = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return torch.as_tensor(rank < count[:, None])


def required_count(state: StateView) -> Tensor:
    """Return how many masks have to be filled now, so that the block is full when its steps are over. [B]

    This is 1 if there is a step for every position of the window, and 0 in a row that is done.
    """
    masks = state.eligible.sum(dim=1)
    left = (state.due(state.block) - state.step).clamp(min=1)
    return -(-masks // left)  # rounded up


def fillable(scores: Tensor, state: StateView) -> Tensor:
    """Return the masks that a rule may fill early: all but those that the score puts last. [B, N]

    So an end of text that `score=deferred` puts last is filled last, however sure the model is of it.
    """
    return state.eligible & (scores > torch.finfo(scores.dtype).min)


def at_least_one(allowed: Tensor, scores: Tensor, state: StateView) -> Tensor:
    """Return the masks that a rule allows [B, N]; if a row has none, its best mask by score, so that no row waits."""
    return top_up(allowed, scores, state, state.eligible.any(dim=1).long())


def top_up(allowed: Tensor, scores: Tensor, state: StateView, least: Tensor) -> Tensor:
    """Add the best masks by score to those `allowed` [B, N], up to `least` [B] masks per row."""
    # An eligible mask scores -inf only if nothing was read there; it still ranks above ineligible positions.
    finite = scores.clamp(min=torch.finfo(scores.dtype).min)
    order = finite.masked_fill(~state.eligible, -torch.inf).masked_fill(allowed, torch.inf)
    return best(order, torch.maximum(allowed.sum(dim=1), least))


def order_by(values: Tensor, scores: Tensor, among: Tensor) -> Tensor:
    """Return positions [B, N] by falling `values`; ties go to the higher score, then to the leftmost.

    Positions outside `among` [B, N] come last.
    """
    order = scores.argsort(dim=1, descending=True, stable=True)
    for key in (values, among.int()):
        order = order.gather(1, key.gather(1, order).argsort(dim=1, descending=True, stable=True))
    return order


def first(order: Tensor, holds: Tensor) -> Tensor:
    """Return bool [B, N], true on the positions of `order` up to the last one at which `holds` [B, N] is true."""
    kept = holds.flip(1).cumsum(dim=1).flip(1) > 0
    return torch.zeros_like(kept).scatter(1, order, kept)
