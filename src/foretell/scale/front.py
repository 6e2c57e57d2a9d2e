"""The front: an ASGI app without a model, which sends every request to one of the replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from foretell.errors import RequestError, whole, within
from foretell.scale.delivery import Delivery
from foretell.scale.exchange import Exchange, Part, Start, Taken
from foretell.scale.groups import FAMILIES, find_group
from foretell.scale.routing import ASSIGNMENT, Assignment, Watch
from foretell.scale.totals import Totals
from foretell.serve.guard import Access, Guard
from foretell.serve.metrics import SECONDS
from foretell.serve.problems import RETRY_AFTER, Problem
from foretell.serve.reply import Json
from foretell.serve.service import Limits

SLICE = 1.0  # seconds between two looks at the clock while a replica is silent
CACHED = ("/", "/static/", "/foretell/info", "/v1/models")  # GET routes that always return the same
MOST_CACHED = 64
ANSWERING = 5.0  # seconds in which replicas have to answer for /metrics


class LostError(Exception):
    """The replica that answers a request has died or does not respond. `args` has the reason, one word."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long replicas may take to respond, and how often a request is tried."""

    beat: float = 2.0  # seconds between two signs of life of a replica
    silence: float = 20.0  # seconds without a sign of life, after which a request is sent to another replica
    stall: float = 300.0  # seconds of one step, after which a replica counts as hung
    attempts: int = 3  # maximum number of replicas that a request is sent to

    def __post_init__(self) -> None:
        within("beat", self.beat, 0.01, 3600, RequestError)
        within("silence", self.silence, self.beat, 3600, RequestError)
        within("stall", self.stall, 0.01, 1e6, RequestError)
        whole("attempts", self.attempts, 1, 100, error=RequestError)


class Sending(Protocol):
    """A request on its way: an iterator of its parts. It raises LostError, or Problem if the fleet refuses it."""

    def __aiter__(self) -> AsyncIterator[Part]: ...

    def cancel(self) -> None: ...


class Fleet(Protocol):
    """The replicas."""

    def send(self, exchange: Exchange, group: str) -> Sending:
        """Send a request to the replica that the router chooses."""

    async def ask_all(self, method: str, *args: Any, seconds: float) -> list[Any]:
        """Call a method of every replica, and return the results of those that answer. Raises TimeoutError."""

    async def count(self) -> Mapping[str, int]:
        """Return the number of replicas by state, such as RUNNING."""


class FrontMetrics:
    """The metrics of the front itself."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.totals = Totals()
        self.registry.register(self.totals)
        self.requests = Counter(
            "foretell_requests", "Requests by route and outcome.", ("route", "outcome"), registry=self.registry
        )
        self.latency = Histogram(
            "foretell_request_seconds", "Time from arrival to the last byte.", buckets=SECONDS, registry=self.registry
        )
        self.routing = Histogram(
            "foretell_routing_seconds",
            "Time until a replica took the request.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.waiting = Gauge(
            "foretell_routing_waiting", "Requests that no replica has taken yet.", registry=self.registry
        )
        self.retries = Counter(
            "foretell_retries", "Requests sent to another replica, by reason.", ("reason",), registry=self.registry
        )
        self.replicas = Gauge("foretell_replicas", "Replicas by state.", ("state",), registry=self.registry)
        self.complete = Gauge(
            "foretell_replicas_answered", "1 if every replica answered this scrape.", registry=self.registry
        )


class Front:
    """Checks requests, sends them to replicas, and tries another one if a replica is lost before it has answered."""

    def __init__(self, fleet: Fleet, watch: Watch, limits: Limits, access: Access, patience: Patience) -> None:
        self.fleet, self.watch, self.limits, self.access, self.patience = fleet, watch, limits, access, patience
        self.draining = False
        self.running = 0  # requests
        self.metrics = FrontMetrics()
        self._cache: dict[str, list[Part]] = {}

    def app(self) -> Starlette:
        """Return the ASGI app."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._metrics),
                Route("/foretell/replay", self._replay, methods=["POST"]),
                Route("/{path:path}", _Asgi(self.forward)),
            ],
            middleware=[Middleware(Guard, service=self, access=self.access)],
        )

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait until those that run are done, `seconds` at most."""
        self.draining = True
        deadline = time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    async def _health(self, _: Request) -> Response:
        running = await self._count_running()
        if not running:
            raise Problem(503, "no replica is running", code="no_replica")
        return Json({"status": "ok", "replicas": running})

    async def _ready(self, _: Request) -> Response:
        running = await self._count_running()
        if self.draining or not running:
            raise Problem(503, "the server is starting or shutting down", code="not_ready")
        return Json({"status": "ready", "replicas": running})

    async def _count_running(self) -> int:
        return (await self.fleet.count()).get("RUNNING", 0)

    async def _metrics(self, _: Request) -> Response:
        try:
            self.metrics.totals.update(dict(await self.fleet.ask_all("metrics", seconds=ANSWERING)))
            self.metrics.complete.set(1)
        except TimeoutError:  # a replica hangs; what is known of all of them is from the scrape before
            self.metrics.complete.set(0)
        self.metrics.replicas.clear()
        for state, count in (await self.fleet.count()).items():
            self.metrics.replicas.labels(state).set(count)
        return PlainTextResponse(generate_latest(self.metrics.registry), media_type="text/plain; version=0.0.4")

    async def _replay(self, request: Request) -> Response:
        """Ask every replica for a run: only the one that decoded it keeps it."""
        exchange = _exchange(request.scope, await request.body())
        try:
            found = await self.fleet.ask_all("answer_whole", exchange, seconds=self.limits.timeout)
        except TimeoutError:
            raise self._took_too_long() from None
        if not found:
            raise Problem(503, "no replica is running", code="no_replica")
        status, headers, body = min(found, key=lambda one: one[0])  # 200 is the lowest
        return Response(body, status, dict(headers))

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by a replica."""
        began, outcome = time.perf_counter(), "failed"
        path = scope["path"]
        delivery = Delivery(send)
        self.running += 1
        try:
            if scope["method"] == "GET" and path in self._cache:
                await _play(self._cache[path], delivery)
                return
            exchange = _exchange(scope, await _read(receive))
            leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
            try:
                outcome = await self._try_replicas(exchange, delivery, leaving, began)
            finally:
                leaving.cancel()
        except ClientDisconnect:
            outcome = "left"
        except asyncio.CancelledError:  # Serve cancels the requests of clients that have closed their connection
            outcome = _outcome(delivery.status) if delivery.whole else "left"
            raise
        except Problem as problem:
            outcome = "refused" if problem.status < 500 else "failed"
            if not delivery.status:
                raise
            await delivery.fail(problem)
        finally:
            self.running -= 1
            if path in FAMILIES:
                self.metrics.requests.labels(path, outcome).inc()
                self.metrics.latency.observe(time.perf_counter() - began)
            scope["state"]["work"] = f" {outcome}"

    async def _try_replicas(
        self, exchange: Exchange, delivery: Delivery, leaving: asyncio.Future[None], began: float
    ) -> str:
        """Send a request to one replica after another until one has answered it, and return the outcome."""
        group = find_group(exchange.path, exchange.body)
        reason = ""
        for _ in range(self.patience.attempts):
            if reason:
                self.metrics.retries.labels(reason).inc()
            delivery.restart()
            try:
                return await self._try_replica(exchange, group, delivery, leaving, began)
            except LostError as lost:
                reason = str(lost)
                if delivery.committed:
                    break
        words = "in the middle of its answer" if delivery.committed else f"{self.patience.attempts} times in a row"
        raise Problem(
            503,
            f"the replica that answered this request was lost {words} ({reason}); send the request again",
            code="replica_lost",
            headers={"retry-after": RETRY_AFTER},
        )

    async def _try_replica(
        self, exchange: Exchange, group: str, delivery: Delivery, leaving: asyncio.Future[None], began: float
    ) -> str:
        """Pass on what one replica answers, and return the outcome. Raises LostError if it dies or is silent."""
        assignment = Assignment()
        ASSIGNMENT.set(assignment)
        sending = self.fleet.send(exchange, group)
        parts = aiter(sending)
        kept: list[Part] = []
        finished = False
        self.metrics.waiting.inc()
        try:
            heard = 0.0
            reading = asyncio.ensure_future(_next(parts))
            while True:
                awaited: set[asyncio.Future[Any]] = {reading} if delivery.whole else {reading, leaving}
                await asyncio.wait(awaited, timeout=SLICE, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done() and not delivery.whole:
                    return "left"
                if time.perf_counter() - began > self.limits.timeout:
                    raise self._took_too_long()
                if not reading.done():
                    self._check_silence(assignment, heard)
                    continue
                part, more = reading.result()
                if not more:
                    finished = True
                    await delivery.end()
                    self._keep(exchange, delivery, kept)
                    return _outcome(delivery.status)
                if not heard:
                    self.metrics.waiting.dec()
                    self.metrics.routing.observe(time.perf_counter() - began)
                heard = time.monotonic()
                if isinstance(part, Taken):
                    assignment.replica = part.replica
                self.watch.note_heard(assignment.replica or "")
                kept.append(part)
                await _deliver(part, delivery)
                reading = asyncio.ensure_future(_next(parts))
        finally:
            if not heard:
                self.metrics.waiting.dec()
            if not finished:
                reading.cancel()
                sending.cancel()

    def _check_silence(self, assignment: Assignment, heard: float) -> None:
        """Raise LostError if a request has a replica that has not been heard of for too long."""
        last = max(assignment.since, heard)
        if assignment.replica is not None and time.monotonic() - last > self.patience.silence:
            self.watch.note_silent(assignment.replica)
            raise LostError("silent")

    def _keep(self, exchange: Exchange, delivery: Delivery, parts: list[Part]) -> None:
        """Remember the page and its files, which are the same on every replica and do not change."""
        fixed = exchange.path.startswith(CACHED[1]) or exchange.path in CACHED
        if exchange.method == "GET" and delivery.status == 200 and fixed and len(self._cache) < MOST_CACHED:
            self._cache[exchange.path] = parts

    def _took_too_long(self) -> Problem:
        return Problem(
            504,
            f"the answer took more than {self.limits.timeout:g} seconds, the limit of this server",
            code="timeout",
            headers={"x-should-retry": "false"},
        )


class _Asgi:
    """A route that is an ASGI app, for all methods."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def _exchange(scope: Scope, body: bytes) -> Exchange:
    """Return a request for a replica, which logs it under the same id."""
    headers = [(name, value) for name, value in scope["headers"] if name != b"x-request-id"]
    headers.append((b"x-request-id", scope["state"]["request_id"].encode()))
    return Exchange(scope["method"], scope["path"], scope["query_string"], tuple(headers), body)


async def _read(receive: Receive) -> bytes:
    """Return the body. The guard, which counts its bytes, raises Problem if it is too long."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _next(parts: AsyncIterator[Part]) -> tuple[Part, bool]:
    """Return the next part, and whether there is one."""
    try:
        return await anext(parts), True
    except StopAsyncIteration:
        return None, False


async def _deliver(part: Part, delivery: Delivery) -> None:
    if isinstance(part, Start):
        await delivery.start(part)
    elif isinstance(part, bytes):
        await delivery.body(part)


async def _play(parts: list[Part], delivery: Delivery) -> None:
    """Send a stored response."""
    for part in parts:
        await _deliver(part, delivery)
    await delivery.end()


def _outcome(status: int) -> str:
    return "ok" if status < 400 else "refused" if status < 500 else "failed"
