"""runs/serve_load.py with a few requests: what it sends, what it notices, and its page."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import pytest
import uvicorn
from starlette.applications import Starlette

import foretell
from foretell.errors import RequestError
from foretell.serve import app
from tests.runs.test_study import RUNS
from tests.serve.conftest import PATIENCE, wait_for

MODULES = ("page", "serve_load", "serve_clients", "serve_page", "serve_naive")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(RUNS))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    plt.close("all")


@contextmanager
def listen(modules: Any, made: Starlette) -> Iterator[Any]:
    """Serve an app from a thread of this process."""
    server = uvicorn.Server(uvicorn.Config(made, "127.0.0.1", 0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield modules.serve_clients.Server(f"http://127.0.0.1:{port}", SimpleNamespace(pid=os.getpid()))
    server.should_exit = True
    thread.join(PATIENCE)


def test_a_page_is_made(modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = modules.serve_load
    engine = foretell.load("tiny", packed=False)
    monkeypatch.setattr(script, "TASK", "sudoku")  # the shortest
    monkeypatch.setattr(script, "TASKS", ("sudoku", "choice"))
    monkeypatch.setattr(script, "serve", lambda _: listen(modules, app(engine)))
    monkeypatch.setattr(script, "start_server", lambda *_: listen(modules, modules.serve_naive.naive(engine)))
    words = "--requests 3 --problems 4 --rounds 1 --soak 2 --clients 6 --no-packed --out"
    monkeypatch.setattr(sys, "argv", ["serve_load", *words.split(), str(tmp_path)])
    script.main()
    found = json.loads((tmp_path / "serve.json").read_text())
    page = " ".join((tmp_path / "serve.md").read_text().split())
    assert (tmp_path / "serve.png").exists()
    assert [one["requests"] for one in found["soak"]["rounds"]] == [6, 6]
    assert all(one["answered"] + one["left"] == 6 for one in found["soak"]["rounds"])
    assert sum(one["different"] for one in found["soak"]["rounds"]) == 0
    assert all(one["same"] == 1.0 for ways in found["speed"]["recipes"].values() for one in ways.values())
    right = {task: [one["right"] for one in recipes.values()] for task, recipes in found["accuracy"]["tasks"].items()}
    assert right == {"sudoku": [4, 4, 4], "choice": [4, 4, 4]}
    assert "12 requests in 2 rounds" in page
    assert "| `swift` | one at a time |" in page
    assert "[serve](serve.md)" in (tmp_path / "README.md").read_text()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--only", "soak", "--soak", "1", "--note", "It rained."])
    script.main()
    again = json.loads((tmp_path / "serve.json").read_text())
    assert (again["speed"], len(again["soak"]["rounds"]), again["note"]) == (found["speed"], 1, "It rained.")
    page = (tmp_path / "serve.md").read_text()
    assert "## Goals" in page
    assert "It rained." in page


def test_a_page_without_the_speed_has_no_picture(modules: Any, tmp_path: Path) -> None:
    numbers = json.loads((RUNS.parent / "docs" / "results" / "serve.json").read_text())
    del numbers["speed"]
    (tmp_path / "serve.json").write_text(json.dumps(numbers))
    page = modules.page.write_page("serve", tmp_path)
    assert "## Goals" not in page
    assert "serve.png" not in page
    assert not (tmp_path / "serve.png").exists()


def test_requests_are_mixed(modules: Any) -> None:
    asks = modules.serve_clients.mix([("a", "word"), ("b", "choice")], ("full", "swift"), 400, 0.2, 0)
    assert asks == modules.serve_clients.mix([("a", "word"), ("b", "choice")], ("full", "swift"), 400, 0.2, 0)
    assert {(one.recipe, one.stream) for one in asks} == {(r, s) for r in ("full", "swift") for s in (True, False)}
    assert 50 < sum(one.leaves is not None for one in asks) < 110
    assert not [one for one in asks if one.drafts and not one.stream]
    assert [one.body["drafts"] for one in asks if one.drafts]
    assert "stream" not in next(one.body for one in asks if not one.stream)


def test_clients_that_leave_have_no_answer_and_leave_nothing_behind(modules: Any) -> None:
    clients = modules.serve_clients
    prompt = "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?"
    asks = [clients.Ask(prompt, "word", "full", stream, leaves=0.0) for stream in (True, False)]
    with listen(modules, app(foretell.load("tiny"))) as server:
        assert [one.text for one in clients.run_load(server.url, asks, 2).answers] == [None, None]
        server.wait_until_idle()


def test_what_is_left_in_a_server_is_an_error(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = modules.serve_clients
    monkeypatch.setattr(clients, "IDLE", 0.0)
    values = {"foretell_requests_waiting": 2.0, "foretell_rows_running": 1.0}
    monkeypatch.setattr(clients.Server, "metrics", lambda _: values)
    with pytest.raises(RequestError, match="3 requests are still in the server"):
        clients.Server("", None).wait_until_idle()


def test_other_answers_are_counted(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script, clients = modules.serve_load, modules.serve_clients
    answers: Callable[..., Any] = lambda _, asks, __: clients.Load([clients.Answer("7", 1.0)] * len(asks), 1.0)  # noqa: E731
    monkeypatch.setattr(script, "run_load", answers)
    server = SimpleNamespace(url="", memory=0, wait_until_idle=lambda: 0.0, metrics=dict)
    engine: Any = SimpleNamespace(generate=lambda *_, **__: SimpleNamespace(text="8"))
    (only,) = script.soak(engine, server, SimpleNamespace(soak=1, clients=3))["rounds"]
    assert (only["answered"], only["different"]) == (3, 3)


def test_a_server_that_cannot_start_says_why(modules: Any) -> None:
    with (
        pytest.raises(RequestError, match="no such thing"),
        modules.serve_clients.start_server("-c", "import sys; sys.exit('no such thing')"),
    ):
        pass


def test_goals_that_are_missed_are_said(modules: Any) -> None:
    page = modules.serve_page
    one = {"rate": 10.0, "p50": None, "p99": None, "same": 1.0}
    recipes = {name: {way: dict(one) for way in page.COLOURS} for name in ("full", "swift stop=never", "swift")}
    speed = {"clients": 1, "rounds": 1, "recipes": recipes, "requests": 200}
    equal = {"right": 90, "lost": 0, "won": 0}
    counts = {"full": equal, "swift stop=never": equal, "swift": {"right": 90, "lost": 1, "won": 1}}
    accuracy = {"problems": 100, "tasks": {"word": counts, "choice": counts}}
    numbers = {"packed": True, "batch": 8, "speed": speed, "accuracy": accuracy}

    def reached() -> list[bool]:
        return [one["reached"] for one in page.view(numbers)["goal"].values()]

    assert reached() == [True, False, False, True]
    recipes["swift"][page.SERVER]["rate"] = 130.0
    counts["swift"]["lost"] = 2
    assert reached() == [True, True, True, False]
    recipes["full"][page.SERVER]["rate"] = 7.9
    text = modules.page.render("serve", numbers)
    assert "worst recipe (`full`) | at least 0.8x | 0.79x | **no** |" in text
    assert "n = 200 | at least -0.5 | -1.0 (-4.2 to +1.8) | **no** |" in text
    assert "| word | `swift` | 100 | 90.0 | -1.0 (-6.1 to +3.7) |" in text
    assert "| all | `swift` | 200 | 90.0 | -1.0 (-4.2 to +1.8) |" in text
