"""The order in which masks would be filled, and how many have to be: what transfer policies share."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.loop.view import StateView


def best(scores: Tensor, count: Tensor) -> Tensor:
    """Return bool [B, N], true on the `count` [B] highest scores of each row; of equal scores the leftmost first."""
    rank = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return torch.as_tensor(rank < count[:, None])


def required_count(state: StateView) -> Tensor:
    """Return how many masks have to be filled now, so that the block is full when its steps are over. [B]

    One if there is a step for every position of the window; none in a row that is done.
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
    """Return the masks that a rule allows [B, N]; where it allows none, the best by score, so that no row waits."""
    return top_up(allowed, scores, state, state.eligible.any(dim=1).long())


def top_up(allowed: Tensor, scores: Tensor, state: StateView, least: Tensor) -> Tensor:
    """Add the best masks by score to those `allowed` [B, N], up to `least` [B] masks per row."""
    # An eligible mask scores -inf only if nothing was read there; it still goes before what is not eligible.
    finite = scores.clamp(min=torch.finfo(scores.dtype).min)
    order = finite.masked_fill(~state.eligible, -torch.inf).masked_fill(allowed, torch.inf)
    return best(order, torch.maximum(allowed.sum(dim=1), least))


def order_by(values: Tensor, scores: Tensor, among: Tensor) -> Tensor:
    """Return positions [B, N] by falling `values`; of equal ones the higher score first, then the leftmost.

    Those not `among` [B, N] come last.
    """
    order = scores.argsort(dim=1, descending=True, stable=True)
    for key in (values, among.int()):
        order = order.gather(1, key.gather(1, order).argsort(dim=1, descending=True, stable=True))
    return order


def first(order: Tensor, holds: Tensor) -> Tensor:
    """Return bool [B, N], true on the first n positions of `order`, n the largest at which `holds` [B, N] is true."""
    kept = holds.flip(1).cumsum(dim=1).flip(1) > 0
    return torch.zeros_like(kept).scatter(1, order, kept)
