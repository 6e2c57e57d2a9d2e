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
from foretell.state import DecodeState, Plan, picked
from foretell.wrappers import Guided, Suppressed


class Pass(NamedTuple):
    """A forward pass to be made: some rows, and the window positions to compute of each."""

    rows: Tensor  # [b] in rising order
    query: Tensor  # [b, w] window positions; a row with fewer of its own has others behind them
    real: Tensor | None  # [b, w] its own; None is the whole window, in order
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
    return Plan(None if plan.full is None else plan.full | state.checking, query, visible)


def _needed(state: DecodeState) -> Tensor | None:
    """All but the masks behind an end of text, where those do not count. [B, N]"""
    return ~(state.blank & state.ended) if state.stop_at_eos else None


def passes(plan: Plan, state: DecodeState) -> Iterator[Pass]:
    """At most two: rows that recompute everything in sight, then rows that recompute their query."""
    alive = [row for row, over in enumerate(state.finished) if not over]
    full = set(alive) if plan.full is None else {row for row, whole in enumerate(plan.full.tolist()) if whole}
    if everything := [row for row in alive if row in full]:
        yield _whole(_rows(everything, state), plan.visible, state)
    if rest := [row for row in alive if row not in full]:
        assert plan.query is not None, "a row that does not recompute everything has a query"
        yield _some(_rows(rest, state), plan.query, prompt=False)


def _rows(chosen: list[int], state: DecodeState) -> Tensor:
    return state.rows if len(chosen) == len(state.rows) else torch.tensor(chosen, device=state.rows.device)


def _whole(rows: Tensor, visible: Tensor | None, state: DecodeState) -> Pass:
    if visible is None:
        return Pass(rows, state.positions.expand(len(rows), -1), None, prompt=True)
    return _some(rows, visible, prompt=True)


def _some(rows: Tensor, inside: Tensor, *, prompt: bool) -> Pass:
    """The positions `inside` [B, N] of some rows. They have different numbers of them, and a pass is a rectangle.

    A full pass is filled up with positions out of sight, which nothing attends to; a partial one repeats a position
    of its own, because it would overwrite the keys and values of any other.
    """
    mine = picked(inside, rows)
    count = mine.sum(dim=1, keepdim=True)
    width = int(count.max())
    query = mine.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
    real = torch.arange(width, device=rows.device) < count
    return Pass(rows, query if prompt else torch.where(real, query, query[:, :1]), real, prompt)


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


def _run(model: Denoiser, one: Pass, keys: Tensor, state: DecodeState, *, cached: bool) -> Part:
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
    )
    return Part(one.rows, one.query, one.real, model(inputs))


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
    plan = Plan(visible=_needed(state))
    return _run(model, _whole(rows, plan.visible, state), visible_keys(plan, state), state, cached=False)


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
