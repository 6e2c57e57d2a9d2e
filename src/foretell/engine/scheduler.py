"""Batching: rows join when there is room and leave the moment they are done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch

from foretell.decode import Step, denoise_step
from foretell.engine.trace import Recorder, Trace
from foretell.layout import Request, lay_out
from foretell.protocols import Denoiser
from foretell.state import DecodeState
from foretell.words import Words

Finish = Literal["complete", "settled", "eos"]  # the schedule ran out · the stopping rule fired · the text ended


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request that has been decoded."""

    ticket: int  # its place in the order of submission
    request: Request
    tokens: tuple[int, ...]  # the window
    steps: int
    forwards: int  # passes that computed something of it
    computed: int  # columns that these computed
    exit: int | None  # the step, from 0, at which the stopping rule settled
    finish: Finish
    seconds: float
    gap: float | None  # what the stopping rule measured when it settled
    trace: Trace | None


@dataclass(slots=True)
class Row:
    """A request in flight."""

    ticket: int
    request: Request
    started: float
    recorder: Recorder | None = None
    exit: int | None = None
    gap: float | None = None

    def observe(self, taken: Step, index: int) -> None:
        """Keep what will be told of this row, which is number `index` of the batch."""
        if self.recorder is not None:
            self.recorder.observe(taken, index)
        if taken.settled[index]:
            self.exit = int(taken.index[index])
            self.gap = None if taken.verdict.value is None else float(taken.verdict.value[index])

    def trace(self, state: DecodeState) -> Trace | None:
        return None if self.recorder is None else self.recorder.trace(state.mask_id, state.end_ids)


@dataclass(slots=True)
class Scheduler:
    """One batch at a time; its rows share a recipe and a window length, and nothing else."""

    model: Denoiser
    end_ids: tuple[int, ...] = ()
    max_batch: int = 8
    record: bool = False  # observe every position and hand out traces
    device: torch.device | str = "cpu"
    words: Words | None = None  # how tokens are written, for recipes that look for the answer in the text
    waiting: deque[tuple[int, Request]] = field(default_factory=deque)
    running: list[Row] = field(default_factory=list)
    state: DecodeState | None = None
    submitted: int = 0

    def submit(self, request: Request) -> int:
        """Queue a request; returns its ticket."""
        self.waiting.append((self.submitted, request))
        self.submitted += 1
        return self.submitted - 1

    def run(self, requests: Iterable[Request]) -> Iterator[Outcome]:
        """Decode everything, yielding in the order of completion."""
        for request in requests:
            self.submit(request)
        while self.waiting or self.running:
            yield from self.step()

    def step(self) -> list[Outcome]:
        """Admit, denoise once, retire."""
        state = self._admit()
        taken = denoise_step(self.model, state, self.running[0].request.recipe, observed=self.record)
        for index, row in enumerate(self.running):
            row.observe(taken, index)
        done = state.done.tolist()
        finished = [outcome_of(index, row, state) for index, row in enumerate(self.running) if done[index]]
        if finished:
            self._retire(state, done)
        return finished

    def _admit(self) -> DecodeState:
        joining: list[Request] = []
        while self.waiting and len(self.running) < self.max_batch and self._fits(self.waiting[0][1]):
            ticket, request = self.waiting.popleft()
            recorder = Recorder(request) if self.record else None
            self.running.append(Row(ticket, request, time.perf_counter(), recorder))
            joining.append(request)
        if joining:
            fresh = lay_out(joining, self.model.mask_id, self.end_ids, self.device, self.words)
            self.state = fresh if self.state is None else self.state.admit(fresh)
        assert self.state is not None, "step() called with nothing to do"
        return self.state

    def _fits(self, request: Request) -> bool:
        if not self.running:
            return True
        first = self.running[0].request
        return request.recipe == first.recipe and request.layout.length == first.layout.length

    def _retire(self, state: DecodeState, done: list[bool]) -> None:
        keep = [index for index, over in enumerate(done) if not over]
        self.running = [self.running[index] for index in keep]
        self.state = state.select(torch.tensor(keep, device=state.canvas.device)) if keep else None


def outcome_of(index: int, row: Row, state: DecodeState) -> Outcome:
    """What became of a row that is done."""
    ended = state.stop_at_eos and bool(state.ended[index].any())
    return Outcome(
        ticket=row.ticket,
        request=row.request,
        tokens=tuple(state.window[index].tolist()),
        steps=int(state.step[index]),
        forwards=int(state.forwards[index]) * (2 if row.request.recipe.guidance else 1),
        computed=int(state.computed[index]) * (2 if row.request.recipe.guidance else 1),
        exit=row.exit,
        finish="settled" if row.exit is not None else "eos" if ended else "complete",
        seconds=time.perf_counter() - row.started,
        gap=row.gap,
        trace=row.trace(state),
    )
