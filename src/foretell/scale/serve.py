"""A server of many replicas on Ray Serve: `foretell.scale.serve_app(model, replicas=4)`."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from math import ceil
from pathlib import Path
from typing import Any

from foretell.engine.certificate import Certificate, recipe_of
from foretell.errors import RequestError, show, unknown, whole, within
from foretell.extras import require_extra
from foretell.recipes.presets import parse

require_extra("ray")
require_extra("server")

import ray  # noqa: E402  the check comes first
from ray import serve  # noqa: E402
from ray.exceptions import RayError, RayTaskError, TaskCancelledError  # noqa: E402
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError  # noqa: E402
from ray.serve.handle import DeploymentHandle  # noqa: E402

from foretell.scale.exchange import Exchange, Part, Start, Taken, answer_exchange  # noqa: E402
from foretell.scale.front import Front, LostError, Patience  # noqa: E402
from foretell.scale.routing import BALANCE, watch  # noqa: E402
from foretell.serve import Access, Limits, app  # noqa: E402
from foretell.serve.guard import LOG  # noqa: E402
from foretell.serve.problems import BUG, Problem, busy  # noqa: E402

NAME = "foretell"  # of the application
REPLICA, FRONT = "Replica", "Front"  # names of its deployments
AHEAD = 1.25  # requests that a replica holds, as a multiple of its batch, so that a free slot is filled at once
SPARE = 16  # calls that a full replica still answers, such as those for its metrics
HEAD = {"node:__internal_head__": 0.001}  # a resource that only the head node has
CHECK = 5.0  # seconds between two health checks


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a replica loads its model."""

    model: str
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    packed: bool | None = None
    compile: bool = False
    quantize: str | None = None


class Replica:
    """The server of one model, which gets its requests from the front."""

    def __init__(
        self, options: ModelOptions, recipes: Sequence[str | tuple[str, str]], limits: Limits, key: str | None,
        patience: Patience, grace: float,
    ) -> None:  # fmt: skip
        import foretell  # noqa: PLC0415  loads torch in the replica only

        engine = foretell.load(
            options.model, options.device, options.dtype, packed=options.packed, compile=options.compile,
            quantize=options.quantize,
        )  # fmt: skip
        engine.use_threads(options.threads)
        self._patience = patience
        self._folder = tempfile.TemporaryDirectory(prefix="foretell-")
        chosen = tuple(_unpack(one, Path(self._folder.name)) for one in recipes)
        self._app = app(engine, recipes=chosen, limits=limits, access=Access(key, (), ("*",)), grace=grace)
        self._service = self._app.state.service
        self._service.worker.start()
        self._name = serve.get_replica_context().replica_id.unique_id

    async def answer(self, exchange: Exchange, *, group: str) -> AsyncIterator[Part]:
        """Yield the parts of a response."""
        del group  # the router has read it
        yield Taken(self._name)
        async for part in answer_exchange(self._app, exchange, self._patience.beat, self._is_stalled):
            yield part

    async def answer_whole(self, exchange: Exchange) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        """Return a whole response: its status, headers and body."""
        status, headers, body = 500, tuple[tuple[str, str], ...](), b""
        async for part in answer_exchange(self._app, exchange, self._patience.beat, self._is_stalled):
            if isinstance(part, Start):
                status = part.status
                headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in part.headers)
            elif part is not None:
                body += part
        return status, headers, body

    async def metrics(self) -> tuple[str, str]:
        """Return the replica's name and its metrics."""
        return self._name, self._service.metrics.text().decode()

    async def locate(self) -> tuple[str, int, str]:
        """Return the replica's name, its process id and its node."""
        return self._name, os.getpid(), ray.get_runtime_context().get_node_id()

    async def check_health(self) -> None:
        """Raise RuntimeError if the thread that decodes has ended or hangs, so that Serve replaces the replica."""
        if not self._service.worker.alive:
            raise RuntimeError("the thread that decodes has ended")
        if self._is_stalled():
            raise RuntimeError(f"a step takes more than {self._patience.stall:g} seconds")

    def _is_stalled(self) -> bool:
        stalled: float = self._service.worker.stalled
        return stalled > self._patience.stall


class ServeFleet:
    """The replicas behind a handle."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._streaming = handle.options(stream=True)
        self._app = serve.get_replica_context().app_name

    def send(self, exchange: Exchange, group: str) -> RaySending:
        return RaySending(self._streaming, exchange, group)

    async def ask_all(self, method: str, *args: Any, seconds: float) -> list[Any]:
        found = await self._handle.broadcast(method, *args).results_async(timeout_s=seconds, return_exceptions=True)
        return [one for one in found if not isinstance(one, Exception)]

    async def count(self) -> Mapping[str, int]:
        status = await asyncio.to_thread(serve.status)
        deployment = status.applications[self._app].deployments[REPLICA]
        return {str(getattr(state, "value", state)): count for state, count in deployment.replica_states.items()}


class RaySending:
    """A request on its way to a replica."""

    def __init__(self, handle: DeploymentHandle, exchange: Exchange, group: str) -> None:
        self._response = handle.answer.remote(exchange, group=group)

    async def __aiter__(self) -> AsyncIterator[Part]:
        try:
            async for part in self._response:
                yield part
        except (TaskCancelledError, RequestCancelledError):
            raise LostError("cancelled") from None
        except RayTaskError:
            LOG.exception("the server of a replica failed")
            raise BUG from None
        except RayError:  # the replica, its node, or what it has sent is gone
            raise LostError("died") from None
        except BackPressureError:
            raise busy("all replicas are full, and no more requests may wait", "busy") from None
        except DeploymentUnavailableError:
            raise Problem(503, "no replica can be started; the logs of Ray Serve say why", code="no_replica") from None

    def cancel(self) -> None:
        with suppress(Exception):  # of a request that has failed, Ray raises its error again
            self._response.cancel()


class FrontReplica:
    """The deployment that receives all HTTP requests."""

    def __init__(self, replicas: DeploymentHandle, limits: Limits, access: Access, patience: Patience) -> None:
        self._front = Front(ServeFleet(replicas), watch(), limits, access, patience)

    def __serve_build_asgi_app__(self) -> Any:
        return self._front.app()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait for those that run."""
        await self._front.drain(seconds)


def serve_app(
    model: str,
    *,
    replicas: int = 1,
    max_replicas: int | None = None,
    cpus: float = 1.0,
    gpus: float | None = None,
    recipes: Sequence[str] = (),
    limits: Limits | None = None,
    access: Access | None = None,
    patience: Patience | None = None,
    balance: float = BALANCE,
    grace: float = 30.0,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    packed: bool | None = None,
    compile: bool = False,  # noqa: A002  torch's own word
    quantize: str | None = None,
) -> serve.Application:
    """Return an application for Ray Serve: replicas that decode, and a front that receives the requests.

    `ray.serve.run(serve_app("tiny", replicas=4))` starts it. Every replica loads the model and needs `cpus` and `gpus`
    of one node; by default `gpus` is 1 if `device` names CUDA, and otherwise 0. With `max_replicas`, Ray adds replicas
    when more than a batch of requests per replica waits or runs, and removes them again. `limits.max_waiting` requests
    may wait for a replica. A replica with more than `balance` times the mean number of requests is passed over.
    """
    whole("replicas", replicas, 1, error=RequestError)
    if max_replicas is not None:
        whole("max_replicas", max_replicas, replicas, error=RequestError)
    within("cpus", cpus, 0.0, 1e5, RequestError)
    gpus = float(device.startswith("cuda")) if gpus is None else gpus
    within("gpus", gpus, 0.0, 1e4, RequestError)
    within("balance", balance, 1.0, 1e6, RequestError)
    within("grace", grace, 0.0, 1e6, RequestError)
    limits, access, patience = limits or Limits(), access or Access(), patience or Patience()
    sent = [_pack(one) for one in recipes]
    there = str(Path(model).resolve()) if Path(model).exists() else model  # a replica has another current folder
    options = ModelOptions(there, device, dtype, threads or _threads(cpus), packed, compile, quantize)
    scaling = (
        {"num_replicas": replicas}
        if max_replicas is None
        else {
            "autoscaling_config": {
                "min_replicas": replicas,
                "max_replicas": max_replicas,
                "target_ongoing_requests": limits.max_batch,
            }
        }
    )
    capacity = ceil(AHEAD * limits.max_batch)  # requests that a replica has at the same time
    replica = serve.deployment(
        Replica,
        name=REPLICA,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        max_ongoing_requests=capacity + SPARE,
        max_queued_requests=limits.max_waiting,
        graceful_shutdown_timeout_s=grace,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=min(CHECK, patience.silence),
        health_check_timeout_s=patience.silence,
        request_router_config={
            "request_router_class": "foretell.scale.router.GroupRouter",
            "request_router_kwargs": {"capacity": capacity, "balance": balance},
        },
        **scaling,
    ).bind(options, sent, limits, access.key, patience, grace)
    most = (max_replicas or replicas) * capacity + limits.max_waiting
    front = serve.deployment(
        serve.ingress()(FrontReplica),
        name=FRONT,
        num_replicas=1,
        ray_actor_options={"num_cpus": 0, "resources": HEAD},
        max_ongoing_requests=2 * most + 100,  # it refuses what is too much itself, with a 429
        graceful_shutdown_timeout_s=grace,
        graceful_shutdown_wait_loop_s=0.2,
    )
    return front.bind(replica, limits, access, patience)


def build(args: dict[str, Any]) -> serve.Application:
    """Return the application for a config file of Ray Serve: `import_path: foretell.scale.serve:build`.

    Its `args` are the arguments of `serve_app`, those of `Limits` and `Patience`, and `hosts` and `origins`. The key of
    clients is the variable FORETELL_API_KEY, so that it is in no file.
    """
    given = dict(args)
    chosen: dict[str, Any] = {}
    for name, kind in (("limits", Limits), ("patience", Patience)):
        fields = kind.__dataclass_fields__
        chosen[name] = kind(**{field: given.pop(field) for field in [*given] if field in fields})
    hosts, origins = tuple(given.pop("hosts", ())), tuple(given.pop("origins", ()))
    allowed = signature(serve_app).parameters.keys() - {"limits", "access", "patience"}
    for name in given:
        if name not in allowed:
            raise RequestError(unknown("argument", name, [*allowed, *Limits.__dataclass_fields__]))
    if "model" not in given:
        raise RequestError("args needs a model: a folder, a bundled model, or owner/name on the Hugging Face hub")
    access = Access(os.environ.get("FORETELL_API_KEY") or None, hosts, origins)
    return serve_app(given.pop("model"), access=access, **given, **chosen)


def _threads(cpus: float) -> int | None:
    """Return the number of torch threads of a replica that has this many CPUs; None leaves it to the model's size."""
    return int(cpus) if cpus > 1 else None


def _pack(given: str) -> str | tuple[str, str]:
    """Return a recipe's text, or the name and the text of a certified file, which other machines do not have."""
    found = recipe_of(given)
    if isinstance(found, Certificate):
        path = Path(given)
        return path.name, path.read_text()
    if not isinstance(found, str):
        raise RequestError(f"a recipe must be a text or a file, got {show(given)}")
    parse(found)
    return found


def _unpack(one: str | tuple[str, str], folder: Path) -> str:
    """Return a recipe's text, or the file that it was packed from."""
    if isinstance(one, str):
        return one
    path = folder / one[0]
    path.write_text(one[1])
    return str(path)
