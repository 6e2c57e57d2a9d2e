"""Prompts in a Python list behave as in a file, including errors."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import foretell
from foretell.certify.calibrate import calibrate
from foretell.certify.decodings import evaluation_for
from foretell.certify.train_judge import train_judge
from foretell.errors import RequestError
from foretell.evaluation.benchmarks.prompts import Given, Prompts

GOAL: dict[str, Any] = {"risk": 0.2, "confidence": 0.9}
LAYOUT: dict[str, Any] = {"max_new_tokens": 12, "block_length": 6, "suffix": "The answer is", "answer_length": 2}
ASKED = [f"{name} has {number} boxes." for number in (2, 3, 4, 5) for name in ("Tom", "Ann", "Adam", "He")]


def labelled() -> list[Given]:
    """Every form that a prompt may have."""
    said = {"role": "user", "content": ASKED[1]}
    return [
        ASKED[0],
        [said],
        ({"role": "user", "content": ASKED[2]},),
        {"prompt": ASKED[3], "answer": "4"},
        OrderedDict(messages=(MappingProxyType(said),), answer=4, id="five"),
        MappingProxyType({"prompt": "Tom has\u2028 3\u0085 balls.\n", "answer": 2.5}),
    ]


def test_a_list_takes_what_a_file_takes(checkpoint: Path, tmp_path: Path) -> None:
    evaluation = evaluation_for(str(checkpoint), None, labelled(), "full", None, tmp_path, LAYOUT)
    examples = Prompts().examples(evaluation.source, None, 0)
    assert [one.id for one in examples] == ["1", "2", "3", "4", "five", "6"]
    assert [one.gold for one in examples] == ["", "", "", "4", "4", "2.5"]
    assert [one.data["labelled"] for one in examples] == [False] * 3 + [True] * 3
    assert examples[0].prompt == ASKED[0]
    assert examples[1].prompt == examples[4].prompt == ({"role": "user", "content": ASKED[1]},)
    assert examples[5].prompt == "Tom has\u2028 3\u0085 balls.\n"


def test_stop_strings_have_no_part_in_a_replay(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="stop_strings cut finished texts"):
        evaluation_for(str(checkpoint), None, ASKED, "full", None, tmp_path, {**LAYOUT, "until": ["."]})
    assert not list(tmp_path.iterdir())


def test_success_with_answers_in_python(checkpoint: Path, tmp_path: Path) -> None:
    right = [one.answer for one in foretell.load(checkpoint).generate(ASKED, **LAYOUT)]
    given: Any = [{"prompt": prompt, "answer": answer} for prompt, answer in zip(ASKED, right, strict=True)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, given)))
    listed, read = (
        calibrate(str(checkpoint), prompts=one, work=tmp_path / name, loss="success", options=LAYOUT, **GOAL)
        for name, one in (("a", given), ("b", file))
    )
    assert listed == read
    assert max(trial.empirical_risk for trial in listed.search.trials) > 0, "right answers can be lost"
    bare: Any = [*given[:3], {"prompt": "Tom has 4 balls.", "id": "ball"}]
    with pytest.raises(RequestError, match=r'1 prompts \(first: ball\) have no "answer"'):
        calibrate(str(checkpoint), prompts=bare, work=tmp_path / "c", loss="success", options=LAYOUT)
    assert train_judge(str(checkpoint), prompts=given, work=tmp_path / "a", options=LAYOUT).steps > 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([], "the list of prompts has no prompts in it"),
        ([{"prompt": "a"}, {"promt": "b"}], "the list of prompts, line 2: unknown key 'promt'; did you mean 'prompt'"),
        ([{"prompt": 4}], 'line 1: "prompt" must be a string, got 4'),
        ([{"prompt": "a", "messages": []}], 'line 1: has both "prompt" and "messages"'),
        ([{"prompt": "a", "answer": [4]}], 'line 1: "answer" must be a text or a number, got [4]'),
        ([{"prompt": "a", "id": 1.5}], '"id" must be a string or a whole number, got 1.5'),
        (["a", [{"role": "user"}]], "line 2: message 0: 'content' is missing; it must be"),
        (["a", []], 'line 2: "messages" must be a list of messages'),
        (["a", 4], "line 2: must be a string or an object, got 4"),
        (["a", None], "line 2: must be a string or an object, got null"),
        (["a", b"b"], "line 2: not valid JSON: a bytes is not a JSON value, got b'b'"),
        ([{"prompt": "a", "answer": {4}}], "line 1: not valid JSON: a set is not a JSON value"),
        ({"prompt": "a"}, "prompts must be a file or a list, got {'prompt': 'a'}"),
        (4, "prompts must be a file or a list, got 4"),
    ],
)
def test_a_list_has_the_errors_of_a_file(checkpoint: Path, tmp_path: Path, wrong: Any, says: str) -> None:
    with pytest.raises(RequestError) as raised:
        evaluation_for(str(checkpoint), None, wrong, "full", None, tmp_path / "work", {})
    assert says in str(raised.value)
    assert not (tmp_path / "work").exists(), "nothing is written"
