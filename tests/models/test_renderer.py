"""Chat templates from a folder run in a process with limits of time, memory and output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from foretell.errors import ModelError, RequestError
from foretell.models import render, renderer
from foretell.models.chat import ChatTemplate
from foretell.models.renderer import RENDERER, Renderer

HI = [{"role": "user", "content": "hi"}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
FAMILY = ChatTemplate("the documented template", "{{ messages[0].content }}", documented=True)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A renderer of its own with a deadline of two seconds."""
    monkeypatch.setattr(renderer, "SECONDS", 2)
    own = Renderer()
    monkeypatch.setattr("foretell.models.chat.RENDERER", own)
    yield
    own.stop()


def rendered(template: str) -> str:
    return ChatTemplate("folder/chat_template.jinja", template).render(HI)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 'a' * 10**10 }}", "it needs too much memory"),
        ("{{ 'a' * 5000000 }}", "it writes more than 4,000,000 characters"),
        ("{% for a in range(90000) %}{{ 'a' * 100 }}{% endfor %}", "it writes more than 4,000,000 characters"),
        ("{{ 'a' | center(10**10) }}", "it needs too much memory"),
        ("{{ '%099999999999d' % 3 }}", "(too much memory|width too big)"),
        ("{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "memory"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "it is nested too deeply"),
        ("{{ range(10**9) }}", "Range too big"),
        ("{{ messages.x.y }}", "no attribute 'x'"),
        ("{{ strftime_now(3) }}", "must be str"),
    ],
)
def test_a_template_that_asks_for_too_much(template: str, reason: str) -> None:
    with pytest.raises(ModelError, match=rf"folder/chat_template\.jinja: the chat template fails .*{reason}"):
        rendered(template)
    assert rendered("{{ messages[0].content }}") == "hi", "the next template is not affected"


@pytest.mark.parametrize("template", [LOOP, "{% set x = 9**(9**9) %}"])
def test_a_template_that_does_not_end(hasty: None, template: str) -> None:
    with pytest.raises(ModelError, match="it takes more than 2 seconds"):
        rendered(template)
    assert rendered("{{ messages[0].content }}") == "hi"


@pytest.mark.parametrize(
    "template", ["{{ " + "(" * 3000 + ")" * 3000 + " }}", "{% if a %}" * 3000 + "{% endif %}" * 3000]
)
def test_a_template_that_the_compiler_cannot_read(template: str) -> None:
    with pytest.raises(ModelError, match=r"(not valid Jinja: .*|process was ended)"):
        rendered(template)


def test_a_refusal_is_an_error_of_the_request() -> None:
    with pytest.raises(RequestError, match="refuses these messages: no"):
        rendered("{{ raise_exception('no') }}")


def test_a_process_that_ended_is_replaced(hasty: None) -> None:
    assert rendered("{{ 1 }}") == "1"
    process: Any = sys.modules["foretell.models.chat"].RENDERER._process
    process.kill()
    process.wait()
    assert rendered("{{ 2 }}") == "2"


def test_a_process_that_ends_in_the_middle(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "__file__", os.devnull)
    with pytest.raises(ModelError, match="its process was ended"):
        rendered("{{ 1 }}")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ModelError, match="no process can be started for it"):
        rendered("{{ 1 }}")


def test_an_interrupt_leaves_no_answer_behind(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = renderer._exchange

    def interrupted(process: Any, line: str) -> str:
        process.stdin.write(line)
        process.stdin.flush()
        raise KeyboardInterrupt

    monkeypatch.setattr(renderer, "_exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rendered("{{ 1 }}")
    monkeypatch.setattr(renderer, "_exchange", exchange)
    assert rendered("{{ 2 }}") == "2"


def test_threads_take_turns() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: rendered(f"{{{{ {number} }}}}"), range(50))) == [*map(str, range(50))]
    assert threading.active_count() < 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_a_process_of_its_own() -> None:
    """Otherwise parent and child would read each other's answers."""
    code = """
import os
from foretell.models.chat import ChatTemplate
from foretell.models.renderer import RENDERER
one = lambda text: ChatTemplate("t", text).render([{"role": "user", "content": "hi"}])
assert one("{{ 1 }}") == "1"
first = RENDERER._process.pid
child = os.fork()
if child == 0:
    assert RENDERER._process is None
    assert one("{{ 2 }}") == "2" and RENDERER._process.pid != first
    RENDERER.stop()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert one("{{ 3 }}") == "3" and RENDERER._process.pid == first
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_documented_template_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RENDERER, "run", None)
    assert FAMILY.render(HI) == "hi"


def test_jobs_and_answers_are_lines() -> None:
    answers = io.StringIO()
    jobs: list[dict[str, Any]] = [
        {"template": text, "messages": [], "names": {"a": "é"}} for text in ("{{ a }}", "{% if %}")
    ]
    render.serve(io.StringIO("".join(json.dumps(job) + "\n" for job in jobs)), answers, 1000)
    first, second = (json.loads(line) for line in answers.getvalue().splitlines())
    assert first == {"text": "é"}
    assert second.keys() == {"invalid"}
