"""The thread that decodes: requests that leave, fail or break the model, and the text that streams early."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import threading
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

import foretell
from foretell.engine.engine import Engine
from foretell.engine.scheduler import Scheduler
from foretell.errors import ModelError
from foretell.loop.protocols import Inputs, Readout
from foretell.serve import Limits
from foretell.serve.mailbox import MOST_DRAFTS, Committed, Draft, Mailbox, Preview
from foretell.serve.problems import Problem
from foretell.serve.worker import Ticket, Worker
from tests.serve.conftest import ANSWER, PATIENCE, QUESTION, Gated, Served, serve, wait_for
from tests.serve.test_openai import MESSAGES, ask, client

WITHOUT_EFFECT = "user has no effect on this server"


def send_raw(server: Served, body: dict[str, Any], route: str = "/v1/chat/completions") -> socket.socket:
    """Send a request over a bare socket, which can be closed at any time."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    raw = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    head = f"POST {route} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(raw)}\r\n\r\n"
    connection.sendall(head.encode() + raw)
    return connection


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_takes_its_row_with_it(gated: tuple[Served, Gated], stream: bool) -> None:
    server, model = gated
    body = {"model": "tiny", "messages": MESSAGES, "recipe": "full", "stream": stream}
    connection = send_raw(server, body)
    wait_for(lambda: len(model.passes) == 1)
    connection.close()
    outcome = server.service.metrics.requests.labels("/v1/chat/completions", "left")
    wait_for(lambda: outcome._value.get() == 1)  # the server has noticed, while the first step is under way
    model.gate.set()
    server.wait_until_idle()
    assert len(model.passes) == 1


def test_a_client_that_leaves_the_queue_is_never_decoded(gated: tuple[Served, Gated]) -> None:
    server, model = gated
    server.service.worker._scheduler.max_batch = 1
    first = send_raw(server, {"model": "tiny", "messages": MESSAGES, "stream": True})
    wait_for(lambda: len(model.passes) == 1)
    second = send_raw(server, {"model": "tiny", "messages": MESSAGES, "recipe": "full"})
    wait_for(lambda: server.service.worker.load == 2)
    second.close()
    left = server.service.metrics.requests.labels("/v1/chat/completions", "left")
    wait_for(lambda: left._value.get() == 1)
    model.gate.set()
    server.wait_until_idle()
    passes = len(model.passes)
    assert passes == server.engine.generate(QUESTION, recipe="swift").steps
    first.close()


def test_a_step_that_hangs_is_noticed(gated: tuple[Served, Gated]) -> None:
    server, model = gated
    worker = server.service.worker
    worker._moved -= 1000  # the server had nothing to do for a long time
    assert worker.stalled == 0
    connection = send_raw(server, {"model": "tiny", "messages": MESSAGES, "recipe": "full"})
    wait_for(lambda: len(model.passes) == 1)
    assert 0 < worker.stalled < 500
    worker._moved -= 1000
    assert worker.stalled > 1000
    model.gate.set()
    wait_for(lambda: worker.stalled < 500)
    connection.close()
    server.wait_until_idle()
    assert worker.stalled == 0


def test_an_exception_in_the_model_fails_the_running_requests_only(gated: tuple[Served, Gated]) -> None:
    server, model = gated
    server.service.worker._scheduler.max_batch = 1
    server.service.worker.max_batch = 1
    results: list[Any] = [None, None]

    def call(at: int) -> None:
        try:
            results[at] = ask(server, extra_body={"recipe": ("full", "swift")[at]}).choices[0].message.content
        except openai.APIStatusError as error:
            results[at] = error

    threads = [threading.Thread(target=call, args=(at,)) for at in range(2)]
    threads[0].start()
    wait_for(lambda: len(model.passes) == 1)
    threads[1].start()
    wait_for(lambda: server.service.worker.load == 2)
    model.fails.extend([RuntimeError("secret details"), None])  # in the second pass, when the other request waits
    model.gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert isinstance(results[0], openai.InternalServerError)
    assert "secret" not in str(results[0])
    assert results[1] == ANSWER
    assert ask(server).choices[0].message.content == ANSWER
    server.wait_until_idle()


class Poisoned:
    """A denoiser that returns NaN for rows whose prompt holds a certain token."""

    def __init__(self, inner: Any, token: int) -> None:
        self.inner, self.token, self.mask_id = inner, token, inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        bad = (inputs.canvas == self.token).any(dim=1)
        readout = self.inner(inputs)
        return lambda row, at: readout(row, at).masked_fill(bad[row][:, None], torch.nan)


def test_a_failing_request_fails_alone() -> None:
    engine = foretell.load("tiny")
    token = engine.codec.encode("Ben")[0]
    engine.model = Poisoned(engine.model, token)  # type: ignore[assignment]  # it needs no cache
    with serve(engine) as server:
        good = threading.Thread(target=lambda: found.append(ask(server, stream=False).choices[0].message.content))
        found: list[str] = []
        good.start()
        bad: list[Any] = [{"role": "user", "content": QUESTION.replace("Tom", "Ben")}]
        with pytest.raises(openai.InternalServerError, match="no finite best logit"):
            client(server).chat.completions.create(model="tiny", messages=bad)
        with pytest.raises(openai.APIError, match="no finite best logit"):
            list(client(server).chat.completions.create(model="tiny", messages=bad, stream=True))
        good.join(PATIENCE)
        assert found == [ANSWER]
        refused, failed = (
            server.service.metrics.requests.labels("/v1/chat/completions", outcome)._value
            for outcome in ("refused", "failed")
        )
        wait_for(lambda: refused.get() + failed.get() == 2)
        assert failed.get() == 2


def test_a_window_without_an_end_continues_in_another(literate: Path) -> None:
    engine = foretell.load(literate, packed=False)
    with serve(engine, recipes=("full",), limits=Limits(window=8)) as server:

        def complete(**options: Any) -> Any:
            return client(server).completions.create(model=engine.name, prompt="Once upon a", **options)

        whole = complete(max_tokens=30)
        work = whole.model_extra["foretell"]
        assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 30)
        assert (work["windows"], work["steps"]) == (4, 32)
        ids = engine.codec.encode("Once upon a", special=True)
        tokens: list[int] = []
        for _ in range(4):
            tokens += engine.generate([*ids, *tokens], recipe="full", max_new_tokens=8).tokens
        assert whole.choices[0].text == engine.codec.decode(tokens[:30])
        chunks = list(complete(max_tokens=30, stream=True, logprobs=0))
        assert "".join(one.choices[0].text for one in chunks) == whole.choices[0].text
        assert len([one for one in chunks if one.choices[0].text]) >= 4
        assert len(chunks[-1].choices[0].logprobs.tokens) == 30
        exact = complete(max_tokens=8)
        assert (exact.choices[0].finish_reason, exact.model_extra["foretell"]["windows"]) == ("length", 1)
        assert complete(max_tokens=30, user="me").model_extra["foretell"]["notes"].count(WITHOUT_EFFECT) == 1
        placed = complete(max_tokens=30, extra_body={"answer_length": 4})  # the answer's place ends the text
        assert (placed.choices[0].finish_reason, placed.model_extra["foretell"]["windows"]) == ("stop", 1)
        word = engine.codec.decode(tokens[10:12])
        cut = complete(max_tokens=30, stop=word)
        assert cut.choices[0].text == whole.choices[0].text.partition(word)[0]
        assert (cut.choices[0].finish_reason, cut.model_extra["foretell"]["windows"]) == ("stop", 2)
        for at in range(2, 20, 3):  # a part of a stop string is never sent, also if the rest is filled much later
            word = engine.codec.decode(tokens[at : at + 3])
            parts = [one.choices[0].text for one in complete(max_tokens=30, stop=word, stream=True)]
            assert "".join(parts) == whole.choices[0].text.partition(word)[0]


def test_every_window_has_its_own_random_numbers(literate: Path) -> None:
    engine = foretell.load(literate, packed=False)
    with serve(engine, recipes=("full",), limits=Limits(window=8)) as server:
        done = client(server).completions.create(
            model=engine.name, prompt="Once upon a", max_tokens=16, temperature=1, seed=3
        )
    tokens: list[int] = []
    for _ in range(2):
        prompt = [*engine.codec.encode("Once upon a", special=True), *tokens]
        tokens += engine.generate(prompt, recipe="full", max_new_tokens=8, temperature=1.0, seed=3).tokens
    assert done.model_extra is not None
    assert done.model_extra["foretell"]["windows"] == 2
    assert done.choices[0].text == engine.codec.decode(tokens)


def test_the_end_of_the_context_ends_the_text(literate: Path) -> None:
    engine = foretell.load(literate, packed=False)
    engine.context = 40
    with serve(engine, recipes=("full",), limits=Limits(window=16)) as server:
        done = client(server).completions.create(model=engine.name, prompt=[5] * 10, max_tokens=1000)
        assert done.usage is not None
        assert (done.choices[0].finish_reason, done.usage.total_tokens) == ("length", 40)
        assert done.model_extra is not None
        assert done.model_extra["foretell"]["windows"] == 2
        late = client(server).completions.create(model=engine.name, prompt=[5] * 38, max_tokens=1000)
        assert late.usage is not None
        assert late.usage.completion_tokens == 2
        with pytest.raises(openai.BadRequestError) as caught:
            client(server).completions.create(model=engine.name, prompt=[5] * 40)
        assert caught.value.code == "context_length_exceeded"


def test_a_model_without_layouts_gets_a_cautious_recipe(literate: Path) -> None:
    with serve(foretell.load(literate)) as server:
        shown = json.load(urllib.request.urlopen(f"{server.url}/foretell/info"))
        assert [one["name"] for one in shown["recipes"] if one["default"]] == [
            "full transfer=threshold(0.99) stop_at_eos=true"
        ]
        assert [one["stops"] for one in shown["recipes"]] == [False, False]
        assert shown["examples"] == []


def test_a_watched_row_costs_the_others_no_logits(tiny: Engine) -> None:
    """Only the row of the viewer is read at every position."""
    read: list[int] = []
    inner: Any = tiny.model

    class Counting:
        mask_id = inner.mask_id

        def __call__(self, inputs: Inputs) -> Readout:
            readout = inner(inputs)

            def count(row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
                read.append(len(row))
                logits: torch.Tensor = readout(row, at)
                return logits

            return count

    def logits_of(watched: int) -> int:
        scheduler = Scheduler(Counting(), tiny.codec.end_ids, 4)  # type: ignore[arg-type]  # it needs no cache
        template = tiny.template(recipe="swift")
        read.clear()
        for at in range(4):
            observers = [lambda step, row: step.draft[row]] if at < watched else []
            scheduler.submit(tiny.request(QUESTION, template), *observers)
        list(scheduler.run())
        return sum(read)

    none, one, two = map(logits_of, range(3))
    assert none < one < two
    assert two - one == one - none


def test_the_time_in_the_queue_is_not_the_time_in_the_batch(gated: tuple[Served, Gated]) -> None:
    server, model = gated
    model.slow.append(0.03)
    model.gate.set()
    work = ask(server, extra_body={"recipe": "full"}).model_extra["foretell"]
    assert work["queued"] < work["seconds"]


def test_a_recipe_in_flight_is_never_one_too_many(tiny: Engine) -> None:
    """Audits may start recipes beyond the limit; requests that share a batch with them are still taken."""
    worker = Worker(tiny, max_groups=1)

    def ticket(recipe: str) -> Ticket:
        template = tiny.template(recipe=recipe)
        return Ticket(tiny.request(QUESTION, template), template, print)

    worker.submit(ticket("swift"))
    worker._count(ticket("full"))  # an audit
    worker.submit(ticket("full"), ticket("swift"))
    assert worker.load == 4
    with pytest.raises(Problem, match="different recipes"):
        worker.submit(ticket("prophet"))


@pytest.mark.parametrize("kind", [Draft, Preview])
def test_a_slow_reader_loses_drafts_and_no_text(kind: Any) -> None:
    """And a reader that catches up loses nothing any more."""
    drafts = [Draft(at, (), 0.0) if kind is Draft else Preview(at, {}) for at in range(3 * MOST_DRAFTS)]  # type: ignore[arg-type]  # what is inside does not matter

    async def read() -> None:
        box = Mailbox()
        for at, draft in enumerate(drafts):
            box.put(0, draft)
            box.put(0, Committed((at,)))
        events = [event for _, event in await box.get(1)]
        assert [event for event in events if isinstance(event, kind)] == drafts[2 * MOST_DRAFTS :]
        assert [event.tokens[0] for event in events if isinstance(event, Committed)] == list(range(3 * MOST_DRAFTS))
        assert await box.get(0.01) == []
        for draft in drafts[:2]:
            box.put(0, draft)
        assert [event for _, event in await box.get(1)] == drafts[:2]

    asyncio.run(read())


def test_a_stopped_worker_finishes_what_it_has(tiny: Engine) -> None:
    found: list[str] = []
    with serve(tiny, grace=PATIENCE) as server:
        thread = threading.Thread(target=lambda: found.append(ask(server).choices[0].message.content))
        thread.start()
        wait_for(lambda: server.service.worker.load == 1 or found)
    thread.join(PATIENCE)
    assert found == [ANSWER]
    assert not server.service.worker.alive


def test_requests_that_are_not_done_in_time_are_told_that_the_server_stops(caplog: pytest.LogCaptureFixture) -> None:
    engine = foretell.load("tiny")
    model = Gated(engine.model)
    engine.model = model
    with serve(engine, grace=0.1) as server:
        body = {"model": "tiny", "messages": MESSAGES}
        connections = [send_raw(server, body | {"stream": stream}) for stream in (True, False)]
        wait_for(lambda: model.passes and server.service.worker.load == 2)
    model.gate.set()
    streamed, whole = map(read_all, connections)
    assert b'data: {"error":' in streamed
    assert b'"code":"shutting_down"' in streamed
    assert b"[DONE]" not in streamed
    assert whole.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in whole
    assert server.service.metrics.requests.labels("/v1/chat/completions", "failed")._value.get() == 2
    assert not [record for record in caplog.records if record.exc_info]
    wait_for(lambda: not server.service.worker.alive)
    for connection in connections:
        connection.close()


def test_a_stream_that_waits_is_kept_open(gated: tuple[Served, Gated], monkeypatch: pytest.MonkeyPatch) -> None:
    server, model = gated
    monkeypatch.setattr("foretell.serve.answer.KEEP_ALIVE", 0.02)
    connection = send_raw(server, {"model": "tiny", "messages": MESSAGES, "stream": True})
    seen = b""
    while seen.count(b": keep-alive") < 2:
        seen += connection.recv(4096)
    model.gate.set()
    while b"[DONE]" not in seen:
        seen += connection.recv(4096)
    connection.close()


def test_names_of_models_may_have_slashes(literate: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models--owner--name" / "snapshots" / "1"
    shutil.copytree(literate, folder)
    with serve(foretell.load(folder)) as server:
        assert [one.id for one in client(server).models.list().data] == ["owner/name"]
        assert client(server).models.retrieve("owner/name").id == "owner/name"
        done = client(server).completions.create(model="owner/name", prompt="One", max_tokens=2)
        assert done.model == "owner/name"


def test_a_stream_that_waits_knows_its_place(gated: tuple[Served, Gated], monkeypatch: pytest.MonkeyPatch) -> None:
    server, model = gated
    worker = server.service.worker
    worker._scheduler.max_batch = worker.max_batch = 1
    monkeypatch.setattr("foretell.serve.answer.KEEP_ALIVE", 0.02)
    body = {"model": "tiny", "messages": MESSAGES, "stream": True, "recipe": "full"}
    first = send_raw(server, body)
    wait_for(lambda: len(model.passes) == 1)
    others = [send_raw(server, body) for _ in range(2)]
    wait_for(lambda: worker.load == 3)
    shown = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
    assert "foretell_requests_waiting 2.0" in shown
    assert "foretell_rows_running 1.0" in shown
    worker._scheduler.patience = 0
    model.slow.append(0.05)
    model.gate.set()
    for place, connection in enumerate(others, 1):
        seen = b""
        while f": queued {place}".encode() not in seen:
            seen += connection.recv(4096)
        assert b"[DONE]" not in seen
    for connection in (first, *others):
        connection.close()
    server.wait_until_idle()


def test_a_recipe_that_the_model_cannot_run_fails_alone() -> None:
    engine = foretell.load("tiny")
    inner: Any = engine.model

    class WithoutCache(Poisoned):
        def new_cache(self, batch: int, length: int) -> Any:
            raise ModelError("this model has no cache")

    engine.model = WithoutCache(inner, -1)
    with serve(engine, recipes=("swift", "dual")) as server:
        with pytest.raises(openai.InternalServerError, match="this model has no cache"):
            ask(server, extra_body={"recipe": "dual"})
        assert ask(server).choices[0].message.content == ANSWER
        server.wait_until_idle()
