"""A mailbox between the thread that decodes and the tasks that answer requests."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from foretell.engine.completion import Frame
from foretell.engine.outcome import Outcome
from foretell.errors import ForetellError

MOST_DRAFTS = 64  # that wait for a slow reader; older ones are dropped


@dataclass(frozen=True, slots=True)
class Draft:
    """What one step did to a request that is watched."""

    frame: Frame
    confidence: tuple[float, ...]  # [N]; empty unless positions are shown
    at: float  # time.perf_counter()


@dataclass(frozen=True, slots=True)
class Committed:
    """The filled positions from the window's start up to its first mask. They do not change any more."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """Log probabilities of the positions that a step filled."""

    positions: tuple[int, ...]
    chosen: tuple[float, ...]
    best: tuple[tuple[tuple[int, float], ...], ...]  # per position: the most probable tokens


@dataclass(frozen=True, slots=True)
class Preview:
    """Probabilities of the labels of a decision after a step."""

    step: int
    labels: dict[str, list[tuple[Any, float]]]  # by the question's name


@dataclass(frozen=True, slots=True)
class Done:
    outcome: Outcome
    recipe: str  # what decoded it, which a supervisor may have chosen
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    error: ForetellError | Exception


Event = Draft | Committed | Scores | Preview | Done | Failed


class Mailbox:
    """Events of all choices of one request, in the order in which they happened. Text is never dropped."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._lock = Lock()
        self._events: deque[tuple[int, Event]] = deque()
        self._drafts = 0  # since events were read

    def put(self, index: int, event: Event) -> None:
        """Add an event of choice `index`. Any thread may call this, and it never waits."""
        with self._lock:
            self._events.append((index, event))
            if isinstance(event, Draft | Preview):
                self._drafts += 1
                if self._drafts > MOST_DRAFTS:
                    self._drop_oldest_draft()
        with suppress(RuntimeError):  # the server has stopped, and nobody reads any more
            self._loop.call_soon_threadsafe(self._ready.set)

    def _drop_oldest_draft(self) -> None:
        for place, (_, event) in enumerate(self._events):
            if isinstance(event, Draft | Preview):
                del self._events[place]
                return

    async def get(self, seconds: float) -> list[tuple[int, Event]]:
        """Wait for events, `seconds` at most, and return all that are there."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), seconds)
        with self._lock:
            events = list(self._events)
            self._events.clear()
            self._drafts = 0
            self._ready.clear()
        return events


async def wait_for_events(
    box: Mailbox, seconds: float, quiet: float, finished: Callable[[], bool]
) -> AsyncIterator[tuple[int, Event] | None]:
    """Yield events until it is `finished`; None whenever nothing happened for `quiet` seconds.

    Raises TimeoutError after `seconds`.
    """
    deadline = time.perf_counter() + seconds
    while not finished():
        left = deadline - time.perf_counter()
        if left <= 0:
            raise TimeoutError
        events = await box.get(min(left, quiet))
        if not events:
            yield None
        for one in events:
            yield one
