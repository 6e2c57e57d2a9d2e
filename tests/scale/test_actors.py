"""What the pool asks of Ray, on a fake of its interface; `make test-ray` runs the same on a cluster."""

from __future__ import annotations

import importlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from foretell.errors import RequestError
from foretell.scale.pool import Pool, Worker, WorkerLostError
from foretell.workers import Needs


class FakeRayError(Exception):
    """`RayError`."""


class FakeTaskError(FakeRayError):
    """`RayTaskError`."""


@dataclass(eq=False)
class FakeMethod:
    call: Callable[..., Any]

    def remote(self, *given: Any) -> Any:
        return partial(self.call, *given)


@dataclass(eq=False)
class FakeActor:
    worker: Worker

    def __getattr__(self, name: str) -> FakeMethod:
        return FakeMethod(getattr(self.worker, name))


@dataclass
class FakeRay:
    """The functions of the module `ray` that are used."""

    nodes_found: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)  # options of actors
    inits: list[dict[str, Any]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)  # of the next calls of init
    shutdowns: int = 0
    killed: list[Any] = field(default_factory=list)

    def is_initialized(self) -> bool:
        return bool(self.inits) and self.shutdowns < len(self.inits)

    def init(self, **options: Any) -> None:
        self.inits.append(options)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray does
        if self.failures:
            raise self.failures.pop(0)

    def shutdown(self) -> None:
        self.shutdowns += 1

    def nodes(self) -> list[dict[str, Any]]:
        return self.nodes_found

    def remote(self, kind: type) -> Any:
        def options(**given: Any) -> Any:
            self.asked.append(given)
            return _Maker(kind)

        return type("ActorClass", (), {"options": staticmethod(options)})

    def wait(self, jobs: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert 1 <= num_returns <= len(jobs)
        over = [job for job in jobs if not hasattr(job, "pending")][:num_returns]
        return over, [job for job in jobs if job not in over]

    def get(self, job: Any) -> Any:
        return job()

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


@dataclass
class _Maker:
    kind: type

    def remote(self) -> FakeActor:
        return FakeActor(self.kind())


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake, module, exceptions = FakeRay(), ModuleType("ray"), ModuleType("ray.exceptions")
    for name in ("is_initialized", "init", "shutdown", "nodes", "remote", "wait", "get", "kill"):
        setattr(module, name, getattr(fake, name))
    vars(exceptions).update(RayError=FakeRayError, RayTaskError=FakeTaskError)
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    monkeypatch.delitem(sys.modules, "foretell.scale.actors", raising=False)
    monkeypatch.setattr("foretell.scale.pool.require_extra", lambda extra: None)
    yield fake
    sys.modules.pop("foretell.scale.actors", None)


@pytest.fixture
def head() -> Iterator[str]:
    """Return an address at which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def actors() -> Any:
    return importlib.import_module("foretell.scale.actors")


@dataclass(frozen=True)
class Opener:
    needs: Needs = Needs(2)

    def __call__(self) -> str:
        return "opened"


def double(number: int, held: str) -> str:
    return f"{held} {2 * number}"


def test_a_pool_on_ray(ray: FakeRay, head: str) -> None:
    ray.nodes_found = [{"Alive": True, "Resources": {"CPU": 5.0}}]
    with Pool(head) as pool:
        found = dict(pool.run(Opener(), 5, lambda number: partial(double, number)))
    assert found == {number: f"opened {2 * number}" for number in range(5)}
    assert [one["address"] for one in ray.inits] == [head]
    assert ray.asked == [{"num_cpus": 2, "num_gpus": 0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}] * 2
    assert len(ray.killed) == 2, "when the pool is closed"


def test_room_is_counted_by_machine(ray: FakeRay) -> None:
    ray.nodes_found = [
        {"Alive": True, "Resources": {"CPU": 5.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
        {"Alive": True, "Resources": {}},
    ]
    cluster = actors().RayCluster("auto")
    assert [cluster.room(Needs(cpus)) for cpus in (1, 2, 3, 4, 6)] == [8, 3, 2, 1, 0]
    assert [cluster.room(Needs(1, gpus)) for gpus in (1, 2, 3)] == [2, 1, 0]


def test_all_jobs_that_are_over_are_returned(ray: FakeRay) -> None:
    cluster = actors().RayCluster("auto")
    jobs = [partial(int), partial(int), partial(int)]
    jobs[1].pending = True  # type: ignore[attr-defined]
    assert cluster.wait(jobs, 1.0) == [jobs[0], jobs[2]]
    assert list(cluster.wait(jobs[1:2], 1.0)) == []


def test_a_lost_worker_is_not_a_bug(ray: FakeRay) -> None:
    cluster = actors().RayCluster("auto")

    def lose() -> None:
        raise FakeRayError("The actor died.\n\n  its machine is gone " + 400 * "x")

    def fail() -> None:
        raise FakeTaskError("cannot pickle")

    with pytest.raises(WorkerLostError, match=r"^The actor died\. its machine is gone x{50,280}$"):
        cluster.result(lose)
    with pytest.raises(FakeTaskError):
        cluster.result(fail)


def test_a_local_cluster_gets_several_attempts(ray: FakeRay) -> None:
    """Ray gives up after 30 seconds."""
    ray.failures = [Exception("The current node timed out during startup.")] * 2
    actors().connect("local")
    assert (len(ray.inits), ray.shutdowns) == (3, 2)
    assert all(one["include_dashboard"] is False for one in ray.inits)
    actors().connect("local")
    assert len(ray.inits) == 3, "connected already"


@pytest.mark.parametrize(
    ("address", "attempts", "message"),
    [
        ("local", 3, "^no Ray cluster could be started on this machine: it is\nnot there$"),
        (
            "auto",
            1,
            r"^this machine belongs to no Ray cluster \(start one with: ray start --head; .*\): it is not there$",
        ),
        ("HEAD", 1, "^there is no Ray cluster at 'HEAD': it is not there$"),
    ],
)
def test_there_is_no_cluster(ray: FakeRay, head: str, address: str, attempts: int, message: str) -> None:
    address, message = (text.replace("HEAD", head) for text in (address, message))
    ray.failures = [ConnectionError("it is\nnot there")] * 9
    with pytest.raises(RequestError, match=message.replace("\n", " ")):
        actors().connect(address)
    assert len(ray.inits) == attempts


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1", "127.0.0.1:99999"])
def test_an_address_where_nothing_listens_fails_before_ray_tries_it(ray: FakeRay, address: str) -> None:
    with pytest.raises(RequestError, match=f"^there is no Ray cluster at '{address}' "):
        actors().connect(address)
    assert not ray.inits


def test_the_address_of_a_cluster_that_was_killed_fails_before_ray_tries_it(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = ModuleType("ray._private.services")
    services.get_ray_address_from_environment = lambda address, folder: "127.0.0.1:1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray._private.services", services)
    with pytest.raises(RequestError, match=r"^there is no Ray cluster at '127\.0\.0\.1:1' "):
        actors().connect("auto")
    assert not ray.inits
    actors().connect("local")
    assert len(ray.inits) == 1


def test_sigterm_still_ends_the_command(ray: FakeRay) -> None:
    before = signal.getsignal(signal.SIGTERM)
    actors().connect("auto")
    assert signal.getsignal(signal.SIGTERM) == before
    ray.inits.clear()
    thread = threading.Thread(target=actors().connect, args=("auto",))
    thread.start()
    thread.join()
    assert ray.inits, "signals belong to the main thread"
