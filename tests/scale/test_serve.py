"""A server of several replicas: it answers as one engine does, and survives the loss of replicas and of a node."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from foretell.engine.engine import load
from foretell.serve.service import Limits
from foretell.tasks import TASKS, draw
from tests.scale.conftest import PATIENCE, TwoNodes, wait_for
from tests.scale.slow import Slow

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

PORT = 8123
BATCH, WAITING = 4, 12
SILENCE, STALL = 15.0, 10.0  # seconds; a busy machine takes several for one step
SLOW = "full stop=slow(0.05)"  # three seconds per answer
SLOWER = f"{SLOW} stop.seconds=0.2"
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
        """Return the name, process and node of every replica, or nothing if one of them does not answer."""
        try:
            found = self.handle.broadcast("locate").results(timeout_s=5, return_exceptions=True)
        except TimeoutError:
            return []
        return sorted(one for one in found if not isinstance(one, Exception))


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return [one.prompt for one in draw(TASKS["word"], np.random.default_rng(5), 24, test=True)]


@pytest.fixture(scope="module")
def expected(prompts: list[str]) -> dict[str, list[str]]:
    """What one engine answers, by recipe."""
    engine = load("tiny")
    chats = [[{"role": "user", "content": one}] for one in prompts]
    return {name: [one.text for one in engine.generate(chats, recipe=name)] for name in ("swift", "full")}


@pytest.fixture(scope="module")
def running(two_nodes: TwoNodes) -> Iterator[Served]:
    """Two replicas, which do not fit on one node."""
    from ray import serve

    from foretell.scale import Patience, serve_app

    two_nodes.restore()
    serve.start(http_options={"host": "127.0.0.1", "port": PORT}, proxy_location="HeadOnly")
    made = serve_app(
        "tiny",
        replicas=2,
        cpus=3,
        threads=1,
        limits=Limits(max_batch=BATCH, max_waiting=WAITING),
        recipes=("swift", "full", SLOW),
        patience=Patience(beat=0.5, silence=SILENCE, stall=STALL),
        grace=10.0,
    )
    serve.run(made, name="foretell", route_prefix="/")
    yield Served(f"http://127.0.0.1:{PORT}", serve.get_deployment_handle("Replica", "foretell"))
    serve.shutdown()


@pytest.fixture
def served(running: Served, nodes: TwoNodes) -> Served:
    """The server, with both replicas up."""
    wait_for(lambda: len(running.replicas()) == 2)
    return running


def texts(answers: list[dict[str, Any]]) -> list[str]:
    return [one["choices"][0]["message"]["content"] for one in answers]


def stream_text(served: Served, prompt: str, **more: Any) -> str:
    """Return the text of a stream. Raises RuntimeError if it ends with an error."""
    text = ""
    for event in served.stream(prompt, **more):
        if isinstance(event, dict):
            if "error" in event:
                raise RuntimeError(event["error"]["code"])
            text += event["choices"][0]["delta"].get("content") or ""
    return text


def ask_all(served: Served, prompts: list[str], **more: Any) -> tuple[ThreadPoolExecutor, list[Any]]:
    """Send all prompts at the same time."""
    pool = ThreadPoolExecutor(len(prompts))
    return pool, [pool.submit(served.ask, one, **more) for one in prompts]


def wait_until_running(served: Served, rows: int) -> None:
    """Wait until so many requests are being decoded."""
    wait_for(lambda: served.metric("foretell_rows_running ") >= rows)


def test_it_answers_as_one_engine(served: Served, prompts: list[str], expected: dict[str, list[str]]) -> None:
    for recipe in ("swift", "full"):
        pool, asked = ask_all(served, prompts[:16], recipe=recipe)
        with pool:
            assert texts([one.result() for one in asked]) == expected[recipe][:16]
    wait_for(lambda: served.metric('foretell_requests_total{outcome="ok"') == 32)  # the last is counted after its end
    assert served.metric("foretell_retries_total") == 0
    assert served.metric('foretell_replicas{state="RUNNING"}') == 2
    assert served.metric("foretell_replicas_answered") == 1
    assert served.metric("foretell_steps_total") > 32
    assert json.loads(served.get("/health")) == {"status": "ok", "replicas": 2}
    assert json.loads(served.get("/ready"))["replicas"] == 2
    assert json.loads(served.get("/v1/models"))["data"][0]["id"] == "tiny"
    assert "<html" in served.get("/")


def test_streams(served: Served, prompts: list[str], expected: dict[str, list[str]]) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: stream_text(served, one, drafts=True), prompts[:8]))
    assert found == expected["swift"][:8]
    *_, last = served.stream(prompts[0])
    assert last == "data: [DONE]"


def test_errors_are_those_of_one_server(served: Served, prompts: list[str]) -> None:
    for more, status in (({"recipe": "none"}, 400), ({"model": "other"}, 404), ({"tools": [1]}, 400)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            served.ask(prompts[0], **more)
        assert refused.value.code == status
        assert "message" in json.load(refused.value)["error"]


def test_a_run_is_replayed_on_the_replica_that_keeps_it(served: Served, prompts: list[str]) -> None:
    for prompt in prompts[:4]:
        run = served.ask(prompt, trace=True)["foretell"]["run"]
        with served.request("/foretell/replay", {"run": run}) as answer:
            assert json.load(answer)["steps"] > 0


def test_one_group_meets_on_one_replica_and_spills_over(served: Served, prompts: list[str]) -> None:
    """Six requests, one after the other, go to one replica; eight at the same time go to both."""
    before = count_by_replica(served)
    for prompt in prompts[:6]:
        served.ask(prompt, recipe="full", seed=1)
    moved = [after - before[name] for name, after in count_by_replica(served).items()]
    assert sorted(moved) == [0, sum(moved)]
    before = count_by_replica(served)
    pool, asked = ask_all(served, prompts[:8], recipe=SLOW)
    with pool:
        [one.result() for one in asked]
    assert all(after > before[name] for name, after in count_by_replica(served).items())


def count_by_replica(served: Served) -> dict[str, float]:
    """Return the steps of every replica."""
    found = served.handle.broadcast("metrics").results(timeout_s=PATIENCE)
    return {
        name: next(float(line.split()[1]) for line in text.splitlines() if line.startswith("foretell_steps_total"))
        for name, text in found
    }


def test_too_many_requests(served: Served, prompts: list[str]) -> None:
    before = served.metric("foretell_retries_total")
    pool, asked = ask_all(served, prompts * 2, recipe=SLOW)
    refused, answered = [], 0
    with pool:
        wait_until_running(served, 2 * BATCH)
        assert served.metric("foretell_replicas_answered ") == 1, "full replicas answer too"
        for one in asked:
            try:
                one.result()
                answered += 1
            except urllib.error.HTTPError as error:
                refused.append((error.code, error.headers["retry-after"], json.load(error)["error"]["code"]))
    assert set(refused) == {(429, "1", "busy")}
    assert answered >= WAITING
    wait_for(lambda: served.metric('foretell_requests_total{outcome="refused"') >= len(refused))
    assert served.metric("foretell_retries_total") == before  # those that waited were not taken for lost


def test_a_client_that_leaves_frees_its_row(served: Served, prompts: list[str]) -> None:
    before = served.metric('foretell_requests_total{outcome="left"')
    for _ in served.stream(prompts[0], recipe=f"{SLOW} stop.seconds=5"):  # five minutes
        break
    wait_for(lambda: served.metric("foretell_rows_running ") == 0)
    wait_for(lambda: served.metric('foretell_requests_total{outcome="left"') == before + 1)


def retries(served: Served, reason: str) -> float:
    return served.metric(f'foretell_retries_total{{reason="{reason}"}}')


def test_a_killed_replica_loses_nothing(served: Served, prompts: list[str], expected: dict[str, list[str]]) -> None:
    before, steps = retries(served, "died"), served.metric("foretell_steps_total")
    name, process, _ = served.replicas()[0]
    pool, asked = ask_all(served, prompts[:8], recipe=SLOWER)
    with pool:
        wait_until_running(served, 6)
        os.kill(process, signal.SIGKILL)
        assert texts([one.result() for one in asked]) == expected["full"][:8]
    assert retries(served, "died") > before
    assert served.metric("foretell_steps_total") >= steps
    wait_for(lambda: len(served.replicas()) == 2)
    assert name not in [one for one, _, _ in served.replicas()]


def test_streams_of_a_killed_replica_end_in_an_answer_or_an_error(
    served: Served, prompts: list[str], expected: dict[str, list[str]]
) -> None:
    before = retries(served, "died")
    _, process, _ = served.replicas()[0]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(stream_text, served, one, recipe=SLOWER) for one in prompts[:8]]
        wait_until_running(served, 6)
        time.sleep(4)  # some have sent text by now
        os.kill(process, signal.SIGKILL)
    errors = [str(one.exception()) for one in asked if one.exception() is not None]
    assert set(errors) <= {"replica_lost"}
    assert len(errors) <= 5  # those of the other replica are complete
    assert len(errors) + retries(served, "died") - before > 0
    for one, text in zip(asked, expected["full"], strict=False):
        assert one.exception() is not None or one.result() == text


def test_a_killed_node_loses_nothing(
    served: Served, nodes: TwoNodes, prompts: list[str], expected: dict[str, list[str]]
) -> None:
    before = retries(served, "died")
    pool, asked = ask_all(served, prompts[:8], recipe=SLOWER)
    with pool:
        wait_until_running(served, 6)
        nodes.kill_second()
        assert texts([one.result() for one in asked]) == expected["full"][:8]
    assert retries(served, "died") > before
    nodes.restore()
    wait_for(lambda: len(served.replicas()) == 2)


def test_requests_of_a_frozen_replica_are_answered_by_another(
    served: Served, prompts: list[str], expected: dict[str, list[str]]
) -> None:
    before = retries(served, "silent")
    _, process, _ = served.replicas()[0]
    pool, asked = ask_all(served, prompts[:8], recipe=SLOWER)
    with pool:
        wait_until_running(served, 6)
        os.kill(process, signal.SIGSTOP)
        try:
            assert texts([one.result() for one in asked]) == expected["full"][:8]
            assert served.ask(prompts[0])["choices"][0]["message"]["content"] == expected["swift"][0]
        finally:
            os.kill(process, signal.SIGKILL)
    assert retries(served, "silent") > before
    wait_for(lambda: len(served.replicas()) == 2 and process not in [one for _, one, _ in served.replicas()])


def test_a_step_that_hangs_costs_its_replicas_and_they_are_replaced(
    served: Served, prompts: list[str], expected: dict[str, list[str]]
) -> None:
    """One request that hangs every replica it reaches."""
    before = {process for _, process, _ in served.replicas()}
    with pytest.raises(urllib.error.HTTPError) as lost:
        served.ask(prompts[0], recipe=f"{SLOW} stop.seconds=1000")
    assert (lost.value.code, json.load(lost.value)["error"]["code"]) == (503, "replica_lost")
    wait_for(lambda: len({process for _, process, _ in served.replicas()} - before) == 2)
    assert served.ask(prompts[0])["choices"][0]["message"]["content"] == expected["swift"][0]


def test_draining_finishes_what_runs(served: Served, prompts: list[str], expected: dict[str, list[str]]) -> None:
    """The last test of this module: the server takes no requests after it."""
    from foretell.scale.run import drain

    pool, asked = ask_all(served, prompts[:6], recipe=SLOW)
    with pool:
        wait_until_running(served, 4)
        drained = pool.submit(drain, 30.0)
        wait_for(lambda: status_of(served, "/ready") == 503)
        with pytest.raises(urllib.error.HTTPError) as refused:
            served.ask(prompts[0])
        assert json.load(refused.value)["error"]["code"] == "shutting_down"
        assert texts([one.result() for one in asked]) == expected["full"][:6]
        drained.result()


def status_of(served: Served, path: str) -> int:
    try:
        served.get(path)
    except urllib.error.HTTPError as error:
        return error.code
    return 200
