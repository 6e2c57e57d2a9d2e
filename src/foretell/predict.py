"""One step's worth of forward passes, from a cache policy's plan to beliefs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from foretell.prediction import Part, Prediction
from foretell.protocols import Denoiser, Inputs
from foretell.recipe import Recipe
from foretell.state import DecodeState, Plan
from foretell.wrappers import Guided, Suppressed


def predict(model: Denoiser, state: DecodeState, recipe: Recipe) -> Prediction:
    """Run the model where the cache policy asks for it, and not at all on rows that are done."""
    asked = as_asked(model, state, recipe)
    if recipe.cache.stores and state.cache is None:
        state.cache = asked.new_cache(*state.canvas.shape)
    plan = recipe.cache(state)
    parts = [
        Part(rows, query, asked(gather(rows, query, columns, plan, state)))
        for rows, query, columns in passes(plan, state)
    ]
    state.cached_block = torch.where(plan.full, state.block, state.cached_block)
    return Prediction(parts, state, recipe.sample)


def as_asked(model: Denoiser, state: DecodeState, recipe: Recipe) -> Denoiser:
    """The model under the recipe's guidance and bans."""
    if recipe.guidance:
        model = Guided(model, recipe.guidance)
    return Suppressed(model, state.end_ids) if recipe.ban_eos else model


def passes(plan: Plan, state: DecodeState) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """At most two: rows that recompute everything, then rows that recompute their query.

    Yields the rows [b], the window positions that may be asked for [b, w], and the columns to compute [b, q],
    whose last w hold those positions.
    """
    full = (plan.full & ~state.done).nonzero().squeeze(1)
    if len(full):
        every = torch.arange(state.canvas.shape[1], device=full.device)
        yield full, state.positions.expand(len(full), -1), every.expand(len(full), -1)
    partial = (~plan.full & ~state.done).nonzero().squeeze(1)
    if len(partial):
        assert plan.query is not None, "a row without a full pass needs a query"
        query = plan.query[partial]
        yield partial, query, query + state.prompt_length


def gather(rows: Tensor, query: Tensor, columns: Tensor, plan: Plan, state: DecodeState) -> Inputs:
    """What the model is given for one pass."""
    keys = state.valid[rows]
    if plan.visible is not None:
        keys[:, state.prompt_length :] &= plan.visible[rows]
    last = torch.arange(columns.shape[1] - query.shape[1], columns.shape[1], device=rows.device)
    return Inputs(
        canvas=state.canvas[rows],
        places=state.places[rows],
        keys=keys,
        columns=columns,
        asked=last.expand_as(query),
        cache=state.cache and state.cache.view(rows),
        prompt=state.prompt_length,
    )
