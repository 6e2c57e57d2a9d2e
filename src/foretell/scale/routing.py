"""Which replica gets a request: rendezvous hashing of its group, with bounded loads.

Requests of one group prefer the same replica, so that they share a batch. A replica with more than its share of the
load is passed over (Mirrokni, Thorup and Zadimoghaddam, 2018). When a replica comes or goes, only its own groups move.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from threading import Lock

BALANCE = 1.25  # times the mean load that a replica may have before its groups spill over
FORGIVEN = 60.0  # seconds after which a replica that was silent is tried like any other


def rank_replicas(
    group: str, loads: Mapping[str, int], avoid: Collection[str] = (), balance: float = BALANCE
) -> list[str]:
    """Return the replicas in the order in which a request of this group tries them.

    First come those that are not overloaded, in the group's own order; then the others, the least loaded first; those
    to avoid come last.
    """
    order = sorted(loads, key=lambda name: blake2b(f"{group}\0{name}".encode(), digest_size=8).digest())
    good = [name for name in order if name not in avoid]
    bound = ceil(balance * (sum(loads[name] for name in good) + 1) / max(1, len(good)))
    free = [name for name in good if loads[name] < bound]
    full = sorted((name for name in good if loads[name] >= bound), key=loads.__getitem__)
    return [*free, *full, *(name for name in order if name in avoid)]


@dataclass(slots=True)
class Assignment:
    """Where one request was sent."""

    replica: str | None = None  # None while it waits for a free replica
    since: float = 0.0  # time.monotonic()
    task: object = None  # that sends it; tasks that it starts for the router see the same context


ASSIGNMENT: ContextVar[Assignment | None] = ContextVar("ASSIGNMENT", default=None)  # of the request being routed


class Watch:
    """What one process knows about the replicas it sends requests to. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loads: Counter[str] = Counter()
        self._silent: dict[str, float] = {}

    def note_sent(self, replica: str) -> None:
        """Count a request, and tell the one being routed where it goes."""
        with self._lock:
            self._loads[replica] += 1
        if (assignment := ASSIGNMENT.get()) is not None:
            assignment.replica, assignment.since = replica, time.monotonic()
            assignment.task = asyncio.current_task()

    def note_refused(self) -> None:
        """Tell the request being routed that the replica which it was sent to is full, so that it waits again."""
        assignment = ASSIGNMENT.get()
        if assignment is not None and assignment.task is asyncio.current_task():
            assignment.replica = None

    def note_accepted(self, replica: str) -> None:
        """Tell the request being routed that it stays where it was sent."""
        if (assignment := ASSIGNMENT.get()) is not None:
            assignment.replica, assignment.since = replica, time.monotonic()

    def note_done(self, replica: str) -> None:
        with self._lock:
            self._loads[replica] -= 1
            if self._loads[replica] <= 0:
                del self._loads[replica]

    def note_heard(self, replica: str) -> None:
        """Trust a replica that has sent something."""
        with self._lock:
            self._silent.pop(replica, None)

    def note_silent(self, replica: str) -> None:
        """Avoid a replica for a while."""
        with self._lock:
            self._silent[replica] = time.monotonic()

    def loads(self, replicas: Iterable[str]) -> dict[str, int]:
        """Return how many requests of this process each of the replicas has."""
        with self._lock:
            return {name: self._loads[name] for name in replicas}

    def silent(self) -> set[str]:
        """Return the replicas that should be avoided."""
        with self._lock:
            oldest = time.monotonic() - FORGIVEN
            self._silent = {name: at for name, at in self._silent.items() if at > oldest}
            return set(self._silent)


_WATCH = Watch()


def watch() -> Watch:
    """Return the watch of this process, which the front shares with the router of its handle."""
    return _WATCH
