"""Searches with Python's `re` under a time limit: the same results as `re`, and a hostile pattern fails its own row."""

from __future__ import annotations

import re
import subprocess
import time
from typing import Any

import pytest
import torch

import foretell
from foretell.engine.codec import Codec
from foretell.engine.completion import answer_of
from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.trace import Trace
from foretell.errors import RecipeError, RowsFailedError
from foretell.loop.spelling import Spelling
from foretell.policies.region import search_process
from foretell.policies.region.pattern import Pattern
from foretell.policies.region.search import SEARCHER, find_last
from foretell.policies.region.sought import MASK
from foretell.recipes.recipe import Recipe

HOSTILE = Pattern("(a+)+$")
TEXT = "a" * 40 + "b"  # takes `re` hours
PIECES = ["?", "$", "a" * 40, "b", "7", "x"]


@pytest.mark.parametrize(
    "regex",
    [
        r"\d+", r"x = (\d+)", r"(\w+)\s*$", r"\bis\b (\S+)", r"(?i)ANSWER: (.+)", r"(?s)<a>(.*?)</a>", r"(\w)\1",
        r"(?<=is )\w+", r"é+|東京", r"a{,3}", r"[^\d\s]+\Z", r"(?P<n>[+-]?\d+(?:\.\d+)?)", r"|a", r"(?m)^(.*)$",
        "\uffff",
    ],
)  # fmt: skip
def test_results_are_those_of_re(regex: str) -> None:
    group = min(re.compile(regex).groups, 1)
    for text in (
        "", "x = 12 and x = 34.5\n", "The answer is ٣٤ é東京東京 is\u00a0x\u2028", f"is {MASK} 7{MASK}\n Answer: yes",
        "part of a character: \udce6\udc9d aab", "<a>1</a>\n<a>2\n3</a>", 'a"b\\c\x00\x1c\x85d',
    ):  # fmt: skip
        spans = [match.span(group) for match in re.finditer(regex, text) if match[group]]
        assert Pattern(regex).find(text) == (spans[-1] if spans else None)
        assert search_process.find_last(regex, None, text) == (spans[-1] if spans else None)


def test_a_search_ends_after_its_cpu_time() -> None:
    started = time.monotonic()
    with pytest.raises(
        RecipeError, match=r"pattern '\(a\+\)\+\$' was given up: .* 41 characters .* 0\.2 seconds of CPU"
    ):
        HOSTILE.find(TEXT)
    assert time.monotonic() - started < 60
    assert HOSTILE.find("baa") == (1, 3)  # another process searches on


def test_a_process_that_something_else_killed_is_not_the_patterns_fault() -> None:
    assert find_last("a", None, "a") == (0, 1)
    process: Any = SEARCHER._process
    process.kill()
    process.wait()
    process.poll = lambda: None  # it dies during the search
    assert find_last("a", None, "ba") == (1, 2)


def test_a_process_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    SEARCHER.close()
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(RecipeError, match=r"which cannot start: .*Permission denied"):
        find_last("a", None, "a")


def test_a_long_pattern_is_refused() -> None:
    with pytest.raises(RecipeError, match="pattern has 1001 characters; at most 1000"):
        foretell.parse(f"full region=pattern('{'a' * 1001}')")


def drafts(*rows: list[int]) -> Any:
    request = Request((3,), Layout(2), Recipe(region=HOSTILE))
    state = lay_out([request] * len(rows), 0, (1,), spelling=Spelling(PIECES.__getitem__))
    return request, state.with_text(draft=torch.tensor(rows))


def test_only_its_own_row_fails() -> None:
    _, state = drafts([2, 2], [2, 3], [3, 2], [2, 3])
    with pytest.raises(RowsFailedError) as raised:
        HOSTILE(state)
    assert sorted(raised.value.rows) == [1, 3]
    assert all(isinstance(error, RecipeError) for error in raised.value.rows.values())
    assert raised.value.first is raised.value.rows[1]
    _, state = drafts([2, 2], [3, 2])
    assert HOSTILE(state).tolist() == [[True, True], [False, True]]


def test_outside_of_the_loop_the_error_is_the_row_s() -> None:
    request, _ = drafts([2, 3])
    codec: Codec = type("Texts", (), {"end_ids": (1,)})()
    with pytest.raises(RecipeError, match="was given up"):
        answer_of([2, 3], request, codec, Spelling(PIECES.__getitem__))
    sure = torch.ones(1, 2)
    words = dict(enumerate(PIECES))
    trace = Trace(request, 0, (1,), torch.tensor([[2, 3]]), sure, sure, sure, sure, torch.zeros(2).long(), False, words)
    with pytest.raises(RecipeError, match="was given up"):
        trace.states()
