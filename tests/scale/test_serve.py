"""A server of several replicas: it answers as one engine does, and survives the loss of replicas and of a node."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from foretell.engine.engine import Engine, load
from foretell.serve.service import Limits
from foretell.tasks import TASKS, draw
from tests.scale.conftest import PATIENCE, TwoNodes, wait_for
from tests.scale.slow import Slow

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

PORT = 8123
SLOW = "full stop=slow(0.05)"
assert Slow.__name__ == "Slow"  # importing it registers it in this process too


@dataclass
class Served:
    """The server as a client sees it."""

    url: str
    handle: Any

    def request(self, path: str, body: Any = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=PATIENCE)

    def get(self, path: str) -> str:
        with self.request(path) as answer:
            text: str = answer.read().decode()
        return text

    def ask(self, prompt: str, **more: Any) -> dict[str, Any]:
        body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}], **more}
        with self.request("/v1/chat/completions", body) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def stream(self, prompt: str, **more: Any) -> Iterator[Any]:
        """Yield the events of a stream, and texts of comments."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}], "stream": True, **more}
        with self.request("/v1/chat/completions", body) as answer:
            for line in answer:
                text = line.decode().strip()
                if text.startswith("data: {"):
                    yield json.loads(text[6:])
                elif text:
                    yield text

    def metric(self, name: str) -> float:
        values = [line.split()[-1] for line in self.get("/metrics").splitlines() if line.startswith(name)]
        return sum(map(float, values))

    def replicas(self) -> list[tuple[str, int, str]]:
        """Return the name, process and node of every replica that answers."""
        found: list[tuple[str, int, str]] = self.handle.broadcast("locate").results(timeout_s=PATIENCE)
        return sorted(found)


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return [one.prompt for one in draw(TASKS["word"], np.random.default_rng(5), 24, test=True)]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load("tiny")


@pytest.fixture(scope="module")
def fleet(two_nodes: TwoNodes) -> Iterator[Served]:
    """Two replicas, one on each node."""
    from ray import serve

    from foretell.scale import Patience, serve_app

    two_nodes.restore()
    serve.start(http_options={"host": "127.0.0.1", "port": PORT}, proxy_location="HeadOnly")
    patience = Patience(beat=0.5, silence=8.0, stall=5.0)
    limits = Limits(max_batch=4, max_waiting=12)
    made = serve_app(
        "tiny", replicas=2, cpus=3, limits=limits, recipes=("swift", "full", SLOW), patience=patience, threads=1
    )
    serve.run(made, name="foretell", route_prefix="/")
    served = Served(f"http://127.0.0.1:{PORT}", serve.get_deployment_handle("Replica", "foretell"))
    wait_for(lambda: len(served.replicas()) == 2)
    yield served
    serve.shutdown()


def test_it_answers_as_one_engine(fleet: Served, engine: Engine, prompts: list[str]) -> None:
    expected = [
        one.text for one in engine.generate([[{"role": "user", "content": one}] for one in prompts], recipe="swift")
    ]
    begin = time.monotonic()
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(lambda one: fleet.ask(one)["choices"][0]["message"]["content"], prompts))
    print("24 requests", time.monotonic() - begin)
    assert found == expected
    print(fleet.get("/metrics"))
    print(fleet.get("/health"), fleet.get("/ready"), fleet.get("/v1/models"))
    print(list(fleet.stream(prompts[0])))
    print(fleet.replicas())
