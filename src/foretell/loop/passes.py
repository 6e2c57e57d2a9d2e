"""What the next step computes: its forward passes, planned on the device and copied to the host in one transfer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from foretell.loop.checks import ask_cache, ask_reads
from foretell.loop.parts import Plan
from foretell.loop.protocols import Recipe
from foretell.loop.slots import Slot, TokenAutomaton
from foretell.loop.view import StateView


class SlotGroup(NamedTuple):
    """Slots of one automaton and length in the rows of a pass."""

    automaton: TokenAutomaton
    keys: tuple[tuple[int, int], ...]  # row of the state and offset of each slot
    row: Tensor  # [R] rows of the pass
    at: Tensor  # [R, W] columns of the pass's query


class Pass(NamedTuple):
    """One forward pass: some rows, and the window positions to compute for each."""

    rows: Tensor  # [b] in rising order
    query: Tensor  # [b, w] window positions; rows with fewer positions of their own are padded with others
    real: Tensor | None  # [b, w] true on a row's own positions; None means the whole window, in order
    prompt: bool  # whether the prompt is computed as well
    read: tuple[Tensor, Tensor]  # [n] each, the rows of the pass and the columns of `query` that policies read
    slots: tuple[SlotGroup, ...]  # their positions are read too, and not part of `read`


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All that the host has to know about a state before its next step. Creating it waits for the device once."""

    plan: Plan
    passes: tuple[Pass, ...]  # at most two: rows that recompute everything visible, rows that recompute a query
    finished: tuple[bool, ...]  # [B] rows that are done
    ending: bool  # whether a row certainly commits: its budget ends, or it checks an earlier commit
    heard: bool  # whether any row of the `heard` that `plan_step` was given is true
    failed: tuple[int, ...]  # rows of the `failed` that `plan_step` was given which are true


class _OnHost(NamedTuple):
    """The parts of a plan that decide what runs, on the host. All bool."""

    finished: list[bool]  # [B]
    ending: list[bool]  # [B]
    heard: list[bool]  # [B]
    failed: list[bool]  # [B]
    full: list[bool]  # [B]
    wanted: Tensor  # [B, N]
    query: Tensor | None  # [B, N]
    visible: Tensor | None  # [B, N]


def plan_step(state: StateView, recipe: Recipe, heard: Tensor | None = None, failed: Tensor | None = None) -> StepPlan:
    """Plan the next step. The same transfer reports whether any row of `heard` [B] is true, and which of `failed`."""
    alive = ~state.done
    watched = (
        torch.where(state.checking[:, None], state.recheck.committed, ask_reads(recipe.stop, state)) & alive[:, None]
    )
    wanted = state.eligible | watched | (state.rows.slotted & alive[:, None])
    plan = complete_plan(ask_cache(recipe.cache, state), wanted, state)
    host = _fetch(state, plan, wanted, heard, failed)
    return StepPlan(
        plan=plan,
        passes=tuple(_make_passes(host, state)),
        finished=tuple(host.finished),
        ending=any(host.ending),
        heard=any(host.heard),
        failed=tuple(row for row, bad in enumerate(host.failed) if bad),
    )


def _fetch(state: StateView, plan: Plan, wanted: Tensor, heard: Tensor | None, failed: Tensor | None) -> _OnHost:
    done = state.done
    ending = ~done & (state.checking | state.last)
    flags = (
        done,
        ending,
        torch.zeros_like(done) if heard is None else heard,
        torch.zeros_like(done) if failed is None else failed,
        torch.ones_like(done) if plan.full is None else plan.full,
    )
    grids = [wanted, *(grid for grid in (plan.query, plan.visible) if grid is not None)]
    # The only place of a step at which Python waits for the device.
    here = torch.cat([torch.stack(flags, dim=1), *grids], dim=1).cpu()
    finished, ends, commits, fails, full = here[:, : len(flags)].T.tolist()
    parts = iter(torch.split(here[:, len(flags) :], state.length, dim=1))
    read = next(parts)
    query = None if plan.query is None else next(parts)
    return _OnHost(finished, ends, commits, fails, full, read, query, None if plan.visible is None else next(parts))


def _make_passes(host: _OnHost, state: StateView) -> Iterator[Pass]:
    alive = [row for row, over in enumerate(host.finished) if not over]
    if everything := [row for row in alive if host.full[row]]:
        yield full_pass(everything, host.wanted, host.visible, state)
    if rest := [row for row in alive if not host.full[row]]:
        assert host.query is not None, "a row that does not recompute everything has a query"
        yield _partial_pass(rest, host.wanted, host.query, state, prompt=False)


def full_pass(rows: Sequence[int], wanted: Tensor, visible: Tensor | None, state: StateView) -> Pass:
    """Make a pass over everything `visible` [B, N] of some rows. `visible` and `wanted` [B, N] are on the host."""
    if visible is not None:
        return _partial_pass(rows, wanted, visible, state, prompt=True)
    read = _without_slots(wanted, state)[list(rows)].nonzero(as_tuple=True)
    groups = _group_slots(rows, None, state)
    query = state.positions.expand(len(rows), -1)
    return Pass(_to_rows(rows, state), query, None, True, _to_device(read, state), groups)


def _partial_pass(rows: Sequence[int], wanted: Tensor, inside: Tensor, state: StateView, *, prompt: bool) -> Pass:
    """Make a pass over the positions `inside` [B, N] of some rows, padded because their numbers differ.

    A full pass is padded with invisible positions, which nothing attends to. A partial pass repeats a position of the
    row, because the keys and values of any other position would be overwritten.
    """
    mine = inside[list(rows)]
    count = mine.sum(dim=1, keepdim=True)
    width = int(count.max())
    query = mine.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
    real = torch.arange(width) < count
    query = query if prompt else torch.where(real, query, query[:, :1])
    read = (_without_slots(wanted, state)[list(rows)].gather(1, query) & real).nonzero(as_tuple=True)
    groups = _group_slots(rows, query, state)
    query, real = _to_device((query, real), state)
    return Pass(_to_rows(rows, state), query, real, prompt, _to_device(read, state), groups)


def _without_slots(wanted: Tensor, state: StateView) -> Tensor:
    slotted = state.rows.slotted_on_host
    return wanted if slotted is None else wanted & ~slotted


def _group_slots(rows: Sequence[int], query: Tensor | None, state: StateView) -> tuple[SlotGroup, ...]:
    """Group the slots of some rows, and find their positions in the query [b, w] of a pass; None: the whole window."""
    found: dict[tuple[int, int], list[tuple[int, int, Slot]]] = {}
    for place, row in enumerate(rows):
        for slot in state.rows.slots[row]:
            found.setdefault((id(slot.automaton), slot.length), []).append((place, row, slot))
    made = []
    for group in found.values():
        places = torch.tensor([place for place, _, _ in group])
        at = torch.stack([torch.arange(slot.offset, slot.end) for _, _, slot in group])
        if query is not None:  # a slot's positions are wanted, so each of them is in the query
            at = (query[places][:, None, :] == at[..., None]).to(torch.int8).argmax(dim=2)
        places, at = _to_device((places, at), state)
        automaton = group[0][2].automaton.on(state.window.device)
        made.append(SlotGroup(automaton, tuple((one, slot.offset) for _, one, slot in group), places, at))
    return tuple(made)


def _to_rows(chosen: Sequence[int], state: StateView) -> Tensor:
    index = state.rows.index
    return index if len(chosen) == len(index) else _to_device((torch.tensor(chosen),) * 2, state)[0]


def _to_device(pair: tuple[Tensor, ...], state: StateView) -> tuple[Tensor, Tensor]:
    """Copy from the host to the device, without waiting."""
    first, second = (one.to(state.window.device, non_blocking=True) for one in pair)
    return first, second


def complete_plan(plan: Plan, wanted: Tensor, state: StateView) -> Plan:
    """Add to a plan what no policy may leave out, and remove what is not needed.

    Filled positions are visible. Wanted positions are computed, and so are positions that become visible for the first
    time. With `stop_at_eos`, masks after the end of the text are left out. Rows that check a commit see the whole text.
    """
    visible, worth, query = plan.visible, needed(state), plan.query
    if visible is not None:
        visible = visible | wanted | ~state.blank | state.answer | state.checking[:, None]
    if worth is not None:
        visible = worth if visible is None else visible & worth
    if query is not None:
        query = query | wanted | ~state.ledger.cached
        query = query if visible is None else query & visible
    full = None if plan.full is None else plan.full | state.checking
    return plan._replace(full=full, query=query, visible=visible)


def needed(state: StateView) -> Tensor | None:
    """Return all positions but the masks after an end of text; None if those matter too. [B, N]"""
    return ~(state.blank & state.ended) if state.rows.stop_at_eos else None
