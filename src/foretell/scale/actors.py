"""Ray's part of the pool: connect to a cluster, and run workers as actors."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from foretell.errors import RequestError
from foretell.scale.pool import Job, Reply, Worker, WorkerLostError
from foretell.workers import Needs

TRIES = 3  # to start a local cluster: Ray gives up after 30 seconds, which a busy machine may need
REACHED = 10.0  # seconds in which a cluster has to accept a connection
LONGEST = 300  # characters of a reason


def connect(address: str) -> None:
    """Connect this process to a cluster: "auto", "local" or an address. Does nothing if it is connected already."""
    if ray.is_initialized():
        return
    # Ray handles SIGTERM in its own way; a command ends as after Ctrl-C.
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        _connect(address)
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


def _connect(address: str) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        for attempt in range(TRIES):
            try:
                ray.init(address="local", include_dashboard=False, **quiet)
            except Exception as error:  # Ray raises plain exceptions
                ray.shutdown()
                if attempt == TRIES - 1:
                    raise RequestError(f"no local Ray cluster could be started: {_shorten(error)}") from error
            else:
                return
    if address != "auto":
        _check_reachable(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        hint = (
            "no Ray cluster is running on this machine: start one (ray start --head), give its address (--ray "
            "host:6379), or use --ray local"
            if address == "auto"
            else f"there is no Ray cluster at {address!r}"
        )
        raise RequestError(f"{hint} ({_shorten(error)})") from error


def _check_reachable(address: str) -> None:
    """Raise RequestError if nothing listens at an address. Ray would try again for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACHED).close()
    except (OSError, ValueError, OverflowError) as error:
        raise RequestError(f"there is no Ray cluster at {address!r} ({_shorten(error)})") from None


def _shorten(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:LONGEST] or type(error).__name__


class RayCluster:
    """Implements `Cluster`."""

    def __init__(self, address: str) -> None:
        connect(address)
        self._actor: Any = ray.remote(Worker)

    def room(self, needs: Needs) -> int:
        found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return sum(
            int(min(one.get("CPU", 0) // needs.cpus, one.get("GPU", 0) // needs.gpus if needs.gpus else 2**31))
            for one in found
        )

    def start(self, opener: Callable[[], Any], needs: Needs) -> tuple[Any, Job]:
        # Not restarted by Ray, which would wait for a machine that may never come back.
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        worker = self._actor.options(**options).remote()
        return worker, worker.open.remote(opener)

    def submit(self, worker: Any, task: Callable[[Any], Any]) -> Job:
        return worker.run.remote(task)

    def wait(self, jobs: Sequence[Job], seconds: float) -> Sequence[Job]:
        over, _ = ray.wait(list(jobs), num_returns=1, timeout=seconds)
        if not over:
            return ()
        all_over: list[Job] = ray.wait(list(jobs), num_returns=len(jobs), timeout=0)[0]
        return all_over

    def result(self, job: Job) -> Reply:
        try:
            reply: Reply = ray.get(job)
        except RayActorError as error:
            raise WorkerLostError(_shorten(error)) from error
        except RayTaskError:  # a reply that cannot be sent
            raise
        except RayError as error:  # its result was on a machine that is lost
            raise WorkerLostError(_shorten(error)) from error
        return reply

    def stop(self, worker: Any) -> None:
        ray.kill(worker)
