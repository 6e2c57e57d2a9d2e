"""Times that can be compared: ways that take turns in one process, medians and ratios."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, TypeVar

from torch import Tensor

from foretell.errors import RequestError, whole
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Denoiser, Inputs, Readout

T = TypeVar("T")
Inside = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Clocked(Generic[T]):
    """How long one way took, run by run, and what came of the last run."""

    seconds: tuple[float, ...]
    result: T

    @property
    def median(self) -> float:
        return median(self.seconds)


def in_turn(
    ways: Mapping[str, Callable[[], T]],
    rounds: int,
    tell: Callable[[str, int, float], None] | None = None,
    *,
    warm: bool = True,
) -> dict[str, Clocked[T]]:
    """Run all ways one after the other, `rounds` times, so that a machine that gets slower treats them alike.

    A round before those warms up and does not count; ways that take long can do without. `tell` hears of every run:
    its way, round and seconds.
    """
    whole("rounds", rounds, 1, error=RequestError)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, T] = {}
    for turn in range(0 if warm else 1, rounds + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            results[name] = way()
            took = time.perf_counter() - started
            if turn:
                seconds[name].append(took)
            if tell is not None:
                tell(name, turn, took)
    return {name: Clocked(tuple(seconds[name]), results[name]) for name in ways}


@dataclass(slots=True, eq=False)
class Stopwatch:
    """Adds up the seconds spent inside of it."""

    seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Watched:
    """A denoiser whose passes run inside of one context, and whose head runs inside of another."""

    inner: Denoiser
    passing: Inside
    reading: Inside = field(default=nullcontext)

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        with self.passing():
            readout = self.inner(inputs)

        def read(row: Tensor, at: Tensor) -> Tensor:
            with self.reading():
                return readout(row, at)

        return read

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)
