"""The forward passes of one step, from a plan to beliefs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from foretell.loop.beliefs import PassOutput, StepBeliefs
from foretell.loop.parts import KVStore, Ledger, Meters, Plan, Work, rows_of
from foretell.loop.passes import Pass, StepPlan, full_pass, needed
from foretell.loop.protocols import Denoiser, Inputs, Recipe
from foretell.loop.view import StateView
from foretell.loop.wrappers import Guided, Suppressed


def run_passes(model: Denoiser, state: StateView, recipe: Recipe, plan: StepPlan) -> StepBeliefs:
    """Run the model as planned, and form beliefs about what policies read. Rows that are done are not computed."""
    denoiser, store = constrain(model, state, recipe), state.store
    if recipe.cache.stores and store is None:
        store = denoiser.new_cache(*state.canvas.shape)
    attend, meters = attended_columns(plan.plan, state), state.meters
    outputs = [_run(denoiser, one, attend, state, store, lead=plan.plan.lead) for one in plan.passes]
    for one in plan.passes:
        meters = _count(meters, one, state)
    work = Work(note_cached(plan.plan, state) if recipe.cache.stores else state.ledger, meters, store)
    beliefs = StepBeliefs(outputs, state, recipe.sample, partial(_run_everything, denoiser, state), work)
    for output, one in zip(outputs, plan.passes, strict=True):
        beliefs.read(output, *one.read)
        for group in one.slots:
            beliefs.read_slots(output, group)
    return beliefs


def constrain(model: Denoiser, state: StateView, recipe: Recipe) -> Denoiser:
    """Wrap the model with the recipe's guidance and banned tokens."""
    if recipe.guidance:
        model = Guided(model, recipe.guidance, recipe.guidance_pins)
    if not recipe.ban_eos:
        return model
    return Suppressed(model, state.end_ids[:1] if recipe.ban_eos == "first" else state.end_ids)


def attended_columns(plan: Plan, state: StateView) -> Tensor:
    """Return the columns that may be attended: visible tokens that are computed or cached. [B, L]"""
    seen = plan.visible
    if plan.query is not None:
        assert plan.full is not None, "a query is for the rows that are not recomputed in full"
        known = torch.where(plan.full[:, None], True, state.ledger.cached | plan.query)
        seen = known if seen is None else seen & known
    if seen is None:
        return state.valid
    columns = state.valid.clone()
    columns[:, state.prompt_length :] &= seen
    return columns


def _run(
    model: Denoiser, one: Pass, attend: Tensor, state: StateView, store: KVStore | None, *, lead: bool = True
) -> PassOutput:
    columns = _columns(one, state)
    first = state.prompt_length if one.prompt else 0
    inputs = Inputs(
        canvas=rows_of(state.canvas, one.rows),
        positions=rows_of(state.rows.text_positions, one.rows),
        attend=rows_of(attend, one.rows),
        columns=columns,
        wanted=state.rows.columns[first : columns.shape[1]].expand_as(one.query),
        cache=store and store.view(None if len(one.rows) == len(state.window) else one.rows),
        prompt=state.prompt_length,
        read=None if lead or one.prompt else _read(one, state),
        pinned=rows_of(state.pinned, one.rows),
    )
    return PassOutput(one.rows, one.query, one.real, model(inputs))


def _read(one: Pass, state: StateView) -> Tensor:
    """Return which columns of a pass are read by policies, or hold a mask, which a commit reads. [b, w]"""
    read = rows_of(state.blank, one.rows).gather(1, one.query)
    read[one.read] = True
    return read


def _columns(one: Pass, state: StateView) -> Tensor:
    """Return the canvas columns of a pass; the window comes last. [b, q]"""
    if one.prompt and one.real is None:
        return state.rows.columns.expand(len(one.rows), -1)
    columns = one.query + state.prompt_length
    if not one.prompt:
        return columns
    return torch.cat([state.rows.columns[: state.prompt_length].expand(len(one.rows), -1), columns], dim=1)


def _run_everything(model: Denoiser, state: StateView, rows: Tensor, meters: Meters) -> tuple[PassOutput, Meters]:
    """Run a pass over the whole canvas, for rows that commit what the step's own passes did not compute."""
    plan = Plan(visible=needed(state))
    visible = None if plan.visible is None else plan.visible.cpu()
    one = full_pass(rows.tolist(), torch.zeros(state.window.shape, dtype=torch.bool), visible, state)
    return _run(model, one, attended_columns(plan, state), state, None), _count(meters, one, state)


def _count(meters: Meters, one: Pass, state: StateView) -> Meters:
    """Count a pass and its columns."""
    width = one.query.shape[1]
    own = rows_of(state.rows.window_sizes, one.rows) if one.real is None else one.real.sum(dim=1)
    if not one.prompt:
        return meters.add(one.rows, own, width)
    return meters.add(one.rows, own + rows_of(state.rows.prompt_sizes, one.rows), width + state.prompt_length)


def note_cached(plan: Plan, state: StateView) -> Ledger:
    """Return what the store holds after the planned passes, and when it was computed."""
    assert plan.full is not None, "a cache that stores says what it recomputes"
    assert plan.query is not None, "a cache that stores says what it recomputes"
    full, alive, ledger = plan.full, ~state.done, state.ledger
    seen = torch.ones_like(ledger.cached) if plan.visible is None else plan.visible
    cached = torch.where(full[:, None], seen, ledger.cached | plan.query)
    fresh = torch.where(full[:, None], seen, ledger.fresh | plan.query)
    return Ledger(
        cached=torch.where(alive[:, None], cached, ledger.cached),
        fresh=torch.where(alive[:, None], fresh, ledger.fresh),
        block=torch.where(full & alive, state.block, ledger.block),
        step=torch.where(full & alive, state.step, ledger.step),
    )
