"""`foretell decide` and `foretell tune --questions`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from foretell.certify.tune import tune
from foretell.cli.app import app
from foretell.decide.calibration import calibration_error, fit, fit_temperature
from foretell.decide.wire import parse_questions
from foretell.engine.certificate import read_certificate
from foretell.engine.engine import load
from foretell.errors import RequestError
from foretell.tasks import TASKS, draw

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


def test_temperature_and_quantile() -> None:
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.ones(4), size=2000)
    right = [int(rng.choice(4, p=one)) for one in true]
    sharp = [one**2 / (one**2).sum() for one in true]  # as if read at half the temperature
    assert fit_temperature(sharp, right) == pytest.approx(2, abs=0.15)
    made = fit(sharp[:1000], right[:1000], 0.9)
    covered = np.mean([place in made.select(p) for p, place in zip(sharp[1000:], right[1000:], strict=True)])
    assert covered == pytest.approx(0.9, abs=0.035)
    softened = [made.soften(p) for p in sharp]
    errors = [
        calibration_error(
            [float(p.max()) for p in each], [p.argmax() == place for p, place in zip(each, right, strict=True)]
        )
        for each in (sharp, softened)
    ]
    assert errors[1] < 0.03 < errors[0]
    with pytest.raises(RequestError, match="at least 50 labelled rows"):
        fit(sharp[:49], right[:49], 0.9)
    certain = [np.array([1.0, 0.0])] * 60
    assert fit_temperature(certain, [0] * 60) >= 0.05
    assert fit(certain, [0] * 60, 1.0).quantile == 1.0  # more coverage than 60 rows can show


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
    other = parse_questions([{**QUESTION, "instructions": "How many?"}])
    decision = engine.decide(problems[0].prompt, other, recipe=out)
    assert "another template or other questions" in " ".join(decision.notes)
    with pytest.raises(RequestError, match="another template or other questions"):
        engine.decide(problems[0].prompt, other, recipe=out, on_mismatch="fail")
    with pytest.raises(RequestError, match="needs at least 50"):
        tune("tiny", prompts=rows[:40], out=tmp_path / "few.json", **how)
    with pytest.raises(RequestError, match="must be an object with"):
        tune("tiny", prompts=rows, out=tmp_path / "many.json", **how | {"questions": [QUESTION, QUESTION]})
