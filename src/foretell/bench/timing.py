"""Compare times: functions take turns in one process, and their medians are compared."""

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
Context = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Timings(Generic[T]):
    """The seconds of every run of a function, and the result of the last run."""

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]  # of all threads of this process together
    result: T

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def cpu_median(self) -> float:
        return median(self.cpu_seconds)


def time_in_turns(
    functions: Mapping[str, Callable[[], T]],
    rounds: int,
    tell: Callable[[str, int, float], None] | None = None,
    *,
    warm: bool = True,
) -> dict[str, Timings[T]]:
    """Run all functions one after the other, `rounds` times, so that a machine that slows down affects all equally.

    If `warm`, an additional first round does not count. `tell` is called after every run with the function's name,
    the round and the seconds.
    """
    whole("rounds", rounds, 1, error=RequestError)
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in functions}
    results: dict[str, T] = {}
    for turn in range(0 if warm else 1, rounds + 1):
        for name, function in functions.items():
            started, cpu_started = time.perf_counter(), time.process_time()
            results[name] = function()
            took, cpu_took = time.perf_counter() - started, time.process_time() - cpu_started
            if turn:
                seconds[name].append(took)
                cpu_seconds[name].append(cpu_took)
            if tell is not None:
                tell(name, turn, took)
    return {name: Timings(tuple(seconds[name]), tuple(cpu_seconds[name]), results[name]) for name in functions}


@dataclass(slots=True, eq=False)
class Stopwatch:
    """Adds up the seconds spent inside `running`."""

    seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Instrumented:
    """A denoiser whose passes run inside one context manager, and whose head runs inside another."""

    inner: Denoiser
    passing: Context
    reading: Context = field(default=nullcontext)

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
