"""What becomes of a request: its row while it is in flight, its outcome, and the work that it took."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from foretell.decode import Step
from foretell.engine.trace import Recorder, Trace
from foretell.layout import Request
from foretell.state import DecodeState

Finish = Literal["complete", "settled", "eos"]  # the schedule ran out · the stopping rule fired · the text ended


@dataclass(frozen=True, slots=True)
class Usage:
    """Columns of forward passes: those that rows needed, and those that were computed for them."""

    computed: int = 0  # needed
    spent: int = 0  # padding, and what fills a pass up to a rectangle, included

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.computed + other.computed, self.spent + other.spent)

    @property
    def padding(self) -> float:
        """The share of the columns that nobody needed."""
        return 1 - self.computed / self.spent if self.spent else 0.0


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
    measure: str | None  # what that is called
    forced: int  # tokens filled only because the budget ended
    trace: Trace | None


@dataclass(slots=True)
class Row:
    """A request in flight."""

    ticket: int
    request: Request
    started: float
    recorder: Recorder | None = None
    exit: int | None = None
    value: float | None = None
    measure: str | None = None

    @classmethod
    def start(cls, ticket: int, request: Request, *, record: bool) -> Row:
        return cls(ticket, request, time.perf_counter(), Recorder(request) if record else None)

    def settle(self, taken: Step, index: int) -> None:
        """Keep why this row, which is number `index` of the batch, was committed early."""
        self.exit = int(taken.index[index])
        if taken.verdict.value is not None:
            self.value, self.measure = float(taken.verdict.value[index]), taken.verdict.measure


def usage_of(rows: list[int], state: DecodeState, guided: bool) -> Usage:
    """What some rows have taken by now; guidance makes every pass twice."""
    computed, spent = (int(each[rows].sum()) * (2 if guided else 1) for each in (state.computed, state.spent))
    return Usage(computed, spent)


def outcome_of(index: int, row: Row, state: DecodeState, last: Step) -> Outcome:
    """What became of a row that its `last` step finished."""
    guided = row.request.recipe.guidance > 0
    ended = state.stop_at_eos and bool(state.ended[index].any())
    return Outcome(
        ticket=row.ticket,
        request=row.request,
        tokens=tuple(state.window[index].tolist()),
        steps=int(state.step[index]),
        forwards=int(state.forwards[index]) * (2 if guided else 1),
        usage=usage_of([index], state, guided),
        exit=row.exit,
        finish="settled" if row.exit is not None else "eos" if ended else "complete",
        seconds=time.perf_counter() - row.started,
        value=row.value,
        measure=row.measure,
        forced=int(last.forced[index].sum()),
        trace=None if row.recorder is None else row.recorder.trace(state.mask_id, state.end_ids),
    )
