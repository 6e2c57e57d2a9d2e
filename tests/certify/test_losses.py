"""Losses compare two results; whatever a user's function does, the result is in [0, 1] or an error names it."""

from __future__ import annotations

import functools
import json
import sys
from fractions import Fraction
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.certify.losses import LOSSES, Decoded, Loss, describe_example, find_loss
from foretell.certify.search import RiskGoal
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.prompts import LABEL, LABELLED

FULL = Decoded("so it is 4", "4", (1, 2, 3, 4), correct=True)
ABOUT: dict[str, Any] = {"id": "seven", "prompt": "2 + 2", "answer": "4", "label": None}


def measured(loss: Any, fast: Decoded, full: Decoded = FULL) -> float:
    return find_loss(loss)(full, fast, ABOUT)


@pytest.mark.parametrize(
    ("fast", "lost"),
    [
        (FULL, {}),
        (Decoded("it is 4", "4", (1, 2, 3, 5), correct=True), {"text": 1.0, "tokens": 0.25}),
        (Decoded("so it is 5", "5", (1, 9, 3, 5)), {"text": 1.0, "answer": 1.0, "tokens": 0.5, "success": 1.0}),
        (Decoded("so it is 4", None, (1, 2), correct=True), {"answer": 1.0, "tokens": 0.5}),
        (Decoded("so it is 4", "4", (1, 2, 3, 4, 5), correct=True), {"tokens": 0.2}),
        (Decoded("so it is 4", "4", (), correct=True), {"tokens": 1.0}),
    ],
)
def test_named_losses(fast: Decoded, lost: dict[str, float]) -> None:
    assert {name: measured(name, fast) for name in LOSSES} == dict.fromkeys(LOSSES, 0.0) | lost
    assert {name: measured(name, FULL, fast) for name in LOSSES} == dict.fromkeys(LOSSES, 0.0) | lost | {
        "success": 0.0
    }, "a right answer that full decoding lacks is no loss"


def test_which_are_graded_and_which_need_labels() -> None:
    assert [name for name, one in LOSSES.items() if one.graded] == ["tokens"]
    assert [name for name, one in LOSSES.items() if one.labelled] == ["success"]
    assert find_loss("consistency") is LOSSES["answer"], "its name in version 0.1.0"
    assert find_loss(LOSSES["text"]) is LOSSES["text"]
    wrong = Decoded("so it is 5", "5", (1, 9, 3, 5))
    assert measured("success", wrong, wrong) == 0.0, "what full decoding had wrong cannot be lost"
    empty = Decoded("", None, ())
    assert measured("tokens", empty, empty) == 0.0


def test_decodings_without_tokens_are_not_equal() -> None:
    """Records of version 0.1.0 have none, and two of them would otherwise always agree."""
    old = Decoded("so it is 4", "4", None)
    assert measured("answer", old) == 0.0
    for full, fast in ((old, old), (FULL, old), (old, FULL)):
        with pytest.raises(RequestError, match="decodings of an older version lack the tokens"):
            measured("tokens", fast, full)


def test_an_example_as_a_loss_sees_it() -> None:
    labelled = Example("a", "2 + 2", "4", {LABEL: "sums", LABELLED: True})
    assert describe_example(labelled) == {"id": "a", "prompt": "2 + 2", "answer": "4", "label": "sums"}
    assert describe_example(Example("b", "2 + 2", "", {LABELLED: False})) == {
        "id": "b", "prompt": "2 + 2", "answer": None, "label": None
    }  # fmt: skip


def test_a_function_is_a_graded_loss() -> None:
    def halved(full: Decoded, fast: Decoded, example: Any) -> float:
        return (full.answer != fast.answer) / 2 if example["id"] == "seven" else 1.0

    found = find_loss(halved)
    assert (found.name, found.graded, found.labelled) == ("halved", True, False)
    assert measured(halved, FULL) == 0.0
    assert measured(halved, Decoded("", None, ())) == 0.5
    assert find_loss(functools.partial(halved)).name == "partial"


@pytest.mark.parametrize(
    "value", [0, 1, True, 0.5, np.float32(0.5), np.float64(0.5), np.int64(1), np.True_, Fraction(1, 2)]
)
def test_numbers_of_any_kind_are_taken(value: Any) -> None:
    found = measured(lambda *_: value, FULL)
    assert type(found) is float
    assert found == float(value)


@pytest.mark.parametrize("value", [nan, inf, -0.01, 1.01, None, "0.5", [0.5], np.array([0.5]), np.float64(nan), 1j])
def test_other_values_are_named(value: Any) -> None:
    with pytest.raises(RequestError, match=r"the loss <lambda> must return a number from 0 to 1, got ") as raised:
        measured(lambda *_: value, FULL)
    assert repr(value) in str(raised.value)


def test_a_loss_that_is_not_graded_is_0_or_1() -> None:
    half = Loss("half", "is half", lambda *_: 0.5)
    with pytest.raises(RequestError, match=r"the loss half is not graded, so it must return 0 or 1, got 0\.5"):
        measured(half, FULL)


def test_an_error_of_the_function_names_loss_and_example() -> None:
    with pytest.raises(RequestError, match="the loss <lambda> fails on example seven: KeyError: 'gold'"):
        measured(lambda full, fast, example: example["gold"], FULL)
    with pytest.raises(RequestError, match=r"fails on example seven: TypeError: .* takes 2 positional arguments"):
        measured(lambda full, fast: 0.0, FULL)


def test_a_function_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "json.py"  # not the module of that name
    text = """from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Weights:
    text: float = 0.25
def loss(full, fast, example):
    return Weights().text * (full.text != fast.text)
"""
    file.write_text(text)
    found = find_loss(f"{file}:loss")
    assert (found.name, found.graded) == (f"{file}:loss", True)
    assert measured(found, Decoded("", "4", ())) == 0.25
    assert sys.modules["json"] is json
    assert find_loss(f"{file}:loss").digest == found.digest
    file.write_text(text.replace("0.25", "0.125"))
    other = find_loss(f"{file}:loss")
    assert measured(other, Decoded("", "4", ())) == 0.125
    assert other.digest != found.digest, "another loss, although its function is the same"
    (tmp_path / "my_losses.py").write_text("def loss(full, fast, example):\n    return 0.75\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert measured("my_losses:loss", FULL) == 0.75


def test_a_file_is_run_once_per_goal(tmp_path: Path) -> None:
    file, log = tmp_path / "mine.py", tmp_path / "log"
    file.write_text(f"with open({str(log)!r}, 'a') as log:\n    log.write('x')\ndef loss(*given):\n    return 0\n")
    goal = RiskGoal(loss=f"{file}:loss")
    assert [goal.measure(FULL, FULL, ABOUT) for _ in range(3)] == [0.0] * 3
    assert log.read_text() == "x"
    assert goal.measure.name == f"{file}:loss"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "sucess",
            r"unknown loss 'sucess'; did you mean 'success'\? \(available: answer, success, text, tokens\); a fun",
        ),
        (7, "a loss is a name, a function or a text such as mine.py:loss, got 7"),
        (None, "a loss is a name, a function or a text such as mine.py:loss, got None"),
        ("nowhere.py:loss", "there is no file nowhere.py"),
        ("no_such_module:loss", "cannot import no_such_module: ModuleNotFoundError: No module named"),
        (":loss", "cannot import : ValueError"),
        ("math:loss", "math has no function 'loss'"),
        ("math:pi", "math has no function 'pi'"),
        ("{}/broken.py:loss", "cannot import .*broken.py: ZeroDivisionError: division by zero"),
        ("{}/wrong.py:loss", "cannot import .*wrong.py: SyntaxError"),
        ("{}:loss", "cannot import "),
    ],
)
def test_mistakes_are_named(given: Any, says: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "wrong.py").write_text("def loss(:")
    with pytest.raises(RequestError, match=says):
        find_loss(given.format(tmp_path) if isinstance(given, str) else given)
