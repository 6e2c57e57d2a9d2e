"""A discrete-event simulation of `engine.scheduler`: requests join, run and leave as there, without a model.

What a request computes in each of its steps is known in advance, from a stored decoding or a dry run. A cost model
says how many seconds a step of a batch takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import groupby
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from foretell.errors import RequestError, whole
from foretell.plan.passes import Pass


class Work(NamedTuple):
    """What one row computes in one step. Window positions; 0: no such pass."""

    whole: int = 0  # together with the prompt
    part: int = 0  # without the prompt
    commit: int = 0  # together with the prompt, in an additional pass for a commit
    read: int = 0  # positions whose logits are computed


@dataclass(frozen=True, slots=True)
class Job:
    """A request: what it computes from its first step to its last, in runs of equal steps."""

    kind: Hashable  # requests of one kind share a batch
    prompt: int
    window: int
    runs: tuple[tuple[int, Work], ...]
    stored: bool = False  # whether keys and values are stored

    @property
    def steps(self) -> int:
        return sum(count for count, _ in self.runs)


def job_of(steps: Sequence[Sequence[Pass]], kind: Hashable, prompt: int, window: int) -> Job:
    """Return the job of a request from the passes of its steps when it is decoded alone."""
    runs = tuple((len(list(same)), work) for work, same in groupby(_work(one, prompt) for one in steps))
    return Job(kind, prompt, window, runs, any(one.stored for step in steps for one in step))


def _work(passes: Sequence[Pass], prompt: int) -> Work:
    first, *more = passes
    commit = max((one.columns - prompt for one in more), default=0)
    read = sum(one.read for one in passes)
    if first.whole:
        return Work(first.columns - prompt, 0, commit, read)
    return Work(0, first.columns, commit, read)


class BatchStep(NamedTuple):
    """One step of one group: what a cost model is asked about."""

    passes: tuple[Pass, ...]
    joined: int  # rows that joined before it, in all groups
    left: int  # rows that left after it


Cost = Callable[[BatchStep], float]  # seconds


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that is done. Times in seconds."""

    job: Job
    arrival: float
    started: float
    finished: float
    server: int = 0

    @property
    def latency(self) -> float:
        return self.finished - self.arrival


@dataclass(slots=True)
class _Row:
    job: Job
    arrival: float
    started: float = 0.0
    passed: int = 0  # how often a later one was taken first
    run: int = 0
    left: int = 0  # steps of the current run

    def __post_init__(self) -> None:
        self.left = self.job.runs[0][0]

    @property
    def work(self) -> Work:
        return self.job.runs[self.run][1]

    @property
    def last_run(self) -> bool:
        return self.run == len(self.job.runs) - 1

    def advance(self, steps: int) -> bool:
        """Take steps of the current run. Returns whether the request is done."""
        self.left -= steps
        if self.left == 0 and not self.last_run:
            self.run += 1
            self.left = self.job.runs[self.run][0]
        return self.left == 0


@dataclass(slots=True, eq=False)
class _Group:
    waiting: list[_Row] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)

    def admit_one(self, lookahead: int, patience: int) -> _Row:
        """Choose as `engine.group.Group.admit_one` does."""
        near, at = self.waiting[:lookahead], 0
        if self.rows and near[0].passed < patience:
            widest = max(row.job.prompt for row in self.rows)
            sizes = [row.job.prompt for row in near]
            at = min(range(len(near)), key=lambda i: max(widest, sizes[i]) * (len(self.rows) + 1) - sizes[i])
        for row in near[:at]:
            row.passed += 1
        self.rows.append(self.waiting.pop(at))
        return self.rows[-1]

    def passes(self) -> tuple[Pass, ...]:
        """Return the passes of the next step over all rows."""
        one, work = self.rows[0].job, [row.work for row in self.rows]
        prompt = max(row.job.prompt for row in self.rows)
        canvas, read = prompt + one.window, sum(each.read for each in work)
        made: list[Pass] = []
        for whole_text, stored, widths in (
            (True, one.stored, [each.whole for each in work if each.whole]),
            (False, one.stored, [each.part for each in work if each.part]),
            (True, False, [each.commit for each in work if each.commit]),
        ):
            if widths:
                columns = max(widths) + (prompt if whole_text else 0)
                attended = canvas if stored else columns
                made.append(Pass(len(widths), columns, attended, stored, whole_text, 0 if made else read))
        return tuple(made)


class _Ahead(NamedTuple):
    """Equal steps that a replica will take if no request joins before: one of each group in turn, several times."""

    turns: tuple[tuple[_Group, tuple[Pass, ...], float], ...]  # with the passes and the seconds of a step
    times: int

    @property
    def cycle(self) -> float:
        return sum(seconds for _, _, seconds in self.turns)


@dataclass(slots=True)
class Server:
    """One replica. `max_batch`, `lookahead` and `patience` are those of `engine.scheduler.Scheduler`."""

    cost: Cost
    max_batch: int = 8
    lookahead: int = 64
    patience: int = 32
    now: float = 0.0
    busy_seconds: float = 0.0
    steps: int = 0
    columns: int = 0  # computed by all passes, with padding
    running: int = 0
    _ahead: _Ahead | None = None
    _leaving: int = 0  # rows whose last step ends at `now`
    _groups: dict[Hashable, _Group] = field(default_factory=dict)
    _queue: deque[_Group] = field(default_factory=deque)
    _turns: deque[_Group] = field(default_factory=deque)

    def __post_init__(self) -> None:
        whole("max_batch", self.max_batch, 1, error=RequestError)

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._turns)

    @property
    def due(self) -> float:
        """The time at which the next step begins that is not equal to the one before."""
        return self.now if self._ahead is None else self.now + self._ahead.times * self._ahead.cycle

    def load(self, time: float) -> int:
        """Return the number of requests that wait or run at this time."""
        return len(self._queue) + self.running + (self._leaving if time < self.now else 0)

    def submit(self, job: Job, arrival: float) -> None:
        """Queue a request. It joins, if a slot is free, after the step that is running."""
        if not self.busy:
            self.now = max(self.now, arrival)
        elif self._ahead is not None and self.running < self.max_batch:
            self._catch_up(self._ahead, arrival)
        group = self._groups.setdefault(job.kind, _Group())
        group.waiting.append(_Row(job, arrival))
        self._queue.append(group)

    def step(self) -> list[Finished]:
        """Take the next step. Equal steps are only noted at first, and taken together when they are over."""
        if self._ahead is not None:
            self._take_equal(self._ahead, self._ahead.times)
            return []
        joined = self._admit()
        equal = 0 if joined else min(row.left - row.last_run for group in self._turns for row in group.rows)
        if equal < 2:
            return self._take_one(joined)
        turns = [(group, group.passes()) for group in self._turns]
        self._ahead = _Ahead(tuple((one, passes, self.cost(BatchStep(passes, 0, 0))) for one, passes in turns), equal)
        return []

    def _catch_up(self, ahead: _Ahead, time: float) -> None:
        """Take the equal steps that begin before this time."""
        times = min(ahead.times, int((time - self.now) / ahead.cycle))
        self._take_equal(ahead, times)
        for _ in range((ahead.times - times) * len(ahead.turns)):
            if self.now >= time:
                break
            self._take_one(0)

    def _take_equal(self, ahead: _Ahead, times: int) -> None:
        for group, passes, seconds in ahead.turns:
            if times:
                for row in group.rows:
                    row.advance(times)
                self._spend(seconds, passes, times)
        self._ahead = None

    def _take_one(self, joined: int) -> list[Finished]:
        group = self._turns[0]
        passes = group.passes()
        self._turns.rotate(-1)
        done = [row for row in group.rows if row.advance(1)]
        self._spend(self.cost(BatchStep(passes, joined, len(done))), passes, 1)
        if done:
            group.rows = [row for row in group.rows if row.left]
            self.running -= len(done)
            self._leaving = len(done)
            if not group.rows:
                self._turns.remove(group)
        return [Finished(row.job, row.arrival, row.started, self.now) for row in done]

    def _spend(self, seconds: float, passes: tuple[Pass, ...], times: int) -> None:
        self.now += seconds * times
        self.busy_seconds += seconds * times
        self.steps += times
        self.columns += times * sum(one.rows * one.columns for one in passes)
        self._leaving = 0

    def _admit(self) -> int:
        free = min(len(self._queue), self.max_batch - self.running)
        for _ in range(free):
            group = self._queue.popleft()
            if not group.rows:
                self._turns.append(group)
            group.admit_one(self.lookahead, self.patience).started = self.now
        self.running += free
        return free


Router = Callable[[Sequence[Server], Job, float, Generator], int]


def route_randomly(servers: Sequence[Server], job: Job, now: float, rng: Generator) -> int:  # noqa: ARG001
    return int(rng.integers(len(servers)))


def route_by_load(servers: Sequence[Server], job: Job, now: float, rng: Generator) -> int:  # noqa: ARG001
    """Choose the less loaded of two random replicas ("power of two choices", Mitzenmacher 2001), as Ray Serve does."""
    one, other = rng.integers(len(servers), size=2)
    return int(one if servers[one].load(now) <= servers[other].load(now) else other)


@dataclass(frozen=True, slots=True)
class RouteByKind:
    """Send each kind to its own replicas, in proportion to its `shares`; when those are full, choose by load."""

    shares: tuple[tuple[Hashable, float], ...]

    def __call__(self, servers: Sequence[Server], job: Job, now: float, rng: Generator) -> int:
        first, last = self._span(job.kind, len(servers))
        one, other = rng.integers(first, last, size=2)
        home = int(one if servers[one].load(now) <= servers[other].load(now) else other)
        if servers[home].load(now) < servers[home].max_batch:
            return home
        spill = route_by_load(servers, job, now, rng)
        return spill if servers[spill].load(now) < servers[spill].max_batch else home

    def _span(self, kind: Hashable, count: int) -> tuple[int, int]:
        """Return the first replica of a kind, and the one after its last. Kinds may share a replica."""
        below = 0.0
        for name, share in self.shares:
            if name == kind:
                first = min(count - 1, int(below * count + 1e-9))
                return first, max(first + 1, min(count, ceil((below + share) * count - 1e-9)))
            below += share
        raise RequestError(f"no replicas for the kind {kind!r}")


def simulate(
    servers: Sequence[Server],
    jobs: Sequence[Job],
    arrivals: Sequence[float],
    route: Router = route_randomly,
    seed: int = 0,
) -> list[Finished]:
    """Serve jobs that arrive at these times, which must not decrease. Returns them in the order of completion."""
    if len(jobs) != len(arrivals):
        raise RequestError(f"{len(jobs)} jobs need as many arrivals, got {len(arrivals)}")
    rng = np.random.default_rng(seed)
    done: list[Finished] = []
    ready: list[tuple[float, int]] = []  # busy replicas by the time at which they are due
    coming = deque(zip(arrivals, jobs, strict=True))
    while coming or ready:
        if coming and (not ready or coming[0][0] <= ready[0][0]):
            arrival, job = coming.popleft()
            at = route(servers, job, arrival, rng) if len(servers) > 1 else 0
            servers[at].submit(job, arrival)
        else:
            time, at = heappop(ready)
            if not servers[at].busy or time != servers[at].due:
                continue  # a request joined before, so this entry is out of date
            done += [replace(one, server=at) for one in servers[at].step()]
        if servers[at].busy:
            heappush(ready, (servers[at].due, at))
    return sorted(done, key=lambda one: one.finished)


def poisson(rate: float, count: int, rng: Generator) -> NDArray[np.float64]:
    """Return arrival times of independent requests."""
    return rng.exponential(1 / rate, count).cumsum()


def bursts(rate: float, count: int, size: int, rng: Generator) -> NDArray[np.float64]:
    """Return arrival times of bursts of `size` requests at once, with `rate` requests per second on average."""
    return np.repeat(poisson(rate / size, ceil(count / size), rng), size)[:count]


def daily(rate: float, count: int, peak: float, period: float, rng: Generator) -> NDArray[np.float64]:
    """Return arrival times whose rate is a sine around `rate` with a maximum of `peak` times `rate` (1 to 2)."""
    if not 1 <= peak <= 2:
        raise RequestError(f"peak must be from 1 to 2, got {peak}")
    times = np.empty(0)
    last = 0.0
    while len(times) < count:  # thinning (Lewis and Shedler 1979)
        tried = last + poisson(rate * peak, count, rng)
        last = float(tried[-1])
        density = 1 + (peak - 1) * np.sin(2 * np.pi * tried / period)
        times = np.concatenate([times, tried[rng.random(len(tried)) * peak < density]])
    return times[:count]
