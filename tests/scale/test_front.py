"""The front, with replicas in this process that fail as they are told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from foretell.engine.engine import Engine, load
from foretell.errors import RequestError
from foretell.scale import front as front_module
from foretell.scale.delivery import is_opening
from foretell.scale.exchange import Exchange, Part, Start, Taken, answer_exchange
from foretell.scale.front import Front, LostError, Patience
from foretell.scale.routing import ASSIGNMENT, Watch
from foretell.serve import Access, Limits, app
from foretell.serve.problems import busy

CHAT = "/v1/chat/completions"
QUESTION = "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?"
ANSWER = "3 * 4 = 12 . 12 - 5 = 7 . The answer is 7"
JSON, EVENTS = (b"content-type", b"application/json"), (b"content-type", b"text/event-stream")
DIE, HANG = LostError("died"), "hang"
Script = list[Any]  # parts of a response; an exception is raised, and HANG waits for ever


def event(text: str | None = None, **more: Any) -> bytes:
    delta = {"role": "assistant"} if text is None else {"content": text}
    return b"data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": None}], **more}).encode() + b"\n\n"


OPENING, DONE = event(), b"data: [DONE]\n\n"
WHOLE: Script = [Start(200, (JSON,)), b'{"whole": true}']
STREAM: Script = [Start(200, (EVENTS,)), OPENING, event("a"), event("b"), DONE]


@dataclass
class Scripted:
    """Replicas that play scripts, one per request that is sent."""

    scripts: list[Script]
    watch: Watch = field(default_factory=Watch)
    sent: list[tuple[Exchange, str]] = field(default_factory=list)
    cancelled: int = 0
    states: dict[str, int] = field(default_factory=lambda: {"RUNNING": 2})
    results: Callable[[str], list[Any]] = lambda _: []

    def send(self, exchange: Exchange, group: str) -> Playing:
        self.sent.append((exchange, group))
        assert (assignment := ASSIGNMENT.get()) is not None
        assert assignment.replica is None
        return Playing(self, self.scripts.pop(0), f"r{len(self.sent)}")

    async def ask_all(self, method: str, *args: Any, seconds: float) -> list[Any]:
        found = self.results(method)
        if not found:
            raise TimeoutError
        return found

    async def count(self) -> Mapping[str, int]:
        return self.states


@dataclass
class Playing:
    fleet: Scripted
    script: Script
    name: str

    async def __aiter__(self) -> AsyncIterator[Part]:
        if self.script[0] != "queued":
            self.fleet.watch.note_sent(self.name)
        for part in self.script:
            if part in (HANG, "queued"):
                await asyncio.Event().wait()
            if isinstance(part, Exception):
                raise part
            yield part

    def cancel(self) -> None:
        self.fleet.cancelled += 1


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "SLICE", 0.02)


def made(*scripts: Script, access: Access | None = None, **limits: Any) -> tuple[TestClient, Scripted, Front]:
    fleet = Scripted(list(scripts))
    patience = Patience(beat=0.05, silence=0.2, attempts=3)
    front = Front(fleet, fleet.watch, Limits(**limits), access or Access(), patience)
    return TestClient(front.app(), raise_server_exceptions=False), fleet, front


def ask(client: TestClient, **more: Any) -> Any:
    return client.post(CHAT, json={"messages": [], **more})


def metric(client: TestClient, name: str) -> float:
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.split()[-1]) for line in lines)


def test_a_request_reaches_a_replica_as_it_was_sent() -> None:
    client, fleet, _ = made([Taken("a"), None, *WHOLE])
    answer = client.post(f"{CHAT}?x=%20y", content=b'{"recipe": "full"}', headers={"x-request-id": "mine", "a": "b"})
    assert (answer.status_code, answer.json(), answer.headers["x-request-id"]) == (200, {"whole": True}, "mine")
    ((exchange, group),) = fleet.sent
    assert (exchange.method, exchange.path, exchange.query) == ("POST", CHAT, b"x=%20y")
    assert exchange.body == b'{"recipe": "full"}'
    assert exchange.headers.count((b"x-request-id", b"mine")) == 1
    assert (b"a", b"b") in exchange.headers
    assert group.startswith("text ")
    assert fleet.cancelled == 0


@pytest.mark.parametrize(
    "lost", [[DIE], [Taken("a"), DIE], [Taken("a"), Start(200, (JSON,)), DIE], [HANG], [Taken("a"), HANG]]
)
def test_a_lost_request_is_answered_by_another_replica(lost: Script) -> None:
    client, fleet, _ = made(lost, [Taken("b"), *WHOLE])
    assert ask(client).json() == {"whole": True}
    assert len(fleet.sent) == 2
    assert fleet.cancelled == 1
    reason = "silent" if HANG in lost else "died"
    assert metric(client, f'foretell_retries_total{{reason="{reason}"}}') == 1
    assert fleet.watch.silent() == ({("a" if len(lost) > 1 else "r1")} if HANG in lost else set())


@pytest.mark.parametrize("at", [1, 2])
def test_a_stream_without_text_is_started_again(at: int) -> None:
    client, fleet, _ = made([Taken("a"), *STREAM[:at], b": queued 1\n\n", DIE], [Taken("b"), *STREAM])
    answer = ask(client, stream=True)
    assert answer.status_code == 200
    assert answer.content == b"".join([b": queued 1\n\n", *STREAM[1:]])
    assert len(fleet.sent) == 2


def test_a_stream_with_text_ends_with_an_error() -> None:
    client, fleet, _ = made([Taken("a"), *STREAM[:3], DIE])
    answer = ask(client, stream=True)
    *events, last = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    assert events[-1]["choices"][0]["delta"] == {"content": "a"}
    assert last["error"]["code"] == "replica_lost"
    assert "in the middle of its answer (died)" in last["error"]["message"]
    assert len(fleet.sent) == 1


def test_a_second_replica_that_refuses_ends_the_stream_with_its_error() -> None:
    refused = [Start(400, (JSON,)), b'{"error": {"code": "no"}}']
    client, _, _ = made([Taken("a"), *STREAM[:2], DIE], [Taken("b"), *refused])
    answer = ask(client, stream=True)
    assert (answer.status_code, answer.text) == (200, 'data: {"error": {"code": "no"}}\n\n')


def test_it_gives_up_after_some_attempts() -> None:
    client, fleet, _ = made([DIE], [Taken("a"), HANG], [DIE], [DIE])
    answer = ask(client)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "replica_lost"
    assert "3 times in a row (died)" in answer.json()["error"]["message"]
    assert len(fleet.sent) == 3
    assert metric(client, "foretell_retries_total") == 2
    assert metric(client, "foretell_requests_total") == 1


def test_a_replica_that_beats_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    client, fleet, _ = made()
    now = [0.0]
    monkeypatch.setattr(front_module, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))

    class Beating(Playing):
        def __init__(self) -> None:
            super().__init__(fleet, [], "a")

        async def __aiter__(self) -> AsyncIterator[Part]:
            yield Taken("a")
            for _ in range(8):
                await asyncio.sleep(0.05)  # the front looks at the clock meanwhile
                now[0] += 0.15
                yield None
            for part in WHOLE:
                yield part

    sent: list[Beating] = []
    monkeypatch.setattr(fleet, "send", lambda *_: sent.append(Beating()) or sent[-1])  # type: ignore[func-returns-value]
    assert ask(client).json() == {"whole": True}
    assert len(sent) == 1


def test_a_request_that_waits_for_a_replica_is_not_lost() -> None:
    client, fleet, _ = made(["queued"], timeout=0.6)
    answer = ask(client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    assert (len(fleet.sent), fleet.cancelled) == (1, 1)
    assert metric(client, "foretell_routing_waiting") == 0
    assert metric(client, 'foretell_requests_total{outcome="failed"') == 1


async def send_and_leave(front: Front, received: int, sent: list[Any]) -> None:
    """Send a request over bare ASGI, and leave after so many messages, which are appended to `sent`."""
    left = asyncio.Event()
    bodies = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Any:
        if bodies:
            return bodies.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == received:
            left.set()
            await asyncio.sleep(0.1)

    scope = Exchange("POST", CHAT, b"", (), b"").scope()
    await front.app()(scope, receive, send)


@pytest.mark.parametrize(
    ("script", "received", "outcome"),
    [
        ([Taken("a"), *WHOLE, None], 2, "ok"),
        ([Taken("a"), *STREAM, None], 5, "ok"),
        ([Taken("a"), *STREAM[:3], HANG], 3, "left"),
        ([Taken("a"), *STREAM[:1], HANG], 1, "left"),
    ],
)
def test_a_client_that_leaves(script: Script, received: int, outcome: str) -> None:
    """One that has received everything has not left."""
    client, fleet, front = made(script)
    began = time.monotonic()
    asyncio.run(send_and_leave(front, received, []))
    assert time.monotonic() - began < 10
    assert metric(client, f'foretell_requests_total{{outcome="{outcome}"') == 1
    assert fleet.cancelled == (outcome == "left")
    assert front.running == 0


@pytest.mark.parametrize(
    ("script", "outcome"), [([Taken("a"), *WHOLE, HANG], "ok"), ([Taken("a"), *STREAM[:3], HANG], "left")]
)
def test_a_request_that_is_cancelled(script: Script, outcome: str) -> None:
    """Ray Serve does so when a client closes its connection, also after it has received everything."""
    client, _, front = made(script)

    async def run() -> None:
        sent: list[Any] = []
        task = asyncio.ensure_future(send_and_leave(front, 99, sent))
        while len(sent) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(run())
    assert metric(client, f'foretell_requests_total{{outcome="{outcome}"') == 1
    assert metric(client, "foretell_requests_total") == 1


def test_draining_waits_for_what_runs() -> None:
    _, _, front = made()

    async def run() -> float:
        front.running = 1
        began = time.monotonic()
        asyncio.get_running_loop().call_later(0.2, setattr, front, "running", 0)
        await front.drain(60)
        return time.monotonic() - began

    assert 0.15 < asyncio.run(run()) < 50
    front.running = 1
    asyncio.run(front.drain(0.01))
    assert front.draining


def test_too_many_requests() -> None:
    client, _, _ = made([busy("all replicas are full", "busy")])
    answer = ask(client)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert metric(client, 'foretell_requests_total{outcome="refused"') == 1


def test_a_bug_is_an_error_of_the_server() -> None:
    client, _, _ = made([ValueError("x")])
    assert ask(client).status_code == 500


def test_the_guard_is_at_the_front() -> None:
    client, fleet, front = made(access=Access("secret", ("testserver",)), max_body=30)
    assert ask(client).status_code == 401
    client.headers["authorization"] = "Bearer secret"
    assert client.post(CHAT, content=b"x" * 31).status_code == 413
    assert client.post(CHAT, content=iter([b"x" * 20] * 2)).status_code == 413
    front.draining = True
    answer = client.post(CHAT, content=b"x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == 200
    assert fleet.sent == []


def test_health_follows_the_replicas() -> None:
    client, fleet, _ = made()
    assert client.get("/health").json() == {"status": "ok", "replicas": 2}
    assert client.get("/ready").json() == {"status": "ready", "replicas": 2}
    fleet.states = {"STARTING": 2}
    assert client.get("/health").status_code == client.get("/ready").status_code == 503
    assert metric(client, 'foretell_replicas{state="STARTING"}') == 2
    fleet.states = {"RUNNING": 1}
    assert metric(client, "foretell_replicas{") == 1


def test_metrics_are_those_of_all_replicas() -> None:
    client, fleet, _ = made([Taken("a"), *WHOLE])
    text = "# TYPE foretell_steps counter\nforetell_steps_total {}\n"
    fleet.results = lambda _: [("a", text.format(3)), ("b", text.format(4))]
    ask(client)
    assert metric(client, "foretell_steps_total") == 7
    assert metric(client, "foretell_replicas_answered") == 1
    assert metric(client, "foretell_request_seconds_count") == metric(client, "foretell_routing_seconds_count") == 1
    fleet.results = lambda _: []  # a replica hangs
    assert metric(client, "foretell_steps_total") == 7
    assert metric(client, "foretell_replicas_answered") == 0


def test_a_run_is_replayed_where_it_is() -> None:
    client, fleet, _ = made()
    fleet.results = lambda _: [(404, (), b"a"), (200, (("content-type", "application/json"),), b'{"steps": 3}')]
    answer = client.post("/foretell/replay", json={"run": "x"})
    assert (answer.status_code, answer.json()) == (200, {"steps": 3})
    fleet.results = lambda _: []
    assert client.post("/foretell/replay", json={"run": "x"}).status_code == 504


def test_the_page_is_asked_for_once() -> None:
    page = [Taken("a"), Start(200, ((b"content-type", b"text/html"),)), b"<html>"]
    client, fleet, _ = made(page, [Taken("a"), Start(404, (JSON,)), b"{}"], [Taken("a"), Start(404, (JSON,)), b"{}"])
    assert client.get("/").text == client.get("/").text == "<html>"
    assert len(fleet.sent) == 1
    assert client.get("/static/none").status_code == client.get("/static/none").status_code == 404


@pytest.mark.parametrize(
    ("chunk", "opens"),
    [
        (OPENING, True),
        (event(""), True),
        (event("a"), False),
        (event(None, draft={"step": 0}), False),
        (b'data: {"choices": [{"text": "", "finish_reason": null}]}', True),
        (b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}', False),
        (b'data: {"choices": [{"text": "b", "finish_reason": null}]}', False),
        (b'data: {"choices": [], "usage": {}}', False),
        (b'data: {"error": {}, "choices": [{}]}', False),
        (b'data: {"object": "decision.preview"}', False),
        (DONE, False),
        (b": keep-alive", False),
    ],
)
def test_events_that_only_open_a_choice(chunk: bytes, opens: bool) -> None:
    assert is_opening(chunk) is opens


@pytest.mark.parametrize(
    "wrong", [{"beat": 0}, {"silence": 1.0, "beat": 2.0}, {"stall": 0}, {"attempts": 0}, {"attempts": 1.5}]
)
def test_patience_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        Patience(**wrong)


class Local:
    """One replica in this process: the real server, behind an exchange."""

    def __init__(self, engine: Engine) -> None:
        self.app = app(engine)
        self.service = self.app.state.service
        self.service.worker.start()
        self.responses: list[AsyncIterator[Any]] = []

    def send(self, exchange: Exchange, group: str) -> Any:
        return Answering(answer_exchange(self.app, exchange, 0.05, lambda: False))

    async def ask_all(self, method: str, *args: Any, seconds: float) -> list[Any]:
        return [("local", self.service.metrics.text().decode())]

    async def count(self) -> Mapping[str, int]:
        return {"RUNNING": 1}


class Answering:
    def __init__(self, parts: AsyncIterator[Any]) -> None:
        self.parts: Any = parts

    def __aiter__(self) -> AsyncIterator[Part]:
        return self.parts  # type: ignore[no-any-return]

    def cancel(self) -> None:
        asyncio.ensure_future(self.parts.aclose())  # noqa: RUF006


@pytest.fixture(scope="module")
def local() -> Iterator[tuple[TestClient, Local]]:
    fleet = Local(load("tiny"))
    front = Front(fleet, Watch(), Limits(), Access(), Patience())
    with TestClient(front.app()) as client:
        yield client, fleet
    fleet.service.worker.stop(10)


def test_the_real_server_behind_a_front(local: tuple[TestClient, Local]) -> None:
    client, fleet = local
    body = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}]}
    assert client.post(CHAT, json=body).json()["choices"][0]["message"]["content"] == ANSWER
    text = ""
    with client.stream("POST", CHAT, json=body | {"stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    assert text == ANSWER
    refused = client.post(CHAT, json=body | {"recipe": "none"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "recipe")
    assert "<html" in client.get("/").text
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert metric(client, "foretell_steps_total") > 0
    assert metric(client, 'foretell_requests_total{outcome="refused",route="/v1/chat/completions"}') == 1
    assert client.get("/nothing").status_code == 404
    assert client.delete("/v1/models").status_code == 405
    del fleet


def test_an_exchange_that_is_closed_leaves_the_app() -> None:
    seen: list[str] = []

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"x"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        seen.append((await receive())["type"])

    async def run() -> list[Any]:
        found: list[Any] = []
        parts = answer_exchange(waits, Exchange("GET", "/", b"", (), b"x"), 0.01, lambda: len(found) > 2)
        found.append(await anext(parts))
        found += [await anext(parts), await anext(parts)]
        with pytest.raises(TimeoutError):  # it is stalled now, so it does not say that it is alive
            await asyncio.wait_for(anext(parts), 0.1)
        await parts.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(run()) == [Start(200, ((b"a", b"b"),)), None, None]
    assert seen == ["http.disconnect"]


def test_an_app_that_fails_fails_its_exchange() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("a bug")

    async def run() -> None:
        async for _ in answer_exchange(fails, Exchange("GET", "/", b"", (), b""), 1.0, lambda: False):
            pass

    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(run())
