"""Work for a client that has left is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from foretell.serve.respond import _Stream, _unless_left
from tests.serve.conftest import PATIENCE


class Endless:
    """An answer that never comes, and notes when it is cancelled. `leave` is the message of a client that leaves."""

    route, tokens, passes, recipe = "/v1/completions", 0, 0, "full"

    def __init__(self) -> None:
        self.started, self.cancelled = asyncio.Event(), asyncio.Event()

    async def respond(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def stream(self) -> AsyncIterator[str]:
        yield "one"
        await self.respond()

    def close(self) -> None:
        pass

    async def leave(self) -> dict[str, Any]:
        await self.started.wait()
        return {"type": "http.disconnect"}


def test_a_response() -> None:
    async def run() -> None:
        answer = Endless()
        with pytest.raises(ClientDisconnect):
            await _unless_left(Request({"type": "http"}, answer.leave), answer.respond())
        await asyncio.wait_for(answer.cancelled.wait(), PATIENCE)

    asyncio.run(run())


def test_a_stream() -> None:
    async def send(_: Any) -> None:
        pass

    async def run() -> None:
        answer, outcomes = Endless(), list[tuple[str, str]]()
        requests = SimpleNamespace(
            labels=lambda *labels: SimpleNamespace(inc=lambda: outcomes.append(labels)),
        )
        metrics = SimpleNamespace(requests=requests, latency=SimpleNamespace(observe=lambda _: None))
        service: Any = SimpleNamespace(metrics=metrics)
        stub: Any = answer
        await _Stream(service, stub, 0.0)({"state": {}}, answer.leave, send)
        await asyncio.wait_for(answer.cancelled.wait(), PATIENCE)
        assert outcomes == [("/v1/completions", "left")]

    asyncio.run(run())
