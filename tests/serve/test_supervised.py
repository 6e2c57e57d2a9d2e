"""Servers that earn their speed, and servers that audit a certified recipe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import foretell
from foretell.certify.audit import open_log, read_log
from foretell.certify.climb import climb, export
from foretell.certify.losses import find_loss
from foretell.certify.supervise import supervise
from foretell.engine.engine import Engine
from foretell.engine.options import Options
from foretell.engine.prompt_files import FilePrompt
from foretell.serve import app
from foretell.serve.bodies import ChatBody
from foretell.serve.worker import Ticket, Worker
from foretell.tasks import TASKS, draw
from tests.serve.conftest import QUESTION, wait_for


@pytest.fixture(scope="module")
def chooser() -> Engine:
    """The bundled model with short windows."""
    engine = foretell.load("tiny")
    engine.layouts = {**engine.layouts, "default": "choice"}
    return engine


@contextmanager
def climbing(engine: Engine, path: Path, events: list[Any]) -> Iterator[TestClient]:
    with open_log(path) as log:
        supervisor = climb(
            engine, log, engine.template(), find_loss("answer"), 0.4, 0.8, pilot=3, explore=1.0, rest=1.0
        )
        made = app(engine, supervisor=supervisor, report=lambda _, found: events.extend(found))
        with TestClient(made) as client:
            yield client


def ask(client: TestClient, prompt: str, **options: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}]} | options
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def metric(client: TestClient, name: str) -> float:
    (line,) = (line for line in client.get("/metrics").text.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


def wait_until_idle(client: TestClient) -> None:
    made: Any = client.app
    wait_for(lambda: made.state.service.worker.load == 0)


def test_a_server_earns_its_speed(chooser: Engine, tmp_path: Path) -> None:
    path, events = tmp_path / "log.jsonl", list[Any]()
    prompts = [one.prompt for one in draw(TASKS["choice"], np.random.default_rng(3), 16, test=True)]
    with climbing(chooser, path, events) as client:
        works = []
        for prompt in prompts:
            works.append(ask(client, prompt)["foretell"])
            wait_until_idle(client)
        assert [one["steps"] for one in works[:3]] == [29, 29, 29]
        assert works[-1]["forwards"] < 29
        assert {one.kind for one in events} >= {"ladder", "earned", "use"}
        state = read_log(path)
        assert state.rung >= 1
        assert metric(client, "foretell_audit_rung") == state.rung
        assert metric(client, "foretell_audits") == state.audits
        assert metric(client, "foretell_audit_risk_bound") < 1
        named = ask(client, prompts[0], recipe="full")["foretell"]
        assert named["steps"] == 29  # a client that names a recipe gets it, and is no evidence
        ask(client, prompts[0], temperature=1.0)
        ask(client, prompts[0], n=2)
        ask(client, prompts[0], stop="nowhere")
        ask(client, prompts[0], steps=8)
        ask(client, prompts[0], block_length=32)
        wait_until_idle(client)
        assert read_log(path).audits == state.audits
    with climbing(chooser, path, events) as client:  # a restart continues
        assert ask(client, prompts[0])["foretell"]["forwards"] < 29


def test_only_defaults_are_supervised(chooser: Engine, tmp_path: Path) -> None:
    """And only the first window: what follows it is no answer to the prompt alone."""
    with climbing(chooser, tmp_path / "log.jsonl", []) as client:
        made: Any = client.app
        service = made.state.service
        for more in ({}, {"top_p": 0.5}, {"top_k": 3}, {"temperature": 0.5}, {"max_tokens": 3}):
            body = ChatBody(model="tiny", messages=[{"role": "user", "content": QUESTION}], **more)
            (choice,) = service.prepare(body, ())
            assert service._is_supervised(body, choice) == (more.keys() <= {"max_tokens"})
            choice.window = 1
            assert not service._is_supervised(body, choice)


def test_a_supervised_request_may_keep_its_trace(tiny: Engine) -> None:
    """Also if the supervisor needs no trace of it."""
    template = tiny.template(recipe="full")
    supervisor: Any = SimpleNamespace(plan=lambda _: [SimpleNamespace(template=template)])
    for record in (True, False):
        asked = FilePrompt("a", QUESTION)
        ticket = Ticket(tiny.request(QUESTION, template), template, print, record=record, supervised=asked)
        Worker(tiny, supervisor=supervisor)._admit(ticket)
        assert ticket.record == record


def test_a_client_that_leaves_does_not_hold_up_the_audits(chooser: Engine, tmp_path: Path) -> None:
    """Audits are added in the order of arrival, so an audited request is decoded to its end."""
    path, events = tmp_path / "log.jsonl", list[Any]()
    prompts = [one.prompt for one in draw(TASKS["choice"], np.random.default_rng(4), 8, test=True)]
    with climbing(chooser, path, events) as client:
        made: Any = client.app
        for prompt in prompts[:4]:
            ask(client, prompt)
        wait_until_idle(client)
        worker, before = made.state.service.worker, read_log(path).audits
        submit = worker.submit

        def leave(*tickets: Any) -> None:
            submit(*tickets)
            worker.cancel(tickets[0])

        worker.submit = leave
        service = made.state.service
        service.limits = type(service.limits)(timeout=0.05)
        client.post(
            "/v1/chat/completions", json={"model": "tiny", "messages": [{"role": "user", "content": prompts[4]}]}
        )
        worker.submit = submit
        service.limits = type(service.limits)()
        for prompt in prompts[5:]:
            ask(client, prompt)
        wait_until_idle(client)
        assert read_log(path).audits == before + 4


def test_a_certified_recipe_is_served_and_audited(chooser: Engine, tmp_path: Path) -> None:
    """The recipe that a climb earned is exported, served as a file, and audited."""
    path = tmp_path / "log.jsonl"
    prompts = [one.prompt for one in draw(TASKS["choice"], np.random.default_rng(3), 12, test=True)]
    with climbing(chooser, path, []) as client:
        for prompt in prompts:
            ask(client, prompt)
            wait_until_idle(client)
    file = tmp_path / "tuned.json"
    certificate = export(read_log(path))
    assert certificate.certified
    certificate.save(file)
    options = Options.of({"recipe": str(file)})
    assert options.certificate is not None
    with open_log(tmp_path / "audit.jsonl") as log:
        supervisor = supervise(chooser, log, chooser.template(recipe=str(file)), options.certificate, 1.0)
        with TestClient(app(chooser, recipes=(str(file), "swift"), supervisor=supervisor)) as client:
            done = ask(client, prompts[0])["foretell"]
            assert done["recipe"] == str(certificate.chosen)
            assert done["notes"] == []
            shown = client.get("/foretell/info").json()["recipes"]
            assert [one["name"] for one in shown] == ["tuned", "swift", "full"]
            assert ask(client, prompts[0], recipe="tuned")["foretell"]["recipe"] == done["recipe"]
            wait_until_idle(client)
            assert metric(client, "foretell_audits") == 1
    entries = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()[1:]]
    assert [one["used"] for one in entries] == [1]
