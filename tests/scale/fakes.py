"""A cluster in this process, on which workers die when a test says so."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretell.scale.pool import Reply, Worker, WorkerLostError
from foretell.workers import Needs


@dataclass(eq=False)
class FakeWorker:
    number: int
    worker: Worker = field(default_factory=Worker)
    dead: bool = False


@dataclass(eq=False)
class FakeJob:
    worker: FakeWorker
    work: Callable[[], Reply]
    lost: bool  # its worker died while it ran
    order: int


@dataclass
class FakeCluster:
    """Implements `Cluster`. `dies(worker, nth)` says whether a worker dies in its nth job; its first job opens it."""

    places: int = 2
    dies: Callable[[int, int], bool] = lambda worker, nth: False
    pending: int = 0  # workers that never start, for lack of room
    choose: Callable[[int], int] = lambda count: 0  # which of the running jobs, the oldest first, is over next
    workers: list[FakeWorker] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    jobs: dict[int, int] = field(default_factory=dict)  # by worker: how many it was given
    most_at_once: int = 0
    order: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self, address: str) -> FakeCluster:
        self.address = address
        return self

    def room(self, needs: Needs) -> int:
        return self.places // needs.cpus

    def start(self, opener: Callable[[], Any], needs: Needs) -> tuple[Any, Any]:
        worker = FakeWorker(len(self.workers))
        self.workers.append(worker)
        sent = pickle.dumps(opener)
        return worker, self._job(worker, lambda: worker.worker.open(pickle.loads(sent)))

    def submit(self, worker: Any, task: Callable[[Any], Any]) -> Any:
        sent = pickle.dumps(task)
        return self._job(worker, lambda: worker.worker.run(pickle.loads(sent)))

    def _job(self, worker: FakeWorker, work: Callable[[], Reply]) -> FakeJob:
        nth = self.jobs[worker.number] = self.jobs.get(worker.number, 0) + 1
        if not worker.dead and self.dies(worker.number, nth):
            worker.dead = True
        return FakeJob(worker, work, worker.dead, next(self.order))

    def wait(self, jobs: Sequence[Any], seconds: float) -> Sequence[Any]:
        assert len(set(map(id, jobs))) == len(jobs)
        running = sorted((job for job in jobs if job.worker.number >= self.pending), key=lambda job: job.order)
        self.most_at_once = max(self.most_at_once, len(running))
        return [running[self.choose(len(running))]] if running else []

    def result(self, job: Any) -> Reply:
        if job.lost or job.worker.dead:
            raise WorkerLostError(f"worker {job.worker.number} was killed")
        reply: Reply = pickle.loads(pickle.dumps(job.work()))
        return reply

    def stop(self, worker: Any) -> None:
        worker.dead = True
        self.stopped.append(worker.number)
