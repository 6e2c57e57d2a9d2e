"""A pool of workers on a Ray cluster. Lost workers are replaced, and their tasks run on others."""

from __future__ import annotations

import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from foretell import errors
from foretell.errors import ForetellError, RequestError, whole
from foretell.extras import require_extra
from foretell.workers import Needs, Opener

LOSSES = 3  # workers that may be lost with the same task, or one after the other while they start
INTERVAL = 1.0  # seconds between two looks at a cluster that has no room for a worker
PATIENCE = 30.0  # seconds without any worker before the user is told
MOST_WORKERS = 4096

Held = TypeVar("Held")
Result = TypeVar("Result")
Job = Any  # what a cluster calls the work that a worker has been given; hashable


class WorkerLostError(Exception):
    """The process or the machine of a worker has ended; the message says why."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker answers. A ForetellError is sent as its name and message, anything else as a traceback."""

    value: Any = None
    error: str | None = None  # name of the class; "" for a bug
    message: str = ""

    def read(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is None:
            return self.value
        if self.error:
            raise getattr(errors, self.error, ForetellError)(self.message)
        raise RuntimeError(f"a worker of the pool failed\n{self.message}")


class Worker:
    """The actor that runs on the other machine."""

    def __init__(self) -> None:
        self.held: Any = None

    def open(self, opener: Callable[[], Any]) -> Reply:
        """Open what the tasks need."""
        return _reply(lambda: setattr(self, "held", opener()))

    def run(self, task: Callable[[Any], Any]) -> Reply:
        return _reply(lambda: task(self.held))


def _reply(work: Callable[[], Any]) -> Reply:
    try:
        return Reply(work())
    except ForetellError as error:
        return Reply(error=type(error).__name__, message=str(error))
    except Exception:  # noqa: BLE001  raised on the machine that gave the task
        return Reply(error="", message=traceback.format_exc())


class Cluster(Protocol):
    """Machines on which workers run."""

    def room(self, needs: Needs) -> int:
        """Return how many workers the machines have room for while nothing else runs on them."""

    def start(self, opener: Callable[[], Any], needs: Needs) -> tuple[Any, Job]:
        """Return a new worker and the job that opens it, which waits until there is room."""

    def submit(self, worker: Any, task: Callable[[Any], Any]) -> Job: ...

    def wait(self, jobs: Sequence[Job], seconds: float) -> Sequence[Job]:
        """Return the jobs that are over; waits for one, but not longer than this."""

    def result(self, job: Job) -> Reply:
        """Return the reply of a job that is over. Raises WorkerLostError."""

    def stop(self, worker: Any) -> None: ...


class Pool:
    """Workers on a Ray cluster, each with a copy of the engine. They are started when there is work, and kept.

    `address` is that of a cluster ("host:6379"), "auto" for the one that this machine belongs to, or "local" for a
    cluster of this machine alone, which ends with this process. `workers` is their number (default: as many as the
    cluster has room for). `note` is called with what a user should know. Closing the pool ends its workers.
    """

    def __init__(
        self,
        address: str = "auto",
        workers: int | None = None,
        *,
        note: Callable[[str], object] = lambda _: None,
        connect: Callable[[str], Cluster] | None = None,
    ) -> None:
        if workers is not None:
            whole("the number of workers", workers, 1, MOST_WORKERS, RequestError)
        if connect is None:
            require_extra("ray")
        self.address, self.workers = address, workers
        self._note, self._connect = note, connect
        self._cluster: Cluster | None = None
        self._opener: Any = None
        self._idle: list[Any] = []
        self._starting: dict[Job, _Starting] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        for worker in (*self._idle, *(one.worker for one in self._starting.values())):
            self.cluster.stop(worker)
        self._idle, self._starting = [], {}

    @property
    def cluster(self) -> Cluster:
        """The cluster; connects to it when first used."""
        if self._cluster is None:
            if self._connect is None:
                from foretell.scale.actors import RayCluster  # noqa: PLC0415  imports ray

                self._connect = RayCluster
            self._cluster = self._connect(self.address)
        return self._cluster

    def size(self, needs: Needs) -> int:
        """Return the number of workers that will be used, if there is enough work."""
        return self.workers or max(1, self.cluster.room(needs))

    def run(
        self, opener: Opener[Held], count: int, task: Callable[[int], Callable[[Held], Result]]
    ) -> Iterator[tuple[int, Result]]:
        """Run the tasks `task(0)` to `task(count - 1)`; yields (number, result) in the order in which they finish."""
        if opener != self._opener:
            self.close()
            self._opener = opener
        run = _Run(self.cluster, opener, self.size(opener.needs), task, deque(range(count)), self._note)
        run.idle, run.starting = self._idle, self._starting
        run.check_idle()
        try:
            while run.unfinished:
                yield from run.advance()
        finally:
            run.stop_busy()


@dataclass(frozen=True, slots=True)
class _Starting:
    """A worker that is not known to be ready."""

    worker: Any
    fresh: bool  # it has never been ready


def _do_nothing(_: object) -> None:
    """Run on a worker to find out whether it is still there."""


class _Run:
    """The tasks of one call, and the workers that run them."""

    def __init__(
        self,
        cluster: Cluster,
        opener: Opener[Any],
        size: int,
        task: Callable[[int], Callable[[Any], Any]],
        waiting: deque[int],
        note: Callable[[str], object],
    ) -> None:
        self.cluster, self.opener, self.size, self.task, self.note = cluster, opener, size, task, note
        self.waiting = waiting
        self.busy: dict[Job, tuple[Any, int]] = {}
        self.idle: list[Any] = []
        self.starting: dict[Job, _Starting] = {}
        self.losses: Counter[int] = Counter()  # by task
        self.failed_starts = 0  # since the last worker that started
        self.alone_since: float | None = None  # since when no worker is ready
        self.told = False  # the user has been told

    @property
    def unfinished(self) -> bool:
        return bool(self.waiting or self.busy)

    def advance(self) -> list[tuple[int, Any]]:
        """Give out tasks, wait for jobs, and return what they finished."""
        self._start_workers()
        self._submit()
        over = self.cluster.wait([*self.busy, *self.starting], INTERVAL)
        finished = [done for job in over for done in self._take(job)]
        self._submit()  # before the caller uses the results, which may take a while
        self._report_waiting()
        return [(number, reply.read()) for number, reply in finished]

    def _start_workers(self) -> None:
        if self.failed_starts >= LOSSES:
            return
        wanted = min(self.size, len(self.waiting) + len(self.busy))
        for _ in range(wanted - len(self.busy) - len(self.idle) - len(self.starting)):
            worker, job = self.cluster.start(self.opener, self.opener.needs)
            self.starting[job] = _Starting(worker, fresh=True)

    def check_idle(self) -> None:
        """Ask the idle workers whether they are still there, before they get a task."""
        while self.idle:
            worker = self.idle.pop()
            self.starting[self.cluster.submit(worker, _do_nothing)] = _Starting(worker, fresh=False)

    def _submit(self) -> None:
        while self.waiting and self.idle:
            worker, number = self.idle.pop(), self.waiting.popleft()
            self.busy[self.cluster.submit(worker, self.task(number))] = worker, number

    def _take(self, job: Job) -> list[tuple[int, Reply]]:
        """Return the number and reply of a finished task; nothing if a worker has started or was lost."""
        if job in self.starting:
            self._welcome(job, self.starting.pop(job))
            return []
        worker, number = self.busy.pop(job)
        try:
            reply = self.cluster.result(job)
        except WorkerLostError as lost:
            self.cluster.stop(worker)
            self._retry(number, lost)
            return []
        self.idle.append(worker)
        return [(number, reply)]

    def _welcome(self, job: Job, started: _Starting) -> None:
        try:
            self.cluster.result(job).read()
        except WorkerLostError as lost:
            self.cluster.stop(started.worker)
            self.failed_starts += started.fresh
            if self.failed_starts >= LOSSES:
                self._raise_if_alone(f"{LOSSES} workers of the pool ended while they started: {lost}")
        except BaseException:
            self.cluster.stop(started.worker)
            raise
        else:
            self.failed_starts = 0
            self.idle.append(started.worker)

    def _retry(self, number: int, lost: WorkerLostError) -> None:
        self.losses[number] += 1
        if self.losses[number] >= LOSSES:
            raise ForetellError(f"{LOSSES} workers of the pool were lost with the same task: {lost}")
        self.note(f"a worker was lost, and what it was decoding is decoded again: {lost}")
        self.waiting.appendleft(number)
        self.check_idle()  # they may have been on the same machine
        if self.failed_starts >= LOSSES:
            self._raise_if_alone(f"the last worker of the pool was lost, and no other could be started: {lost}")

    def _raise_if_alone(self, message: str) -> None:
        if not (self.busy or self.idle or self.starting):
            raise ForetellError(message)

    def _report_waiting(self) -> None:
        """Tell the user, once, that no worker has been ready for a while."""
        now = time.monotonic()
        self.alone_since = None if self.busy or self.idle else self.alone_since or now
        if self.told or self.alone_since is None or now - self.alone_since < PATIENCE:
            return
        needs = self.opener.needs
        gpus = f" and {needs.gpus} GPU" if needs.gpus else ""
        self.note(f"no worker is ready yet; each needs {needs.cpus} CPU{gpus} on one machine of the cluster")
        self.told = True

    def stop_busy(self) -> None:
        """End the workers whose results nobody will read."""
        for worker, _ in self.busy.values():
            self.cluster.stop(worker)
