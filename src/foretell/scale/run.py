"""Run a server of replicas until a signal: connect to a Ray cluster, start the application, and drain it."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from foretell.engine.folder import folder_of
from foretell.errors import ForetellError, RequestError, show
from foretell.extras import require_extra
from foretell.models.hub import is_hub_id

require_extra("ray")

import ray  # noqa: E402  the check comes first
from ray import serve  # noqa: E402

from foretell.scale.actors import connect  # noqa: E402
from foretell.scale.serve import FRONT, NAME, serve_app  # noqa: E402

LOCAL = "local"  # a new cluster on this machine
EXTRA = 10.0  # seconds beyond the grace for what Ray does itself
STARTING = 60.0  # seconds in which the address has to answer once the replicas run


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where to run, and where to listen."""

    ray: str = LOCAL  # "local", "auto" (the running cluster that this machine is part of), or an address
    host: str = "127.0.0.1"
    port: int = 8000
    grace: float = 30.0


def run_server(
    cluster: Cluster,
    model: str,
    options: Mapping[str, Any],
    *,
    greet: Callable[[str, dict[str, Any]], None],
    wait: Callable[[], object],
    report: Callable[[str], None],
) -> None:
    """Serve a model with `serve_app(model, **options)` until `wait` returns.

    `greet` is called with the address and the content of `/foretell/info` as soon as it answers, and `report` with
    messages before and after. Requests that run when `wait` returns get `cluster.grace` seconds.
    """
    if cluster.ray in (LOCAL, "auto") and not is_hub_id(model):
        folder_of(model)  # raises ModelError if it is missing; other clusters may have it on their own disks
    if cluster.ray.startswith("ray://"):
        raise RequestError(f"--ray {show(cluster.ray)}: a server cannot be started by Ray's client; give HOST:6379")
    connect(cluster.ray)
    try:
        chosen = {**options, "gpus": _choose_gpus(options)}
        check_room(cluster.ray, chosen)
        application = serve_app(model, grace=cluster.grace, **chosen)
        port = cluster.port or _free_port(cluster.host)
        serve.start(http_options={"host": cluster.host, "port": port})
        report(f"starting {chosen['replicas']} replicas of {model} on Ray")
        try:
            serve.run(application, name=NAME, route_prefix="/")
            greet(*_find_address(cluster.host, port))
            wait()
            report("finishing the running requests")
            drain(cluster.grace)
        except RuntimeError as error:
            raise ForetellError(f"Ray Serve could not start the server: {error}") from None
        finally:
            serve.delete(NAME)
    finally:
        if cluster.ray == LOCAL:
            serve.shutdown()
        ray.shutdown()


def check_room(address: str, options: Mapping[str, Any]) -> None:
    """Raise RequestError if a local cluster, which cannot grow, has no room for the replicas."""
    if address != LOCAL:
        return
    total = ray.cluster_resources()
    for name, each in (("CPU", options["cpus"]), ("GPU", options["gpus"])):
        needed, there = each * (options.get("max_replicas") or options["replicas"]), total.get(name, 0.0)
        if needed > there:
            raise RequestError(
                f"the replicas need {needed:g} {name}s, {each:g} each, and this machine has {there:g}: start fewer, "
                f"or give each less with --{name.lower()}s"
            )


def _choose_gpus(options: Mapping[str, Any]) -> float:
    """Return the GPUs of a replica: by default one, if the cluster has any and the device is not something else."""
    given, device = options.get("gpus"), options.get("device", "auto")
    if given is not None:
        return float(given)
    return float(device.startswith("cuda") or (device == "auto" and ray.cluster_resources().get("GPU", 0) > 0))


def drain(seconds: float) -> None:
    """Refuse new requests, and wait for those that run, `seconds` at most."""
    front = serve.get_deployment_handle(FRONT, NAME)
    with suppress(TimeoutError):  # the front is gone or hangs, so nothing can be waited for
        front.broadcast("drain", seconds).results(timeout_s=seconds + EXTRA, return_exceptions=True)


def _find_address(host: str, port: int) -> tuple[str, dict[str, Any]]:
    """Wait until the server answers, and return its address and what it says about itself."""
    name = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host  # noqa: S104  compared with, not bound to
    address = f"http://{f'[{name}]' if ':' in name else name}:{port}"
    deadline = time.monotonic() + STARTING
    while True:
        try:
            with urllib.request.urlopen(f"{address}/foretell/info", timeout=STARTING) as answer:  # noqa: S310  http
                info: dict[str, Any] = json.load(answer)
            return address, info
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise ForetellError(
                    f"the server runs, but {address} does not answer ({error}); if Ray Serve was running on this "
                    "cluster before, it keeps its own address (stop it with: serve shutdown)"
                ) from None
            time.sleep(0.5)


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as one:
        port: int = one.getsockname()[1]
    return port
