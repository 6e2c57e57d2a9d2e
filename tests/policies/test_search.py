"""Searches with Python's `re` under a time limit: the same results as `re`, and a hostile pattern fails its own row."""

from __future__ import annotations

import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
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
from foretell.policies.region.search import SEARCHER, Searcher
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


def test_threads_take_turns() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: Pattern(r"\d").find(" " * at + "7"), range(200)))
    assert found == [(at, at + 1) for at in range(200)]


def test_a_fork_has_its_own_process() -> None:
    assert Pattern("a").find("a") == (0, 1)
    mine = SEARCHER._process
    child = os.fork()
    if child == 0:
        good = SEARCHER._process is None and Pattern("a").find("ba") == (1, 2) and SEARCHER._process is not None
        SEARCHER.close()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert Pattern("a").find("bba") == (2, 3)
    assert SEARCHER._process is mine


def test_an_interrupted_search_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    searcher = Searcher()
    assert searcher.find("a", None, "a") == (0, 1)
    process: Any = searcher._process
    real = process.stdout

    class Interrupted:
        def readline(self) -> bytes:
            raise KeyboardInterrupt

    process.stdout = Interrupted()
    with monkeypatch.context() as patch:
        patch.setattr(process, "communicate", process.wait)
        with pytest.raises(KeyboardInterrupt):
            searcher.find("a", None, "bba")
    real.close()
    process.stdin.close()
    assert searcher.find("a", None, "ba") == (1, 2)
    searcher.close()


def test_a_process_that_was_killed_is_replaced() -> None:
    searcher = Searcher()
    assert searcher.find("a", None, "a") == (0, 1)
    process: Any = searcher._process
    process.kill()
    process.wait()
    process.poll = lambda: None  # it dies between two searches, unnoticed until the pipe breaks
    with pytest.raises(RecipeError, match="was given up"):
        searcher.find("a", None, "a")
    assert searcher.find("a", None, "ba") == (1, 2)
    process = searcher._process
    process.kill()
    process.wait()
    assert searcher.find("a", None, "ba") == (1, 2)
    searcher.close()
    searcher.forget()


def test_a_process_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(RecipeError, match=r"which cannot start: .*Permission denied"):
        Searcher().find("a", None, "a")


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
