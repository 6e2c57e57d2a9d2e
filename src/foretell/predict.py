"""One step's worth of forward passes, from a cache policy's plan to beliefs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from foretell.outlook import Outlook, Pass, needed, whole_pass
from foretell.prediction import Part, Prediction
from foretell.protocols import Denoiser, Inputs
from foretell.recipe import Recipe
from foretell.state import DecodeState, Plan, picked
from foretell.wrappers import Guided, Suppressed


def predict(model: Denoiser, state: DecodeState, recipe: Recipe, view: Outlook) -> Prediction:
    """Run the model where the cache policy asks for it, and make beliefs of what the policies read.

    Rows that are done are not computed at all.
    """
    asked = as_asked(model, state, recipe)
    if recipe.cache.stores and state.cache is None:
        state.cache = asked.new_cache(*state.canvas.shape)
    keys = visible_keys(view.plan, state)
    parts = [_run(asked, one, keys, state, cached=True, lead=view.plan.lead) for one in view.passes]
    if recipe.cache.stores:
        _remember(view.plan, state)
    beliefs = Prediction(parts, state, recipe.sample, partial(_run_whole, asked, state))
    for part, one in zip(parts, view.passes, strict=True):
        beliefs.read(part, *one.seek)
    return beliefs


def as_asked(model: Denoiser, state: DecodeState, recipe: Recipe) -> Denoiser:
    """The model under the recipe's guidance and bans."""
    if recipe.guidance:
        model = Guided(model, recipe.guidance, recipe.guidance_pins)
    if not recipe.ban_eos:
        return model
    return Suppressed(model, state.end_ids[:1] if recipe.ban_eos == "first" else state.end_ids)


def visible_keys(plan: Plan, state: DecodeState) -> Tensor:
    """Columns that may be attended: real tokens in sight, of which something is known. [B, L]"""
    seen = plan.visible
    if plan.query is not None:
        assert plan.full is not None, "a query is for the rows that are not recomputed in full"
        known = torch.where(plan.full[:, None], True, state.held | plan.query)
        seen = known if seen is None else seen & known
    if seen is None:
        return state.valid
    keys = state.valid.clone()
    keys[:, state.prompt_length :] &= seen
    return keys


def _run(model: Denoiser, one: Pass, keys: Tensor, state: DecodeState, *, cached: bool, lead: bool = True) -> Part:
    columns = _columns(one, state)
    _count(one, columns.shape[1], state)
    front = state.prompt_length if one.prompt else 0
    view = None
    if cached and state.cache is not None:
        view = state.cache.view(None if len(one.rows) == len(state.rows) else one.rows)
    inputs = Inputs(
        canvas=picked(state.canvas, one.rows),
        places=picked(state.places, one.rows),
        keys=picked(keys, one.rows),
        columns=columns,
        asked=state.columns[front : columns.shape[1]].expand_as(one.query),
        cache=view,
        prompt=state.prompt_length,
        read=None if lead or one.prompt else _read(one, state),
        pinned=picked(state.pinned, one.rows),
    )
    return Part(one.rows, one.query, one.real, model(inputs))


def _read(one: Pass, state: DecodeState) -> Tensor:
    """The columns of a pass that policies read, or that hold a mask, which a commit reads. [b, w]"""
    read = picked(state.blank, one.rows).gather(1, one.query)
    read[one.seek] = True
    return read


def _columns(one: Pass, state: DecodeState) -> Tensor:
    """The canvas columns of a pass, those that are asked for last. [b, q]"""
    if one.prompt and one.real is None:
        return state.columns.expand(len(one.rows), -1)
    columns = one.query + state.prompt_length
    if not one.prompt:
        return columns
    return torch.cat([state.columns[: state.prompt_length].expand(len(one.rows), -1), columns], dim=1)


def _run_whole(model: Denoiser, state: DecodeState, rows: Tensor) -> Part:
    """A pass over the whole canvas, for rows that commit what the step's own passes did not compute."""
    plan = Plan(visible=needed(state))
    visible = None if plan.visible is None else plan.visible.cpu()
    one = whole_pass(rows.tolist(), torch.zeros(state.draft.shape, dtype=torch.bool), visible, state)
    return _run(model, one, visible_keys(plan, state), state, cached=False)


def _count(one: Pass, width: int, state: DecodeState) -> None:
    """Note a pass of `width` columns, and how many of those its rows needed."""
    size = torch.full_like(one.rows, one.query.shape[1]) if one.real is None else one.real.sum(dim=1)
    needed = size + picked(state.prompt_sizes, one.rows) if one.prompt else size
    state.forwards.index_add_(0, one.rows, torch.ones_like(one.rows))
    state.computed.index_add_(0, one.rows, needed)
    state.spent.index_add_(0, one.rows, torch.full_like(one.rows, width))


def _remember(plan: Plan, state: DecodeState) -> None:
    """Note of which positions the cache now holds keys and values, and since when."""
    assert plan.full is not None, "a cache that stores says what it recomputes"
    assert plan.query is not None, "a cache that stores says what it recomputes"
    full, alive = plan.full, ~state.done
    seen = torch.ones_like(state.held) if plan.visible is None else plan.visible
    state.held = torch.where(alive[:, None], torch.where(full[:, None], seen, state.held | plan.query), state.held)
    fresh = torch.where(full[:, None], seen, state.current | plan.query)
    state.current = torch.where(alive[:, None], fresh, state.current)
    state.cached_block = torch.where(full & alive, state.block, state.cached_block)
    state.cached_step = torch.where(full & alive, state.step, state.cached_step)
