"""Answer a request: as one response, or as a stream that ends when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foretell.serve.answer import Answer
from foretell.serve.bodies import ChatBody, CompletionBody, read_body
from foretell.serve.decisions import prepare_decision, prepare_object
from foretell.serve.dialects import Chat, Dialect, Text
from foretell.serve.problems import BUG, Problem, stopping
from foretell.serve.reply import Json
from foretell.serve.service import Service

LOG = logging.getLogger("foretell.serve")
T = TypeVar("T")


class Answering(Protocol):
    """A request that is being answered."""

    @property
    def route(self) -> str: ...

    @property
    def streams(self) -> bool: ...

    @property
    def passes(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def recipe(self) -> str: ...

    def start(self) -> None: ...

    def close(self) -> None: ...

    async def respond(self) -> dict[str, Any]: ...

    def stream(self) -> AsyncIterator[dict[str, Any] | str]: ...


def prepare_answer(
    dialect: Dialect, kind: type[ChatBody | CompletionBody], service: Service, raw: bytes
) -> Callable[[], Answering]:
    """Check a body, and return a function that makes its answer in an event loop. Raises Problem if it is refused."""
    body, notes = read_body(raw, kind)
    if isinstance(body, ChatBody) and (schema := body.schema) is not None:
        return prepare_object(service, body, schema, notes)
    choices = service.prepare(body, notes)
    return lambda: Answer(service, dialect, body, choices)


Prepare = Callable[[Service, bytes], Callable[[], Answering]]
PREPARE: dict[str, Prepare] = {
    Chat.route: partial(prepare_answer, Chat(), ChatBody),
    Text.route: partial(prepare_answer, Text(), CompletionBody),
    **{route: partial(prepare_decision, route) for route in ("/v1/decisions", "/v1/systemone")},
}


async def answer_request(service: Service, route: str, request: Request) -> Response:
    began, outcome, streaming = time.perf_counter(), "failed", False
    answer: Answering | None = None
    try:
        make = await run_in_threadpool(PREPARE[route], service, await request.body())
        answer = make()
        answer.start()
        if answer.streams:
            streaming = True  # it is closed when the stream ends
            return _Stream(service, answer, began)
        found = await _unless_left(request, answer.respond())
        outcome = "ok"
        return Json(found)
    except TimeoutError:
        raise _took_too_long(service) from None
    except Problem as problem:
        outcome = "refused" if problem.status < 500 else "failed"
        raise
    except ClientDisconnect:
        outcome = "left"
        return Response(status_code=499)
    finally:
        if not streaming:
            _close(service, route, answer, outcome, began, request.scope)


def _took_too_long(service: Service) -> Problem:
    return Problem(
        504,
        f"the answer took more than {service.limits.timeout:g} seconds, the limit of this server",
        code="timeout",
        headers={"x-should-retry": "false"},
    )


def _close(service: Service, route: str, answer: Answering | None, outcome: str, began: float, scope: Scope) -> None:
    """Drop the unfinished parts of a request, count the request, and describe it for the log."""
    service.metrics.requests.labels(route, outcome).inc()
    service.metrics.latency.observe(time.perf_counter() - began)
    if answer is None:
        return
    answer.close()
    scope["state"]["work"] = f" {outcome}, {answer.tokens} tokens, {answer.passes} passes, {answer.recipe}"


async def _unless_left(request: Request, work: Awaitable[T]) -> T:
    """Return the result of some work. If the client disconnects, cancels the work and raises ClientDisconnect.

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

    def __init__(self, service: Service, answer: Answering, began: float) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self.service, self.answer, self.began = service, answer, began

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome = "failed"
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
            outcome = sending.result() if sending.done() else "left"
        except OSError:  # the connection is closed
            outcome = "left"
        except asyncio.CancelledError:  # the server stops, and its grace is over
            sending.cancel()
            await _end_stream(send, stopping())
        finally:
            sending.cancel()
            leaving.cancel()
            _close(self.service, self.answer.route, self.answer, outcome, self.began, scope)

    async def _send(self, send: Send) -> str:
        """Send all chunks, and return how it ended."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        problem: Problem | None = None
        try:
            async for chunk in self.answer.stream():
                await _send_event(send, f": {chunk}".encode() if isinstance(chunk, str) else _data(chunk))
            await _send_event(send, b"data: [DONE]")
        except TimeoutError:
            problem = _took_too_long(self.service)
        except Problem as found:
            problem = found
        except OSError:  # the connection is closed
            raise
        except Exception:
            LOG.exception("%s: a bug", self.answer.route)
            problem = BUG
        await _end_stream(send, problem)
        return "ok" if problem is None else "refused" if problem.status < 500 else "failed"


async def _end_stream(send: Send, problem: Problem | None) -> None:
    if problem is not None:
        await _send_event(send, _data(problem.body()))
    await send({"type": "http.response.body", "body": b""})


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value)


async def _send_event(send: Send, line: bytes) -> None:
    await send({"type": "http.response.body", "body": line + b"\n\n", "more_body": True})
