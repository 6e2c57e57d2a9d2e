"""One HTTP request as a value that another process can answer, and the ASGI app that answers it there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

LEAVING = 5.0  # seconds in which an app may end a request whose client has left


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request without its connection."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def scope(self) -> dict[str, Any]:
        """Return it as ASGI describes a request."""
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": [*self.headers],
            "client": None,
            "server": None,
        }


@dataclass(frozen=True, slots=True)
class Taken:
    """The first message of every answer: the request has a replica."""

    replica: str


@dataclass(frozen=True, slots=True)
class Start:
    """The status and the headers of a response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]

    @property
    def streams(self) -> bool:
        return any(name.lower() == b"content-type" and b"event-stream" in value for name, value in self.headers)


Part = Taken | Start | bytes | None  # None: nothing has happened, but the replica is alive


class _Client:
    """What an app sees of a client: its body, and that it has left."""

    def __init__(self, exchange: Exchange) -> None:
        self.messages: asyncio.Queue[Message | None] = asyncio.Queue()  # what the app sends; None: it is done
        self.left = asyncio.Event()
        self._exchange, self._bodies = exchange, [exchange.body]

    async def receive(self) -> Message:
        if self._bodies:
            return {"type": "http.request", "body": self._bodies.pop(), "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._exchange.scope(), self.receive, self.messages.put)
        finally:
            self.messages.put_nowait(None)


async def answer_exchange(
    app: ASGIApp, exchange: Exchange, beat: float, is_stalled: Callable[[], bool]
) -> AsyncIterator[Start | bytes | None]:
    """Yield the parts of an app's response; None whenever nothing happens for `beat` seconds, unless it is stalled.

    If the iterator is closed, the app sees a client that has left.
    """
    client = _Client(exchange)
    running = asyncio.ensure_future(client.run(app))
    try:
        while True:
            try:
                message = await asyncio.wait_for(client.messages.get(), beat)
            except TimeoutError:
                if not is_stalled():
                    yield None
                continue
            if message is None:
                await running  # raises what the app raised
                return
            if message["type"] == "http.response.start":
                yield Start(message["status"], tuple((bytes(name), bytes(value)) for name, value in message["headers"]))
            elif message.get("body"):
                yield message["body"]
    finally:
        client.left.set()
        if not running.done():
            await asyncio.wait({running}, timeout=LEAVING)
            running.cancel()
