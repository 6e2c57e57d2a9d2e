"""The ASGI app: OpenAI's routes, health, metrics, and the page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from foretell.certify.supervise import Supervisor
from foretell.engine.engine import Engine
from foretell.errors import ForetellError
from foretell.serve.answer import Answer
from foretell.serve.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, read_body
from foretell.serve.dialects import Chat, Dialect, Text
from foretell.serve.guard import Access, Guard
from foretell.serve.metrics import Metrics
from foretell.serve.offers import Offers
from foretell.serve.page import page_routes
from foretell.serve.problems import Problem, problem_of
from foretell.serve.reply import Json
from foretell.serve.service import Limits, Service
from foretell.serve.worker import Worker

GRACE = 30.0  # seconds that running requests get when the server stops
T = TypeVar("T")


def app(
    engine: Engine,
    *,
    recipes: tuple[str, ...] = (),
    limits: Limits | None = None,
    access: Access | None = None,
    supervisor: Supervisor | None = None,
    report: Callable[[Supervisor, Any], None] | None = None,
    grace: float = GRACE,
) -> Starlette:
    """Return a server for an engine, as an ASGI app. Its worker runs while the app's lifespan does.

    `recipes` are texts or files of certificates; clients may name them, and the first is the default. `supervisor`
    audits requests that name no recipe, and `report` is called with what its audits change.
    """
    limits, access = limits or Limits(), access or Access()
    offers = Offers.of(recipes, engine)
    worker = Worker(
        engine,
        max_batch=limits.max_batch,
        max_waiting=limits.max_waiting,
        max_groups=limits.max_groups,
        supervisor=supervisor,
        report=report,
    )
    metrics = Metrics(worker, supervisor)
    service = Service(engine, offers, limits, worker, metrics, supervisor, needs_key=access.key is not None)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        worker.start()
        try:
            yield
        finally:
            service.draining = True
            await run_in_threadpool(worker.stop, grace)

    made = Starlette(
        routes=[*_api_routes(service), *page_routes(service)],
        middleware=[Middleware(Guard, service=service, access=access)],
        exception_handlers={HTTPException: _explain_route},
        lifespan=lifespan,
    )
    made.state.service = service
    return made


def _api_routes(service: Service) -> list[BaseRoute]:
    made: list[BaseRoute] = [
        Route(dialect.route, partial(_complete, service, dialect, kind), methods=["POST"])
        for dialect, kind in ((Chat(), ChatBody), (Text(), CompletionBody))
    ]
    return [
        *made,
        Route("/v1/models", partial(_models, service)),
        Route("/v1/models/{name:path}", partial(_model, service)),
        Route("/tokenize", partial(_tokenize, service), methods=["POST"]),
        Route("/detokenize", partial(_detokenize, service), methods=["POST"]),
        Route("/health", partial(_health, service)),
        Route("/ready", partial(_ready, service)),
        Route("/metrics", partial(_metrics, service)),
    ]


async def _complete(
    service: Service, dialect: Dialect, kind: type[ChatBody | CompletionBody], request: Request
) -> Response | _Stream:
    began, outcome, streaming = time.perf_counter(), "ok", False
    answer: Answer | None = None
    try:
        body, notes = read_body(await request.body(), kind)
        choices = await run_in_threadpool(service.prepare, body, notes)
        answer = Answer(service, dialect, body, choices, began)
        answer.start()
        if body.stream:
            streaming = True  # it is closed when the stream ends
            return _Stream(answer)
        return Json(await _unless_left(request, answer.respond()))
    except Problem as problem:
        outcome = "refused" if problem.status < 500 else "failed"
        raise
    except ClientDisconnect:
        outcome = "left"
        return Response(status_code=499)
    finally:
        if not streaming:
            _close(service, dialect, answer, outcome, began, request.scope)


def _close(service: Service, dialect: Dialect, answer: Answer | None, outcome: str, began: float, scope: Scope) -> None:
    """Drop what is left of a request, count it, and describe it for the log."""
    service.metrics.requests.labels(dialect.route, outcome).inc()
    service.metrics.latency.observe(time.perf_counter() - began)
    if answer is None:
        return
    answer.close()
    scope["state"]["work"] = f" {outcome}, {answer.tokens} tokens, {answer.passes} passes, {answer.recipe}"


async def _unless_left(request: Request, work: Awaitable[T]) -> T:
    """Return the result of some work. Raises ClientDisconnect, and cancels the work, if the client leaves.

    The body has been read, so the only message that can still arrive is the disconnect.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_for_disconnect(request.receive))
    try:
        done, _ = await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working not in done:
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Stream(Response):
    """Server-sent events of an answer, until it is done or the client leaves."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"cache-control": "no-cache", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer, outcome = self.answer, "failed"
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
            outcome = sending.result() if sending.done() else "left"
        except OSError:  # the connection is closed
            outcome = "left"
        finally:
            sending.cancel()
            leaving.cancel()
            _close(answer.service, answer.dialect, answer, outcome, answer.arrived, scope)

    async def _send(self, send: Send) -> str:
        """Send all chunks, and return how it ended."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        outcome = "ok"
        try:
            async for chunk in self.answer.stream():
                await _send_event(send, f": {chunk}".encode() if isinstance(chunk, str) else _data(chunk))
            await _send_event(send, b"data: [DONE]")
        except Problem as problem:
            outcome = "refused" if problem.status < 500 else "failed"
            await _send_event(send, _data(problem.body()))
        await send({"type": "http.response.body", "body": b""})
        return outcome


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value)


async def _send_event(send: Send, line: bytes) -> None:
    await send({"type": "http.response.body", "body": line + b"\n\n", "more_body": True})


def _describe_model(service: Service) -> dict[str, Any]:
    return {
        "id": service.model,
        "object": "model",
        "created": service.created,
        "owned_by": "foretell",
        "max_model_len": service.engine.context,
    }


async def _models(service: Service, _: Request) -> Response:
    return Json({"object": "list", "data": [_describe_model(service)]})


async def _model(service: Service, request: Request) -> Response:
    service.check_model(request.path_params["name"])
    return Json(_describe_model(service))


async def _tokenize(service: Service, request: Request) -> Response:
    body, _ = read_body(await request.body(), TokenizeBody)
    service.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise Problem(400, "give either prompt or messages", param="prompt", code="invalid_value")
    codec = service.engine.codec
    try:
        if body.prompt is not None:
            ids = codec.encode(body.prompt, special=True)
        else:
            ids = await run_in_threadpool(codec.chat, body.messages or [])
    except ForetellError as error:
        raise problem_of(error, "prompt" if body.messages is None else "messages") from None
    return Json({"tokens": ids, "count": len(ids), "max_model_len": service.engine.context})


async def _detokenize(service: Service, request: Request) -> Response:
    body, _ = read_body(await request.body(), DetokenizeBody)
    service.check_model(body.model)
    largest = max(body.tokens, default=0)
    if largest >= service.engine.codec.vocab_size:
        last = service.engine.codec.vocab_size - 1
        raise Problem(400, f"tokens must be from 0 to {last}, got {largest}", param="tokens", code="invalid_value")
    return Json({"prompt": service.engine.codec.decode(body.tokens, skip_special=False)})


async def _health(service: Service, _: Request) -> Response:
    if not service.worker.alive:
        raise Problem(503, "the thread that decodes has ended", code="worker_ended")
    return Json({"status": "ok"})


async def _ready(service: Service, _: Request) -> Response:
    if service.draining or not service.worker.alive:
        raise Problem(503, "the server is starting or shutting down", code="not_ready")
    return Json({"status": "ready", "model": service.model})


async def _metrics(service: Service, _: Request) -> Response:
    return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _explain_route(_: Request, error: Exception) -> Response:
    """Return Starlette's own errors, an unknown route or a wrong method, in OpenAI's shape."""
    assert isinstance(error, HTTPException), "it is registered for these"
    status = error.status_code if error.status_code in (404, 405) else 400
    words = {404: "there is no such route", 405: "this route has another method"}
    problem = Problem(status, words.get(status, error.detail), code={404: "unknown_route", 405: "method"}.get(status))
    return Json(problem.body(), status, headers=error.headers)
