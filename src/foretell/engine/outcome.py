"""A request while it is decoded (its row) and afterwards (its outcome), and the work that it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from foretell.engine.request import Request
from foretell.engine.trace import Recorder, Trace
from foretell.errors import ForetellError
from foretell.loop.decode import Step
from foretell.loop.state import DecodeState

Observer = Callable[[Step, int], None]  # called with a step and a row of the batch
Finish = Literal["complete", "settled", "eos"]  # all masks filled on schedule · stopped early · the text ended


@dataclass(frozen=True, slots=True)
class Usage:
    """Columns of forward passes: those that rows needed, and those that were computed for them."""

    columns_needed: int = 0
    columns_computed: int = 0  # including padding, and columns that only make a pass rectangular

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.columns_needed + other.columns_needed, self.columns_computed + other.columns_computed)

    @property
    def padding(self) -> float:
        """The share of computed columns that were not needed."""
        return 1 - self.columns_needed / self.columns_computed if self.columns_computed else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request that has been decoded."""

    ticket: int  # its place in the order of submission
    request: Request
    tokens: tuple[int, ...]  # the window
    steps: int
    forwards: int  # passes that computed something of it
    usage: Usage  # columns of these passes
    exit: int | None  # the step, from 0, at which the stopping rule settled
    finish: Finish
    seconds: float
    value: float | None  # what the stopping rule measured when it settled
    measure: str | None  # the name of that value
    forced: int  # tokens filled only because the budget ended
    trace: Trace | None


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that could not be decoded to its end."""

    ticket: int
    error: ForetellError


@dataclass(slots=True)
class Row:
    """A request that is being decoded."""

    ticket: int
    request: Request
    started: float
    observers: tuple[Observer, ...] = ()  # called after every step
    recorder: Recorder | None = None
    exit: int | None = None
    value: float | None = None
    measure: str | None = None

    def observe(self, step: Step, index: int) -> None:
        """Call the observers of this row, which is number `index` of the batch."""
        for observer in self.observers:
            observer(step, index)

    def settle(self, step: Step, index: int) -> None:
        """Note when and why this row, which is number `index` of the batch, was committed early."""
        self.exit = int(step.before.step[index])
        if step.verdict.value is not None:
            self.value, self.measure = float(step.verdict.value[index]), step.verdict.measure


def usage_of(rows: list[int], state: DecodeState, guided: bool) -> Usage:
    """Return the columns that some rows have taken so far; guidance runs every pass twice."""
    meters, times = state.meters, 2 if guided else 1
    return Usage(*(int(each[rows].sum()) * times for each in (meters.needed, meters.computed)))


def outcome_of(index: int, row: Row, last: Step) -> Outcome:
    """Return the outcome of a row that its `last` step finished."""
    guided, state = row.request.recipe.guidance > 0, last.after
    ended = state.rows.stop_at_eos and bool(state.ended[index].any())
    return Outcome(
        ticket=row.ticket,
        request=row.request,
        tokens=tuple(state.window[index].tolist()),
        steps=int(state.step[index]),
        forwards=int(state.meters.forwards[index]) * (2 if guided else 1),
        usage=usage_of([index], state, guided),
        exit=row.exit,
        finish="settled" if row.exit is not None else "eos" if ended else "complete",
        seconds=time.perf_counter() - row.started,
        value=row.value,
        measure=row.measure,
        forced=int(last.move.forced[index].sum()),
        trace=None if row.recorder is None else row.recorder.trace(state.mask_id, state.end_ids),
    )
