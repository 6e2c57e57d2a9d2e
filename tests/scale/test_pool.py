"""The pool: every task runs, exactly one result of each is returned, whatever happens to the workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.errors import ForetellError, MissingExtraError, ModelError, RequestError
from foretell.scale.pool import Pool
from foretell.workers import Needs
from tests.scale.fakes import FakeCluster

RESULT = "opened 3: task"


@dataclass(frozen=True)
class Opener:
    value: int = 3
    needs: Needs = Needs()

    def __call__(self) -> str:
        if self.value < 0:
            raise ModelError("no such model here")
        return f"opened {self.value}"


def do(number: int, held: str) -> str:
    if number == 99:
        raise RequestError("a bad request")
    if number == 98:
        raise ZeroDivisionError("a bug")
    return f"{held}: task {number}"


def run(pool: Pool, count: int, opener: Opener | None = None, start: int = 0) -> list[tuple[int, Any]]:
    return list(pool.run(opener or Opener(), count, lambda number: partial(do, start + number)))


def pool_on(cluster: FakeCluster, workers: int | None = None, note: Callable[[str], object] = lambda _: None) -> Pool:
    return Pool("here", workers, connect=cluster, note=note)


def test_every_task_runs_once_on_as_many_workers_as_there_is_room_for() -> None:
    cluster = FakeCluster(places=6)
    found = run(pool_on(cluster), 10, Opener(needs=Needs(cpus=2)))
    assert sorted(found) == [(number, f"{RESULT} {number}") for number in range(10)]
    assert (len(cluster.workers), cluster.address, cluster.stopped) == (3, "here", [])
    assert cluster.most_at_once == 3


@pytest.mark.parametrize(("workers", "tasks", "started"), [(None, 1, 1), (None, 9, 4), (2, 9, 2), (7, 9, 7), (7, 3, 3)])
def test_no_worker_is_started_without_a_task(workers: int | None, tasks: int, started: int) -> None:
    cluster = FakeCluster(places=4)
    assert len(run(pool_on(cluster, workers), tasks)) == tasks
    assert len(cluster.workers) == started


def test_a_cluster_without_room_is_waited_for() -> None:
    """Machines may be added to it."""
    cluster = FakeCluster(places=0)
    assert len(run(pool_on(cluster), 2)) == 2
    assert len(cluster.workers) == 1


def test_workers_are_kept_until_they_have_to_open_something_else() -> None:
    cluster = FakeCluster()
    with pool_on(cluster) as pool:
        run(pool, 4)
        run(pool, 4)
        assert (len(cluster.workers), cluster.stopped) == (2, [])
        assert run(pool, 1, Opener(5)) == [(0, "opened 5: task 0")]
        assert (len(cluster.workers), sorted(cluster.stopped)) == (3, [0, 1])
    assert sorted(cluster.stopped) == [0, 1, 2]


@given(
    count=st.integers(0, 30), places=st.integers(1, 5), share=st.sampled_from([0.0, 0.05, 0.15]), seed=st.integers(0)
)
def test_nothing_is_lost_or_doubled_if_workers_die(count: int, places: int, share: float, seed: int) -> None:
    """Unless many die one after the other, which is an error."""
    draw = random.Random(seed)
    cluster = FakeCluster(places, lambda worker, nth: draw.random() < share, choose=draw.randrange)
    pool = pool_on(cluster)
    for start in (0, 100):  # the second time, some of the idle workers are dead
        for worker in cluster.workers:
            worker.dead |= draw.random() < share
        found: list[tuple[int, Any]] = []
        failure = ""
        try:
            found.extend(pool.run(Opener(), count, lambda number: partial(do, start + number)))  # noqa: B023
        except ForetellError as error:
            failure = str(error)
        assert share or not failure
        assert "workers of the pool" in failure or "last worker" in failure or len(found) == count
        assert len({number for number, _ in found}) == len(found)
        assert all(value == f"{RESULT} {start + number}" for number, value in found)
        alive = [one for one in cluster.workers if not one.dead]
        assert len(alive) <= places


def test_a_lost_worker_is_replaced_and_the_user_is_told() -> None:
    notes: list[str] = []
    cluster = FakeCluster(2, lambda worker, nth: (worker, nth) == (1, 2))
    found = run(pool_on(cluster, note=notes.append), 8)
    assert sorted(found) == [(number, f"{RESULT} {number}") for number in range(8)]
    assert len(cluster.workers) == 3
    assert notes == ["a worker was lost, and what it was decoding is decoded again: worker 1 was killed"]
    assert cluster.stopped == [1]


def test_a_task_that_kills_its_workers_is_given_up() -> None:
    """A prompt that needs more memory than there is would otherwise kill one worker after the other."""
    cluster = FakeCluster(2, lambda worker, nth: nth == 2)
    with pytest.raises(ForetellError, match=r"3 workers of the pool were lost with the same task: worker \d was kill"):
        run(pool_on(cluster), 1)
    assert len(cluster.workers) == 3


def test_idle_workers_of_a_lost_machine_are_not_blamed_on_the_task() -> None:
    """The last task runs on a machine with three idle workers when the machine is lost."""

    class Machine(FakeCluster):
        lost = False

        def wait(self, jobs: Sequence[Any], seconds: float) -> Sequence[Any]:
            if len(jobs) == 1 and not self.lost:
                assert len(self.workers) == 4
                for worker in self.workers:
                    worker.dead = self.lost = True
            return super().wait(jobs, seconds)

    cluster = Machine(4)
    assert sorted(run(pool_on(cluster), 5)) == [(number, f"{RESULT} {number}") for number in range(5)]
    assert cluster.lost
    assert len(cluster.workers) == 5


def test_idle_workers_that_died_meanwhile_are_replaced() -> None:
    cluster = FakeCluster(4)
    notes: list[str] = []
    pool = pool_on(cluster, note=notes.append)
    run(pool, 4)
    for worker in cluster.workers:
        worker.dead = True
    assert len(run(pool, 6)) == 6
    assert len(cluster.workers) == 8
    assert notes == [], "nothing had to be decoded again"


def test_workers_that_cannot_start_are_given_up() -> None:
    cluster = FakeCluster(2, lambda worker, nth: nth == 1)
    with pytest.raises(ForetellError, match=r"^3 workers of the pool ended while they started: worker \d was killed$"):
        run(pool_on(cluster), 5)
    assert len(cluster.workers) <= 4


def test_only_failed_starts_in_a_row_count() -> None:
    """Every other worker cannot start, and those that can are lost after their first task."""
    cluster = FakeCluster(1, lambda worker, nth: nth == 1 if worker % 2 == 0 else nth == 3)
    assert len(run(pool_on(cluster), 5)) == 5
    assert len(cluster.workers) == 10


def test_the_others_go_on_if_some_cannot_start() -> None:
    """Of four machines only the first is in order."""
    cluster = FakeCluster(4, lambda worker, nth: worker > 0 and nth == 1)
    assert len(run(pool_on(cluster), 20)) == 20
    assert len(cluster.workers) < 12


def test_the_last_worker_is_lost_where_no_other_starts() -> None:
    cluster = FakeCluster(4, lambda worker, nth: nth == 1 if worker else nth == 9)
    with pytest.raises(ForetellError, match="the last worker of the pool was lost, and no other could be started: "):
        run(pool_on(cluster), 20)


def test_errors_of_workers_are_raised_here() -> None:
    cluster = FakeCluster(2)
    with pytest.raises(ModelError, match=r"^no such model here$"):
        run(pool_on(cluster), 2, Opener(-1))
    assert cluster.stopped
    with pytest.raises(RequestError, match=r"^a bad request$"):
        run(pool_on(cluster), 1, start=99)
    with pytest.raises(RuntimeError, match=r"(?s)^a worker of the pool failed\n.*ZeroDivisionError: a bug"):
        run(pool_on(cluster), 1, start=98)


def test_who_stops_reading_ends_the_workers_that_are_busy() -> None:
    cluster = FakeCluster(2)
    results = pool_on(cluster).run(Opener(), 9, lambda number: partial(do, number))
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert sorted(cluster.stopped) == [0, 1]


def test_the_user_is_told_once_if_no_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr("foretell.scale.pool.time.monotonic", lambda: next(clock))
    notes: list[str] = []
    cluster = FakeCluster(4, pending=4)
    results = pool_on(cluster, note=notes.append).run(Opener(needs=Needs(2, 1)), 4, lambda number: partial(do, number))

    def wait(jobs: Any, seconds: float) -> Any:
        if next(clock) > 400:
            cluster.pending = 0
        return FakeCluster.wait(cluster, jobs, seconds)

    monkeypatch.setattr(cluster, "wait", wait)
    assert len(list(results)) == 4
    assert notes == ["no worker is ready yet; each needs 2 CPU and 1 GPU on one machine of the cluster"]


def test_a_bad_number_of_workers_and_a_missing_extra() -> None:
    with pytest.raises(RequestError, match="the number of workers must be from 1 to 4096, got 0"):
        Pool("auto", 0)
    with pytest.raises(MissingExtraError, match=r"pip install 'foretell\[ray\]'"):
        Pool("auto")
