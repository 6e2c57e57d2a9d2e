"""A server with the bundled model, and pages of it in a real browser."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

RUNS = Path(__file__).parents[3] / "runs"
CHROMIUM = Path("/usr/bin/chromium")
AXE = Path("work/axe/node_modules/axe-core/axe.min.js")  # where `make test-browser` puts it
PATIENCE = 60_000  # milliseconds; the machine may be busy
PROBLEM = "Mia has 30 flowers. Noah has 3 times as many. He hides 38. He buys 26 more. How many flowers does Noah have?"
COMPLETIONS = "/v1/chat/completions"  # the route that the page uses for the bundled model
OpenPage = Callable[..., Any]


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The address of a page: the one in FORETELL_PAGE_URL, otherwise of a server that this process runs."""
    given = os.environ.get("FORETELL_PAGE_URL")
    if given:
        yield given
        return
    pytest.importorskip("uvicorn", reason="the server needs uvicorn, which the extra foretell[server] installs")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RUNS))
        serve_page = importlib.import_module("page_server").serve_page
    with serve_page() as url:
        yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing; make test-browser installs it")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is missing; make test-browser installs it")
    with api.sync_playwright() as playwright:
        # root needs --no-sandbox
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, server_url: str) -> Iterator[OpenPage]:
    """Return a function that opens the page with a fragment. At the end no page may have written to its console."""
    contexts, said = [], []

    def open_page(
        view: str = "",
        *,
        theme: str = "light",
        size: tuple[int, int] = (1280, 900),
        motion: str = "no-preference",
        replies: dict[str, Callable[[Any], None]] | None = None,
        **settings: str,
    ) -> Any:
        width, height = size
        context = browser.new_context(
            color_scheme=theme,
            reduced_motion=motion,
            viewport={"width": width, "height": height},
            has_touch=width < 500,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        for path, reply in (replies or {}).items():
            page.route(f"**{path}", reply)
        page.goto(server_url + (f"#{view}?{urlencode(settings)}" if settings else f"#{view}" if view else ""))
        return page

    yield open_page
    for context in contexts:
        context.close()
    # A browser itself reports every refused request.
    assert [text for text in said if "the server responded with a status of 4" not in text] == []


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds what keyboards and screen readers cannot use."""
    given = Path(os.environ.get("FORETELL_AXE", AXE))
    if not given.exists():
        pytest.skip(f"axe-core is missing at {given}; make test-browser installs it, FORETELL_AXE names another place")
    return given.read_text()


def violations(page: Any, axe: str) -> list[str]:
    page.evaluate(axe)
    found = page.evaluate("axe.run()")
    return [f"{one['id']}: {node['target']}" for one in found["violations"] for node in one["nodes"]]


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that happens in the page. Its policy forbids Playwright's own wait_for_function."""
    until = time.monotonic() + PATIENCE / 1000
    while not holds():
        assert time.monotonic() < until, f"timed out: {what}"
        time.sleep(0.05)


# A fake stream, for what a real run seldom does.


def draft(step: int, words: list[str], filled: int, **changes: Any) -> dict[str, Any]:
    """Return the draft of a window whose last position is the answer and whose first `filled` positions are filled."""
    count = len(words)
    given: dict[str, Any] = {
        "step": step,
        "budget": count,
        "text": "".join(words),
        "filled": [at < filled for at in range(count)],
        "fresh": [at == filled - 1 for at in range(count)],
        "answer": [at == count - 1 for at in range(count)],
        "pinned": [False] * count,
        "gap": 1.0 + step,
        "threshold": 7.5,
        "measure": "min gap",
        "settled": False,
        "window": 0,
        "seconds": 0.1 * (step + 1),
        "tokens": words,
        "ends": [False] * count,
        "confidence": [0.5] * count,
    }
    return given | changes


def ending(steps: int, **changes: Any) -> dict[str, Any]:
    given = {
        "run": "r1",
        "steps": steps,
        "budget": 8,
        "saved": 8 - steps,
        "forwards": steps,
        "exit": None,
        "gap": None,
        "measure": None,
        "finish": "complete",
        "answer": "7",
        "text": "it is 7",
        "seconds": 0.1 * steps,
        "queued": 0.0,
        "recipe": "swift",
        "notes": [],
    }
    return given | changes


def reply_with(*events: str | dict[str, Any]) -> Callable[[Any], None]:
    """Return a route that answers with these events: comments as text, chunks as dictionaries."""
    lines = [event if isinstance(event, str) else f"data: {json.dumps(event)}" for event in events]
    body = "".join(f"{line}\n\n" for line in lines)
    return lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body)


def stream_of(drafts: list[dict[str, Any]], done: dict[str, Any]) -> Callable[[Any], None]:
    chunks = [{"choices": [], "draft": one} for one in drafts]
    return reply_with(*chunks, {"choices": [], "foretell": done}, "data: [DONE]")
