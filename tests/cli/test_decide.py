"""`foretell decide` and `foretell tune --questions`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from foretell.certify.tune import tune
from foretell.certify.tune_decisions import calibrate
from foretell.cli.app import app
from foretell.decide.wire import parse_questions
from foretell.engine.certificate import Certificate, read_certificate
from foretell.engine.engine import Engine, load
from foretell.engine.prompt_files import FilePrompt
from foretell.errors import RequestError
from foretell.evaluation.benchmarks.decisions import example_of
from foretell.recipes.presets import parse
from foretell.tasks import TASKS, draw
from tests.decide.models import make_engine

INPUT = "Tom has 3 boxes with 4 apples each. He eats 5."
ASK = ["-q", "How many apples are left?"]
QUESTION = {"type": "choice", "choices": ["A", "B", "C", "D"], "read": "words"}


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["decide", "tiny", *words])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--integer", "2"], "q1: 7"),
        (["--choice", "0 to 19, 20 to 34, 35 to 60, 61 to 99"], "q1: 0 to 19"),
        (["--score", "0 to 19,20 to 34,35 to 60,61 to 99"], "0 to 19"),
        (["--yes-no", "--on-unsure", "abstain", "--sure", "1"], "q1: null"),
    ],
)
def test_one_input(words: list[str], says: str) -> None:
    done = run(INPUT, *ASK, *words)
    assert done.exit_code == 0, done.output
    assert says in done.output
    assert "forwards" in done.output


def test_a_file_of_inputs_resumes(tmp_path: Path) -> None:
    questions, inputs, out = (tmp_path / name for name in ("q.json", "in.jsonl", "out.jsonl"))
    questions.write_text(json.dumps({"n": {"type": "integer", "instructions": ASK[1]}}))
    rows = [{"id": "a", "prompt": INPUT}, {"id": "b", "prompt": "Zebra"}, {"id": "c", "text": INPUT}]
    inputs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--questions", str(questions), "--file", str(inputs), "--out", str(out)]
    assert run(*words).exit_code == 1  # one of them has an unknown word
    first = out.read_text().splitlines()
    found = [json.loads(line) for line in first]
    assert [row["id"] for row in found] == ["a", "b", "c"]
    assert found[0]["answers"]["n"]["value"] == 7
    assert "vocabulary has no" in found[1]["error"]
    header = json.dumps({"foretell_run": None})
    out.with_name("out.jsonl.part").write_text(f"{header}\n{first[0]}\n")
    assert "interrupted run with other prompts" in run(*words).output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([INPUT], "give one of --choice"),
        ([INPUT, "--integer", "2", "--yes-no"], "got --integer and --yes-no"),
        ([INPUT, "--choice", "a"], "the number of choices must be from 2 to 255"),
        ([INPUT, "--choice", "a,b,a"], "choices must differ, but 'a' is given twice"),
        (["--integer", "2"], "give one prompt"),
        ([INPUT, "--integer", "2", "--template", "none"], "unknown template"),
        ([INPUT, "--integer", "2", "--out", "done.parquet"], "JSON lines, not as a table"),
    ],
)
def test_mistakes(words: list[str], says: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (3, "questions are a JSON object or a list"),
        ([{"type": "guess"}], "question 1: unknown type 'guess'"),
        ([{"type": "choice", "choices": 3}], "question 1: choices must be a list"),
        (
            [{"type": "choice", "choices": ["a", {"value": "a"}]}],
            "question 1: choices must differ, but 'a' is given twice",
        ),
        (
            [{"type": "choice", "choices": ["a", {"value": ["b"]}]}],
            "question 1: a choice must be a text, true or false",
        ),
        ([{"type": "integer", "digit": 3}], "did you mean 'digits'"),
        ({"a": {"type": "object", "schema": {}}}, "question 'a': a schema must describe an object"),
        ([{"type": "predicate", "name": "x"}] * 2, "two questions are named 'x'"),
    ],
)
def test_impossible_files(value: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        parse_questions(value)


def test_questions_of_every_type() -> None:
    made = parse_questions(
        [
            {"type": "predicate", "name": "p", "instructions": "ok?"},
            {"type": "choice", "instructions": "", "choices": [{"value": "a", "description": "x"}, "b"]},
            {"type": "score", "levels": [{"label": "low"}, {"label": "high", "description": "very"}]},
            {"type": "integer", "digits": 1, "depends_on": "p"},
            {"type": "text", "regex": "a+", "tokens": 4},
        ]
    )
    assert list(made) == ["p", "q2", "q3", "q4", "q5"]
    choice, score = made["q2"], made["q3"]
    assert choice.descriptions == ("x", None)  # type: ignore[union-attr]
    assert score.levels == ("low", "high: very")  # type: ignore[union-attr]


def write_questions(folder: Path) -> str:
    path = folder / "questions.json"
    path.write_text(json.dumps([QUESTION]))
    return str(path)


def check_calibrated_options(engine: Engine, text: str, asked: Any, tuned: Certificate) -> None:
    """A calibration holds for one reading with all steps; whether an answer is sure is decided after it."""
    for more in ({"steps": 5}, {"orders": 2}, {"on_unsure": "full"}):
        options: Any = {"recipe": tuned, **more}
        decision = engine.decide(text, asked, **options)
        assert decision.answer.conformal is None
        assert "so it is not used" in " ".join(decision.notes)
        with pytest.raises(RequestError, match="so it is not used"):
            engine.decide(text, asked, **options, on_mismatch="fail")
    assert tuned.decisions is not None
    flat = tuned.decisions["kinds"]["choice"] | {"temperature": 20.0, "doubt": 0.5}
    unsure = replace(tuned, decisions={**tuned.decisions, "kinds": {"choice": flat}})
    for recipe, sure in ((unsure, 0.95), (tuned, 0.3)):
        answer: Any = engine.decide(text, asked, recipe=recipe, on_unsure="abstain", sure=sure, orders=1).answer
        assert answer.reads == 1
        assert answer.abstained == (max(answer.calibrated.values()) < sure)
        assert answer.abstained == (recipe is unsure)
        assert max(answer.probabilities.values()) > 0.95


def test_questions_that_depend_on_others_are_not_tuned(tmp_path: Path) -> None:
    rows = [{"prompt": INPUT}] * 16
    asked = [{**QUESTION, "name": "a"}, {**QUESTION, "name": "b", "depends_on": "a"}]
    with pytest.raises(RequestError, match="all questions are asked at once, but b depends on another one"):
        tune("tiny", prompts=rows, questions=asked, out=tmp_path / "tuned.json")


def test_several_questions_of_one_input_are_one_row() -> None:
    asked = json.dumps({"a": {"type": "integer", "digits": 1}, "b": {"type": "integer", "digits": 1}})
    rows = [FilePrompt(at, f"{at}", answer={"a": at % 10, "b": 3}) for at in range(50)]
    examples = [example_of(one, ["a", "b"], asked, None) for one in rows]
    made = calibrate(make_engine(0), examples, parse("full steps=1"), 0.9, 32)
    assert made is not None
    assert made.kinds["integer"].rows == 50


def test_tuned_decisions_are_calibrated(tmp_path: Path) -> None:
    problems = draw(TASKS["choice"], np.random.default_rng(5), 64, test=True)
    rows = [{"id": at, "prompt": one.prompt, "answer": one.answer.strip()} for at, one in enumerate(problems)]
    out = tmp_path / "tuned.json"
    how: Any = {"questions": [QUESTION], "risk": 0.6, "against": "full steps=2", "pilot": 8, "batch_size": 32}
    tune("tiny", prompts=rows, out=out, **how)
    found = read_certificate(out)
    assert found.fills
    assert found.decisions is not None
    assert set(found.decisions["kinds"]) == {"choice"}
    assert found.decisions["labels"] == {"q1": ["A", "B", "C", "D"]}
    assert 0.05 <= found.decisions["kinds"]["choice"]["temperature"] <= 20
    engine, asked = load("tiny"), parse_questions([QUESTION])
    answer: Any = engine.decide(problems[0].prompt, asked, recipe=out).answer
    assert answer.conformal is not None
    assert sum(answer.calibrated.values()) == pytest.approx(1)
    check_calibrated_options(engine, problems[0].prompt, asked, found)
    shown = run(problems[0].prompt, "--questions", write_questions(tmp_path), "--recipe", str(out))
    best = max(answer.calibrated.values())
    assert f"{best:.2%}" in shown.stdout
    assert "calibrated" in shown.stdout
    other = parse_questions([{**QUESTION, "instructions": "How many?"}])
    decision = engine.decide(problems[0].prompt, other, recipe=out)
    assert "another template or other questions" in " ".join(decision.notes)
    with pytest.raises(RequestError, match="another template or other questions"):
        engine.decide(problems[0].prompt, other, recipe=out, on_mismatch="fail")
    with pytest.raises(RequestError, match="needs at least 50"):
        tune("tiny", prompts=rows[:40], out=tmp_path / "few.json", **how)
    with pytest.raises(RequestError, match="must be an object with"):
        tune("tiny", prompts=rows, out=tmp_path / "many.json", **how | {"questions": [QUESTION, QUESTION]})
