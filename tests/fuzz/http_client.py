"""A client of the server that can send anything, and what must hold for every answer."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette

from foretell.errors import RequestError

CLOSED = 499  # nobody reads it


class Reply(NamedTuple):
    """What the server answered."""

    status: int
    headers: dict[str, str]
    body: bytes


async def call(
    made: Any, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], messages: list[dict[str, Any]]
) -> Reply | None:
    """Send one request into the app. Returns None if the client has left before it was answered."""
    sent: list[dict[str, Any]] = []
    ended = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not messages:
            await ended.wait()
            return {"type": "http.disconnect"}
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            ended.set()

    leaves = messages[-1]["type"] == "http.disconnect"
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": list(headers),
        "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8000), "state": {},
    }  # fmt: skip
    await made(scope, receive, send)
    if leaves and (not ended.is_set() or sent[0]["status"] == CLOSED):
        return None
    assert ended.is_set(), "the answer is not complete"
    first, *rest = sent
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * len(rest)
    named = {name.decode("latin-1"): value.decode("latin-1") for name, value in first["headers"]}
    return Reply(first["status"], named, b"".join(message.get("body", b"") for message in rest))


def check_reply(reply: Reply, method: str = "POST") -> None:
    """Raise RequestError if the server refused a request as it should. Any other error is the server's."""
    assert 200 <= reply.status < 500, f"{reply.status}: {reply.body[:500]!r}"
    assert reply.headers["x-request-id"].isprintable()
    if reply.status >= 400:
        if method != "HEAD":
            _check_error(json.loads(reply.body)["error"])
        raise RequestError(f"{reply.status}: {reply.body[:80]!r}")
    if "event-stream" not in reply.headers.get("content-type", ""):
        return
    events = [one for one in reply.body.decode().split("\n\n") if one and not one.startswith(":")]
    assert all(one.startswith("data: ") for one in events)
    assert len(events) > 1, "something comes before the end"
    if events[-1] == "data: [DONE]":
        chunks = [json.loads(one[6:]) for one in events[:-1]]
        decided = chunks[-1]["object"] == "decision"
        assert decided or any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])
        return
    error = json.loads(events[-1][6:])["error"]
    _check_error(error)
    assert error["type"] == "invalid_request_error", error
    raise RequestError(error["message"])


def _check_error(error: dict[str, Any]) -> None:
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]


class _Server(uvicorn.Server):
    """uvicorn without signal handlers."""

    def capture_signals(self) -> Any:
        return nullcontext()


@asynccontextmanager
async def listen(made: Starlette) -> AsyncIterator[int]:
    """Serve an app on a free port."""
    config = uvicorn.Config(made, "127.0.0.1", 0, log_level="critical", timeout_graceful_shutdown=5, lifespan="off")
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


def check_socket(answer: bytes) -> None:
    """Raise RequestError unless raw bytes were answered with success. A 5xx is the server's error."""
    status = answer.removeprefix(b"HTTP/1.1 100 \r\n\r\n")[:12].decode("latin-1")
    if not answer or status.startswith("HTTP/1.1 4"):
        raise RequestError(f"refused: {status}")
    assert status in ("HTTP/1.1 200", "HTTP/1.1 307"), status


class _Lines(logging.Handler):
    """Keeps log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            traceback.print_exception(record.exc_info[1])  # the answer is a 500, whose cause is only here
        else:
            self.lines.append(self.format(record))


@contextmanager
def check_log() -> Iterator[None]:
    """Assert that every request is one line of the log, whatever it holds."""
    log, kept = logging.getLogger("foretell.serve"), _Lines()
    level, spreads = log.level, log.propagate
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(kept)
        log.setLevel(level)
        log.propagate = spreads
        assert all(line.isprintable() for line in kept.lines), kept.lines
