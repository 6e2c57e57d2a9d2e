"""What the next step looks at, and what of that Python has to know: fetched from the device in one go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from foretell.derived import Stamp, provide, stamp
from foretell.policies.region.locate import locate_answer
from foretell.recipe import Recipe
from foretell.state import PER_ROW, DecodeState, Plan

_KEY = "outlook"


class Pass(NamedTuple):
    """A forward pass to be made: some rows, and the window positions to compute of each."""

    rows: Tensor  # [b] in rising order
    query: Tensor  # [b, w] window positions; a row with fewer of its own has others behind them
    real: Tensor | None  # [b, w] its own; None is the whole window, in order
    prompt: bool  # whether the prompt is computed as well
    seek: tuple[Tensor, Tensor]  # [n] each, the rows of the pass and the columns of `query` that policies read


@dataclass(frozen=True, slots=True)
class Outlook:
    """All that the loop has to know about a state before its next step; asking costs one wait for the device."""

    plan: Plan
    passes: tuple[Pass, ...]  # at most two: rows that recompute everything in sight, and rows that recompute a query
    ending: bool  # whether a row will commit in any case: its budget is over, or it looks over an earlier commit
    settled: bool  # whether a row of the step before is to commit


class _Told(NamedTuple):
    """The same on the host. All bool."""

    finished: list[bool]  # [B]
    ending: list[bool]  # [B]
    settled: list[bool]  # [B]
    full: list[bool]  # [B]
    wanted: Tensor  # [B, N]
    query: Tensor | None  # [B, N]
    visible: Tensor | None  # [B, N]


def outlook_of(state: DecodeState, recipe: Recipe) -> Outlook:
    """The outlook that the step before left behind, or a new one where rows have come or gone since."""
    kept: tuple[Outlook, Recipe, Stamp] | None = state.kept.get(_KEY)
    if kept is not None and kept[1] == recipe and kept[2].holds(state):
        return kept[0]
    return look_ahead(state, recipe)


def look_ahead(state: DecodeState, recipe: Recipe, commit: Tensor | None = None) -> Outlook:
    """Work out the next step's region, what its policies read and its passes; learn if any row is to `commit` [B]."""
    if not recipe.region.sought:  # such an answer stands where the last step found it, until the next one looks
        state.answer = locate_answer(recipe.region, state)
    alive = ~state.done
    watched = torch.where(state.checking[:, None], state.hasty, recipe.stop.reads(state)) & alive[:, None]
    wanted = state.eligible | watched
    plan = binding(recipe.cache(state), wanted, state)
    told = _fetch(state, plan, wanted, commit)
    made = Outlook(plan, tuple(_passes(told, state)), any(told.ending), any(told.settled))
    provide(state, "finished", told.finished)
    state.kept[_KEY] = made, recipe, stamp(state, PER_ROW)
    return made


def _fetch(state: DecodeState, plan: Plan, wanted: Tensor, commit: Tensor | None) -> _Told:
    done = state.done
    ending = ~done & (state.checking | (state.step + 1 >= state.budget))
    flags = (
        done,
        ending,
        torch.zeros_like(done) if commit is None else commit,
        torch.ones_like(done) if plan.full is None else plan.full,
    )
    grids = [wanted, *(grid for grid in (plan.query, plan.visible) if grid is not None)]
    # The one moment of a step at which Python waits for the device.
    here = torch.cat([torch.stack(flags, dim=1), *grids], dim=1).cpu()
    finished, ends, settled, full = here[:, : len(flags)].T.tolist()
    parts = iter(torch.split(here[:, len(flags) :], state.length, dim=1))
    asked = next(parts)
    query = None if plan.query is None else next(parts)
    return _Told(finished, ends, settled, full, asked, query, None if plan.visible is None else next(parts))


def _passes(told: _Told, state: DecodeState) -> Iterator[Pass]:
    alive = [row for row, over in enumerate(told.finished) if not over]
    if everything := [row for row in alive if told.full[row]]:
        yield whole_pass(everything, told.wanted, told.visible, state)
    if rest := [row for row in alive if not told.full[row]]:
        assert told.query is not None, "a row that does not recompute everything has a query"
        yield _some(rest, told.wanted, told.query, state, prompt=False)


def whole_pass(rows: Sequence[int], wanted: Tensor, visible: Tensor | None, state: DecodeState) -> Pass:
    """A pass over everything `visible` [B, N] of some rows; this and `wanted` [B, N] are on the host."""
    if visible is not None:
        return _some(rows, wanted, visible, state, prompt=True)
    seek = wanted[list(rows)].nonzero(as_tuple=True)
    return Pass(_rows(rows, state), state.positions.expand(len(rows), -1), None, True, _there(seek, state))


def _some(rows: Sequence[int], wanted: Tensor, inside: Tensor, state: DecodeState, *, prompt: bool) -> Pass:
    """The positions `inside` [B, N] of some rows. They have different numbers of them, and a pass is a rectangle.

    A full pass is filled up with positions out of sight, which nothing attends to; a partial one repeats a position
    of its own, because it would overwrite the keys and values of any other.
    """
    mine = inside[list(rows)]
    count = mine.sum(dim=1, keepdim=True)
    width = int(count.max())
    query = mine.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
    real = torch.arange(width) < count
    query = query if prompt else torch.where(real, query, query[:, :1])
    seek = (wanted[list(rows)].gather(1, query) & real).nonzero(as_tuple=True)
    query, real = _there((query, real), state)
    return Pass(_rows(rows, state), query, real, prompt, _there(seek, state))


def _rows(chosen: Sequence[int], state: DecodeState) -> Tensor:
    return state.rows if len(chosen) == len(state.rows) else _there((torch.tensor(chosen),) * 2, state)[0]


def _there(pair: tuple[Tensor, ...], state: DecodeState) -> tuple[Tensor, Tensor]:
    """From the host to the device, which waits for nothing."""
    first, second = (one.to(state.canvas.device, non_blocking=True) for one in pair)
    return first, second


def binding(plan: Plan, wanted: Tensor, state: DecodeState) -> Plan:
    """The plan with what no policy may leave out, and without what nobody needs.

    Filled positions are seen and wanted ones computed; so is what comes into sight for the first time. Behind a
    committed end of text there is nothing, when the recipe says so. Rows that look over a commit see all of it.
    """
    visible, worth, query = plan.visible, needed(state), plan.query
    if visible is not None:
        visible = visible | wanted | ~state.blank | state.answer | state.checking[:, None]
    if worth is not None:
        visible = worth if visible is None else visible & worth
    if query is not None:
        query = query | wanted | ~state.held
        query = query if visible is None else query & visible
    return plan._replace(full=None if plan.full is None else plan.full | state.checking, query=query, visible=visible)


def needed(state: DecodeState) -> Tensor | None:
    """All but the masks behind an end of text, where those do not count. [B, N]"""
    return ~(state.blank & state.ended) if state.stop_at_eos else None
