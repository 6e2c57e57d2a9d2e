"""A server on loopback, and models whose steps a test can hold up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette

import foretell
from foretell.engine.engine import Engine
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Denoiser, Inputs, Readout
from foretell.serve import app

QUESTION = "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?"
ANSWER = "3 * 4 = 12 . 12 - 5 = 7 . The answer is 7"
PATIENCE = 60.0  # seconds; a busy machine is slow


@dataclass
class Served:
    """A running server."""

    url: str
    app: Starlette
    engine: Engine
    clients: list[Any] = field(default_factory=list)  # that are closed with the server

    @property
    def service(self) -> Any:
        return self.app.state.service

    def wait_until_idle(self) -> None:
        wait_for(lambda: self.service.worker.load == 0)


@dataclass(frozen=True)
class Gated:
    """A denoiser that waits before every pass until the gate is open, and counts its passes."""

    inner: Denoiser
    gate: threading.Event = field(default_factory=threading.Event)
    passes: list[int] = field(default_factory=list)
    slow: list[float] = field(default_factory=list)  # seconds that every pass takes longer
    fails: list[Exception | None] = field(default_factory=list)  # raised by the next passes, the last one first

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        self.passes.append(len(inputs.canvas))
        assert self.gate.wait(PATIENCE)
        time.sleep(sum(self.slow))
        if self.fails and (error := self.fails.pop()) is not None:
            raise error
        return self.inner(inputs)

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)


def wait_for(condition: Any) -> None:
    """Wait until a condition holds."""
    waited = threading.Event()
    for _ in range(int(PATIENCE / 0.02)):
        if condition():
            return
        waited.wait(0.02)
    raise AssertionError("it never happened")


@contextmanager
def serve(engine: Engine, **options: Any) -> Iterator[Served]:
    """Run a server on a free port."""
    made = app(engine, **options)
    server = uvicorn.Server(uvicorn.Config(made, "127.0.0.1", 0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    served = Served(f"http://127.0.0.1:{port}", made, engine)
    try:
        yield served
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        for client in served.clients:
            client.close()


@pytest.fixture(scope="package")
def tiny() -> Engine:
    """The bundled model in float64, so that the shape of a batch decides no tie."""
    engine = foretell.load("tiny", packed=False)
    inner: Any = engine.model
    inner.double()
    return engine


@pytest.fixture(scope="package")
def server(tiny: Engine) -> Iterator[Served]:
    with serve(tiny) as one:
        yield one


@pytest.fixture
def gated() -> Iterator[tuple[Served, Gated]]:
    """A server whose model waits for a gate."""
    engine = foretell.load("tiny")
    model = Gated(engine.model)
    engine.model = model
    with serve(engine) as one:
        yield one, model
        model.gate.set()
