"""One step's worth of forward passes, from a cache policy's plan to beliefs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from foretell.prediction import Part, Prediction
from foretell.protocols import Denoiser, Inputs
from foretell.recipe import Recipe
from foretell.state import DecodeState, Plan
from foretell.wrappers import Guided, Suppressed


class Pass(NamedTuple):
    """A forward pass to be made: some rows, and the window positions to compute of each."""

    rows: Tensor  # [b]
    query: Tensor  # [b, w] window positions; a row with fewer of its own has others behind them
    real: Tensor | None  # [b, w] its own; None is all of them
    prompt: bool  # whether the prompt is computed as well


def predict(model: Denoiser, state: DecodeState, recipe: Recipe, wanted: Tensor) -> Prediction:
    """Run the model where the cache policy asks for it and where beliefs are `wanted` [B, N].

    Rows that are done are not computed at all.
    """
    asked = as_asked(model, state, recipe)
    if recipe.cache.stores and state.cache is None:
        state.cache = asked.new_cache(*state.canvas.shape)
    plan = binding(recipe.cache(state), wanted, state)
    keys = visible_keys(plan, state)
    parts = [_run(asked, one, keys, state, cached=True) for one in passes(plan, state)]
    if recipe.cache.stores:
        _remember(plan, state)
    beliefs = Prediction(parts, state, recipe.sample, partial(_run_whole, asked, state))
    beliefs.read(wanted)
    return beliefs


def as_asked(model: Denoiser, state: DecodeState, recipe: Recipe) -> Denoiser:
    """The model under the recipe's guidance and bans."""
    if recipe.guidance:
        model = Guided(model, recipe.guidance)
    return Suppressed(model, state.end_ids) if recipe.ban_eos else model


def binding(plan: Plan, wanted: Tensor, state: DecodeState) -> Plan:
    """The plan with what no policy may leave out, and without what nobody needs.

    Filled positions are seen and wanted ones computed; so is what comes into sight for the first time. Behind a
    committed end of text there is nothing, when the recipe says so. Rows that look over a commit see all of it.
    """
    visible, needed, query = plan.visible, _needed(state), plan.query
    if visible is not None:
        visible = visible | wanted | ~state.blank | state.answer | state.checking[:, None]
    if needed is not None:
        visible = needed if visible is None else visible & needed
    if query is not None:
        query = query | wanted | ~state.held
        query = query if visible is None else query & visible
    return Plan(plan.full | state.checking, query, visible)


def _needed(state: DecodeState) -> Tensor | None:
    """All but the masks behind an end of text, where those do not count. [B, N]"""
    return ~(state.blank & state.ended) if state.stop_at_eos else None


def passes(plan: Plan, state: DecodeState) -> Iterator[Pass]:
    """At most two: rows that recompute everything in sight, then rows that recompute their query."""
    alive = ~state.done
    full = (plan.full & alive).nonzero().squeeze(1)
    if len(full):
        yield _whole(full, plan.visible, state)
    if plan.query is None:
        return
    rest = (~plan.full & alive).nonzero().squeeze(1)
    if len(rest):
        yield _some(rest, plan.query, prompt=False)


def _whole(rows: Tensor, visible: Tensor | None, state: DecodeState) -> Pass:
    if visible is None:
        return Pass(rows, state.positions.expand(len(rows), -1), None, prompt=True)
    return _some(rows, visible, prompt=True)


def _some(rows: Tensor, inside: Tensor, *, prompt: bool) -> Pass:
    """The positions `inside` [B, N] of some rows. They have different numbers of them, and a pass is a rectangle.

    A full pass is filled up with positions out of sight, which nothing attends to; a partial one repeats a position
    of its own, because it would overwrite the keys and values of any other.
    """
    mine = inside[rows]
    count = mine.sum(dim=1, keepdim=True)
    width = int(count.max())
    query = mine.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
    real = torch.arange(width, device=rows.device) < count
    return Pass(rows, query if prompt else torch.where(real, query, query[:, :1]), real, prompt)


def visible_keys(plan: Plan, state: DecodeState) -> Tensor:
    """Columns that may be attended: real tokens in sight, of which something is known. [B, L]"""
    seen = plan.visible
    if plan.query is not None:
        known = torch.where(plan.full[:, None], True, state.held | plan.query)
        seen = known if seen is None else seen & known
    if seen is None:
        return state.valid
    keys = state.valid.clone()
    keys[:, state.prompt_length :] &= seen
    return keys


def _run(model: Denoiser, one: Pass, keys: Tensor, state: DecodeState, *, cached: bool) -> Part:
    columns = one.query + state.prompt_length
    if one.prompt:
        prompt = torch.arange(state.prompt_length, device=columns.device).expand(len(one.rows), -1)
        columns = torch.cat([prompt, columns], dim=1)
    _count(one, state)
    last = torch.arange(columns.shape[1] - one.query.shape[1], columns.shape[1], device=columns.device)
    inputs = Inputs(
        canvas=state.canvas[one.rows],
        places=state.places[one.rows],
        keys=keys[one.rows],
        columns=columns,
        asked=last.expand_as(one.query),
        cache=state.cache.view(one.rows) if cached and state.cache is not None else None,
        prompt=state.prompt_length,
    )
    return Part(one.rows, one.query, one.real, model(inputs))


def _run_whole(model: Denoiser, state: DecodeState, rows: Tensor) -> Part:
    """A pass over the whole canvas, for rows that commit what the step's own passes did not compute."""
    plan = Plan(torch.ones_like(state.done), visible=_needed(state))
    return _run(model, _whole(rows, plan.visible, state), visible_keys(plan, state), state, cached=False)


def _count(one: Pass, state: DecodeState) -> None:
    state.forwards[one.rows] += 1
    prompt = state.valid[one.rows, : state.prompt_length].sum(dim=1) if one.prompt else 0
    state.computed[one.rows] += prompt + (one.query.shape[1] if one.real is None else one.real.sum(dim=1))


def _remember(plan: Plan, state: DecodeState) -> None:
    """Note of which positions the cache now holds keys and values, and since when."""
    assert plan.query is not None, "a cache that stores says what it recomputes"
    full, alive = plan.full, ~state.done
    seen = torch.ones_like(state.held) if plan.visible is None else plan.visible
    state.held = torch.where(alive[:, None], torch.where(full[:, None], seen, state.held | plan.query), state.held)
    fresh = torch.where(full[:, None], seen, state.current | plan.query)
    state.current = torch.where(alive[:, None], fresh, state.current)
    state.cached_block = torch.where(full & alive, state.block, state.cached_block)
    state.cached_step = torch.where(full & alive, state.step, state.cached_step)
