"""Ray's part of the pool: connect to a cluster, and run workers as actors."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from foretell.errors import RequestError, show
from foretell.scale.pool import Job, Reply, Worker, WorkerLostError
from foretell.workers import Needs

TRIES = 3  # to start a local cluster: Ray gives up after 30 seconds, which a busy machine may need
REACHED = 10.0  # seconds in which a cluster has to accept a connection
LONGEST = 300  # characters of a reason
LOCAL = "local"  # a new cluster on this machine
NO_CLUSTER = {
    LOCAL: "no Ray cluster could be started on this machine",
    "auto": "this machine belongs to no Ray cluster (start one with: ray start --head; or give the address of one)",
}


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
    known = _find_noted() if address == "auto" else None if address == LOCAL else address
    if known is not None:
        _check_reachable(known)
    local = {"include_dashboard": False} if address == LOCAL else {}
    for left in reversed(range(TRIES if address == LOCAL else 1)):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error", **local)
        except Exception as error:  # noqa: BLE001  Ray raises many kinds
            ray.shutdown()
            if left == 0:
                raise RequestError(
                    f"{NO_CLUSTER.get(address, f'there is no Ray cluster at {show(address)}')}: {_shorten(error)}"
                ) from None
        else:
            return


def _find_noted() -> str | None:
    """Return the address that Ray connects to for "auto", which may be that of a cluster that was killed."""
    try:
        from ray._private.services import get_ray_address_from_environment  # noqa: PLC0415  may not be there
    except ImportError:  # private to Ray
        return None
    try:
        noted: str | None = get_ray_address_from_environment("auto", None)
    except ConnectionError:  # none is noted, and Ray says so at once
        return None
    return noted


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
        except RayTaskError:  # a reply that cannot be sent: a bug
            raise
        except RayError as error:  # the worker, its machine or a large reply that was still there is lost
            raise WorkerLostError(_shorten(error)) from error
        return reply

    def stop(self, worker: Any) -> None:
        ray.kill(worker)
