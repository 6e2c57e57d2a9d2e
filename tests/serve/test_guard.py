"""Who may use a server, what is too large, and what the other routes answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from foretell.engine.engine import Engine
from foretell.serve import Access, Limits, app
from foretell.serve.guard import Guard
from tests.serve.conftest import ANSWER, QUESTION, wait_for

BODY = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}]}


@pytest.fixture(scope="module")
def open_client(tiny: Engine) -> Iterator[TestClient]:
    with TestClient(app(tiny), base_url="http://localhost") as client:
        yield client


def test_a_key_is_asked_for(tiny: Engine) -> None:
    with TestClient(app(tiny, access=Access(key="secret"))) as client:
        for given in ("", "Bearer wrong", "Basic secret", "é"):
            headers = [(b"authorization", given.encode())]
            refused = client.post("/v1/chat/completions", json=BODY, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
        for path in ("/v1/models", "/v1/anything"):
            assert client.get(path).status_code == 401
        for path in ("/health", "/ready", "/metrics", "/foretell/info", "/", "/static/nothing"):
            assert client.get(path).status_code != 401
        assert client.get("/foretell/info").json()["key"] is True
        allowed = client.post("/v1/chat/completions", json=BODY, headers={"authorization": "Bearer secret"})
        assert allowed.json()["choices"][0]["message"]["content"] == ANSWER
        for given in ("bearer secret", "Bearer   secret "):
            assert client.get("/v1/models", headers={"authorization": given}).status_code == 200


def test_only_the_page_and_the_probes_need_no_key(tiny: Engine) -> None:
    made = app(tiny, access=Access(key="secret"))
    free = {"/", "/static/{name}", "/foretell/info", "/health", "/ready", "/metrics"}
    with TestClient(made) as client:
        for route in made.routes:
            assert isinstance(route, Route)
            method = "POST" if "POST" in (route.methods or ()) else "GET"
            status = client.request(method, route.path).status_code
            assert (status != 401) == (route.path in free), route.path


def test_a_key_is_compared_in_constant_time(tiny: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that ends at the first wrong byte shows by its time how much of a key is right."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return False

    monkeypatch.setattr("foretell.serve.guard.hmac.compare_digest", compare)
    with TestClient(app(tiny, access=Access(key="secret"))) as client:
        assert client.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 401
    assert compared == [(b"secret", b"secret")]


def test_other_hosts_are_refused(tiny: Engine) -> None:
    """A page that points its own name at this address must not reach the server."""
    with TestClient(app(tiny, access=Access(hosts=("localhost", "::1")))) as client:
        for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "", "[", "a b"):
            assert client.get("/v1/models", headers={"host": host}).status_code == 403, host
        for host in ("localhost", "LOCALHOST:8000", "[::1]:8000"):
            assert client.get("/v1/models", headers={"host": host}).status_code == 200


def test_pages_of_other_sites_are_refused_unless_allowed(tiny: Engine) -> None:
    there = {"origin": "http://there.example"}
    with TestClient(app(tiny)) as client:
        assert client.get("/v1/models", headers=there).status_code == 403
        assert client.get("/v1/models", headers={"origin": "http://not-testserver"}).status_code == 403
        own = client.get("/v1/models", headers={"origin": "http://testserver"})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers
        assert client.options("/v1/models", headers=there).status_code == 403
    with TestClient(app(tiny, access=Access(origins=("http://there.example",)))) as client:
        allowed = client.get("/v1/models", headers=there)
        assert allowed.headers["access-control-allow-origin"] == "http://there.example"
        assert (allowed.headers["vary"], allowed.headers["access-control-expose-headers"]) == ("origin", "x-request-id")
        asked = client.options("/v1/chat/completions", headers=there)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-methods"] == "GET, POST"
        assert asked.headers["access-control-allow-headers"] == "authorization, content-type, x-request-id"
        assert client.get("/v1/models", headers={"origin": "http://other.example"}).status_code == 403
    with TestClient(app(tiny, access=Access(origins=("*",)))) as client:
        assert client.get("/v1/models", headers=there).headers["access-control-allow-origin"] == there["origin"]


def test_request_ids_come_in_and_go_out(open_client: TestClient) -> None:
    assert open_client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in ("a b", "x" * 129, "é"):
        given = open_client.get("/health", headers={b"x-request-id": bad.encode()}).headers["x-request-id"]
        assert given.startswith("req-")


def test_a_body_that_is_too_large(tiny: Engine) -> None:
    with TestClient(app(tiny, limits=Limits(max_body=100))) as client:
        announced = client.post("/v1/chat/completions", content=b"x" * 101)
        assert (announced.status_code, announced.json()["error"]["code"]) == (413, "body_too_large")
        unannounced = client.post("/v1/chat/completions", content=iter([b"x" * 60, b"x" * 60]))
        assert unannounced.status_code == 413
        assert client.post("/v1/chat/completions", content=b"x" * 100).status_code == 400


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}', ""),
        (b'{"model": "tiny", "messages": []}', "at least one"),
        (b'{"model": "tiny", "messages": [1]}', "messages"),
        (b'{"model": "other", "messages": [{}]}', "not served here"),
        (b'{"model": "tiny", "prompt": "x"}', "prompt"),
        (b'{"model": "tiny", "messages": NaN}', "not valid JSON"),
        (b'{"model": "tiny", "seed": 99999999999999999999, "messages": [{}]}', "seed"),
    ],
)
def test_bad_bodies(open_client: TestClient, content: bytes, says: str) -> None:
    answer = open_client.post("/v1/chat/completions", content=content)
    assert answer.status_code in (400, 404)
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "prompt", [[], [[]], [1.5], [["a"]], {}, None, 5, True, [True], [[1], "a", [2.5]], [10**9], [-1]]
)
def test_bad_prompts(open_client: TestClient, prompt: Any) -> None:
    answer = open_client.post("/v1/completions", json={"model": "tiny", "prompt": prompt})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


def test_routes_that_do_not_exist(open_client: TestClient) -> None:
    for method, path, status in (
        ("GET", "/v2", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("OPTIONS", "/v1/models", 405),  # without an origin, it is no question of a browser
    ):
        answer = open_client.request(method, path)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert ("allow" in answer.headers) == (status == 405)
    for name in ("../app.py", "..%2fapp.py", "%2e%2e", "nothing.js"):
        assert open_client.get(f"/static/{name}").status_code == 404


def test_tokens_to_text_and_back(open_client: TestClient, tiny: Engine) -> None:
    made = open_client.post("/tokenize", json={"prompt": QUESTION}).json()
    assert made == {"tokens": tiny.codec.encode(QUESTION), "count": made["count"], "max_model_len": 256}
    chat = open_client.post("/tokenize", json={"model": "tiny", "messages": BODY["messages"]}).json()
    assert chat["count"] == made["count"] + 2
    text = open_client.post("/detokenize", json={"tokens": made["tokens"]}).json()["prompt"]
    assert text == tiny.codec.decode(made["tokens"])
    for token in (tiny.codec.vocab_size, 10**6):
        assert open_client.post("/detokenize", json={"tokens": [token]}).json()["error"]["param"] == "tokens"
    bodies: list[dict[str, Any]] = [{}, {"prompt": "a", "messages": []}, {"prompt": "hello"}, {"messages": [{}]}]
    for bad in bodies:
        assert open_client.post("/tokenize", json=bad).status_code == 400


def test_metrics_count_what_happened(tiny: Engine) -> None:
    made = app(tiny)
    with TestClient(made) as client:
        done = client.post("/v1/chat/completions", json=BODY).json()
        client.post("/v1/chat/completions", json=BODY | {"recipe": "none"})
        wait_for(lambda: made.state.service.worker.load == 0)  # an answer is sent just before it is counted out
        lines = client.get("/metrics").text.splitlines()
        values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}
        route = 'route="/v1/chat/completions"'
        assert values[f'foretell_requests_total{{outcome="ok",{route}}}'] == 1
        assert values[f'foretell_requests_total{{outcome="refused",{route}}}'] == 1
        assert values["foretell_steps_total"] == done["foretell"]["steps"]
        assert values["foretell_steps_saved_total"] == done["foretell"]["saved"]
        assert values["foretell_tokens_total"] == done["usage"]["completion_tokens"]
        assert values["foretell_prompt_tokens_total"] == done["usage"]["prompt_tokens"]
        assert values["foretell_queue_seconds_count"] == 1
        assert values["foretell_request_seconds_count"] == 2
        assert values["foretell_rows_running"] == values["foretell_requests_waiting"] == 0
        assert values["foretell_padding_share"] == 0
        assert values["foretell_tokens_per_forward_sum"] == pytest.approx(23 / done["foretell"]["forwards"])


def test_streams_are_counted_too(tiny: Engine) -> None:
    made = app(tiny)
    with TestClient(made) as client:
        client.post("/v1/chat/completions", json=BODY | {"stream": True})
        text = client.get("/metrics").text
    assert "foretell_tokens_total 23.0" in text
    assert 'foretell_requests_total{outcome="ok",route="/v1/chat/completions"} 1.0' in text


def test_one_log_line_per_request_without_the_prompt(tiny: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "foretell.serve"), TestClient(app(tiny)) as client:
        client.post("/v1/chat/completions", json=BODY, headers={"x-request-id": "abc"})
    lines = [record.getMessage() for record in caplog.records if record.name == "foretell.serve"]
    assert len(lines) == 1
    assert lines[0].startswith("abc POST /v1/chat/completions 200")
    assert "ok, 23 tokens" in lines[0]
    assert "threshold(value=0.995)" in lines[0]
    assert "Tom" not in lines[0]


def test_a_bug_is_logged_and_not_shown(tiny: Engine, caplog: pytest.LogCaptureFixture) -> None:
    made = app(tiny)

    def fail(_: object) -> None:
        raise RuntimeError("a secret")

    made.state.service.check_model = fail
    with TestClient(made) as client:
        answer = client.get("/v1/models/tiny", headers={"x-request-id": "abc"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert "abc" in caplog.text
    assert "a secret" in caplog.text


def test_a_bug_in_a_stream_ends_it(
    tiny: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stream(_: object) -> AsyncIterator[str]:
        yield "one"
        raise RuntimeError("a secret")

    monkeypatch.setattr("foretell.serve.answer.Answer.stream", stream)
    with TestClient(app(tiny)) as client:
        answer = client.post("/v1/chat/completions", json=BODY | {"stream": True})
        assert answer.text.startswith(": one\n\ndata: ")
        assert json.loads(answer.text.partition("data: ")[2])["error"]["code"] == "internal_error"
        assert "secret" not in answer.text
        assert "a secret" in caplog.text
        assert client.get("/health").status_code == 200


def test_a_bug_after_the_first_byte_begins_no_second_response() -> None:
    sent: list[Any] = []

    async def fail(_: object, __: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("a secret")

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    service: Any = SimpleNamespace(limits=Limits(), draining=False)
    asyncio.run(Guard(fail, service, Access())(scope, receive, send))
    assert [(one["type"], one["status"]) for one in sent] == [("http.response.start", 200)]


def test_an_answer_has_at_most_the_tokens_of_the_server(tiny: Engine) -> None:
    with TestClient(app(tiny, limits=Limits(max_tokens=6))) as client:
        for more in ({}, {"max_tokens": 100}):
            done = client.post("/v1/chat/completions", json=BODY | more).json()
            assert (done["usage"]["completion_tokens"], done["choices"][0]["finish_reason"]) == (6, "length")


def test_a_layout_of_the_model_keeps_its_window(tiny: Engine) -> None:
    with TestClient(app(tiny, limits=Limits(window=48))) as client:
        budgets = [
            client.post("/v1/chat/completions", json=BODY | more).json()["foretell"]["budget"]
            for more in ({}, {"layout": "word"})
        ]
    assert budgets == [48, 64]


def test_the_kept_run_is_the_first_answer(tiny: Engine) -> None:
    made = app(tiny)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "29,57,62,34"}], "layout": "countdown"}
    with TestClient(made) as client:
        done = client.post(
            "/v1/chat/completions", json=body | {"n": 3, "temperature": 2, "seed": 5, "trace": True}
        ).json()
    texts = [one["message"]["content"] for one in done["choices"]]
    assert len(set(texts)) == 3
    assert made.state.service.find_run(done["foretell"]["run"]).completion.text == texts[0]


def test_health_and_readiness(tiny: Engine) -> None:
    made = app(tiny)
    with TestClient(made) as client:
        assert client.get("/ready").json() == {"status": "ready", "model": "tiny"}
        assert client.get("/health").status_code == 200
        made.state.service.draining = True
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        late = client.post("/v1/chat/completions", json=BODY)
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        made.state.service.draining = False
    assert made.state.service.draining
    ended = TestClient(made)  # without its lifespan: the thread that decodes has ended
    made.state.service.draining = False
    assert [ended.get(path).status_code for path in ("/ready", "/health")] == [503, 503]


def test_the_page_has_a_strict_policy(open_client: TestClient) -> None:
    page = open_client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"


def test_a_stored_run_is_replayed_without_the_model(open_client: TestClient, tiny: Engine) -> None:
    body = BODY | {"recipe": "full", "trace": True}
    run = open_client.post("/v1/chat/completions", json=body).json()["foretell"]["run"]
    shown = open_client.post("/foretell/replay", json={"run": run}).json()
    trace = tiny.generate(QUESTION, trace=True).trace
    assert trace is not None
    assert (shown["steps"], shown["final"], shown["last_change"]) == (len(trace), "7", trace.last_change())
    assert len(shown["answers"]) == len(shown["min_gap"]) == len(shown["mean_gap"]) == len(shown["progress"]) == 61
    assert all(low <= mean + 1e-3 for low, mean in zip(shown["min_gap"], shown["mean_gap"], strict=True))
    rules = {one["name"]: one for one in shown["rules"]}
    early = tiny.generate(QUESTION, recipe="prophet stop.reduce=min")
    assert rules["prophet-min"]["step"] == early.exit
    assert rules["prophet-min"]["saved"] == 61 - early.steps
    assert rules["prophet-min"]["answer"] == early.answer
    unknown = open_client.post("/foretell/replay", json={"run": "chatcmpl-none"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "run_not_found")
    quick = open_client.post("/v1/chat/completions", json=BODY | {"trace": True}).json()["foretell"]
    fast = open_client.post("/foretell/replay", json={"run": quick["run"]}).json()
    assert {one["name"]: one["step"] for one in fast["rules"]}["prophet-min"] == quick["exit"]


def test_a_rule_that_stops_with_another_answer_says_so(open_client: TestClient) -> None:
    said = [{"role": "user", "content": "29,57,62,34"}]
    body = {"model": "tiny", "messages": said, "layout": "countdown", "recipe": "full", "trace": True}
    run = open_client.post("/v1/chat/completions", json=body).json()["foretell"]["run"]
    shown = open_client.post("/foretell/replay", json={"run": run}).json()
    assert {one["same"] for one in shown["rules"]} == {True, False}
    assert all(one["same"] == (one["answer"] == shown["final"]) for one in shown["rules"])


def test_only_the_last_runs_are_kept(open_client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.serve.service.RUNS", 1)
    first, second = (
        open_client.post("/v1/chat/completions", json=BODY | {"trace": True}).json()["foretell"]["run"]
        for _ in range(2)
    )
    assert open_client.post("/foretell/replay", json={"run": first}).status_code == 404
    assert open_client.post("/foretell/replay", json={"run": second}).status_code == 200
