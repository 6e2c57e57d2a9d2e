"""Chat templates from a folder run in a process with limits of time, memory and output."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from foretell.errors import ModelError, RequestError
from foretell.helper import HelperProcess
from foretell.models import render, renderer
from foretell.models.chat import ChatTemplate

HI = [{"role": "user", "content": "hi"}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
FAMILY = ChatTemplate("the documented template", "{{ messages[0].content }}", documented=True)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A renderer of its own with a deadline of two seconds."""
    monkeypatch.setattr(renderer, "SECONDS", 2)
    own = HelperProcess(renderer._make_command)
    monkeypatch.setattr(renderer, "RENDERER", own)
    yield
    own.close()


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


def test_a_process_that_ends_in_the_middle(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "__file__", os.devnull)
    with pytest.raises(ModelError, match="its process was ended"):
        rendered("{{ 1 }}")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ModelError, match="no process can be started for it"):
        rendered("{{ 1 }}")


def test_the_documented_template_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.models.chat.render_in_process", None)
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
