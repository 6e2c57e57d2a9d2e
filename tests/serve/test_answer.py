"""One request that is being answered: its place in the queue, its time there, and the run that it keeps."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from starlette.testclient import TestClient

import foretell
from foretell.serve import Limits, app
from foretell.serve.answer import Answer, describe_wait
from foretell.serve.bodies import CompletionBody
from foretell.serve.dialects import Text
from foretell.serve.mailbox import Done
from tests.serve.conftest import PATIENCE


def test_the_place_of_a_request_is_that_of_its_first_choice() -> None:
    """A choice that is being decoded has the place 0."""
    worker: Any = SimpleNamespace(place=lambda ticket: ticket)
    for places, comment in (((3, 2), "queued 2"), ((3, 0), "keep-alive"), ((), "keep-alive")):
        tickets: Any = places
        assert describe_wait(worker, tickets) == comment


def test_the_time_in_the_queue_is_that_of_all_windows() -> None:
    """Each of two windows is done ten seconds after it arrived, of which it was decoded for four."""

    async def run() -> float:
        following = [object(), None]
        choice: Any = SimpleNamespace(
            completions=[SimpleNamespace(trace=None)], recipe="", finish_window=lambda _: following.pop(0)
        )
        service: Any = SimpleNamespace(
            metrics=SimpleNamespace(count=lambda _: None),
            ticket=lambda *_: SimpleNamespace(arrived=time.perf_counter() - 10),
            worker=SimpleNamespace(submit=lambda *_: None),
        )
        answer = Answer(service, Text(), CompletionBody(model="tiny", prompt=""), [choice])
        answer.start()
        outcome: Any = SimpleNamespace(seconds=4.0)
        for _ in range(2):
            answer._take(0, Done(outcome, "full", ()))
        return answer._queued[0]

    assert 12 <= asyncio.run(run()) < 12 + PATIENCE


def test_the_run_that_is_kept_is_the_first_window(literate: Path) -> None:
    engine = foretell.load(literate, packed=False)
    body = {"model": engine.name, "prompt": "Once upon a", "max_tokens": 16, "trace": True}
    made = app(engine, recipes=("full",), limits=Limits(window=8))
    with TestClient(made) as client:
        work = client.post("/v1/completions", json=body).json()["foretell"]
    assert work["windows"] == 2
    run = made.state.service.find_run(work["run"])
    assert run.request.prompt == tuple(engine.codec.encode("Once upon a", special=True))
