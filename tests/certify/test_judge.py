"""A judge learns from traces what a commit would emit, and its rule does live what calibration replayed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foretell.certify.calibrate import Calibration, calibrate
from foretell.certify.decodings import evaluation_for, example_key
from foretell.certify.outcomes import replay_rules
from foretell.certify.replay import Study, study
from foretell.certify.search import RiskGoal
from foretell.certify.train_judge import (
    LOOKS,
    JudgeConfig,
    collect_features,
    collect_labels,
    fit_head,
    fit_judge,
    measure_importance,
    train_judge,
)
from foretell.engine.certificate import read_certificate
from foretell.errors import RequestError
from foretell.evaluation.run import Evaluation, evaluate
from foretell.policies.stop.families import judge_family
from foretell.policies.stop.judge import Judge

EXAMPLES = 24
PLAIN = JudgeConfig(look="answer", hidden=0)


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study(Evaluation("tiny", "sudoku", ("full",), tmp_path_factory.mktemp("study"), limit=EXAMPLES, seed=5))


@pytest.fixture(scope="module")
def judge(studied: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("judge") / "judge.json"
    fit_judge(studied.cases[:12], JudgeConfig()).save(path)
    return path


def test_labels_are_what_a_commit_would_emit(studied: Study) -> None:
    cases = studied.cases[:4]
    found = collect_labels(cases)
    expected = [case.answer_at(step)[0] == case.record.answer for case in cases for step in range(len(case.trace))]
    assert found.tolist() == expected
    assert 0 < found.float().mean() < 1
    ends = torch.tensor([len(case.trace) for case in cases]).cumsum(0) - 1
    assert found[ends].all(), "the last step emits the final answer"


def test_it_learns(studied: Study) -> None:
    made = fit_judge(studied.cases, JudgeConfig(), {"task": "sudoku"})
    assert made.loss < 0.7 * made.before
    assert made.steps == sum(len(case.trace) for case in studied.cases)
    assert made.head.trained["task"] == "sudoku"
    assert made.head.trained["examples"] == [example_key(case.example) for case in studied.cases]
    scores, right = made.head(collect_features(studied.cases, made.head.names)), collect_labels(studied.cases)
    assert scores[right].mean() > scores[~right].mean() + 1


def test_every_choice_changes_the_head(studied: Study) -> None:
    cases = studied.cases[:8]
    made = {config: fit_judge(cases, config) for config in (
        *(PLAIN, replace(PLAIN, look="text"), replace(PLAIN, penalty=1.0)),
        *(JudgeConfig(hidden=4), JudgeConfig(hidden=4, seed=1)),
    )}  # fmt: skip
    assert len({one.loss for one in made.values()}) == len(made)
    plain = made[PLAIN].head
    assert len(plain.layers) == 1
    assert plain.names == LOOKS["answer"]
    assert made[replace(PLAIN, look="text")].loss < made[PLAIN].loss < made[replace(PLAIN, penalty=1.0)].loss
    assert [len(weight) for weight, _ in made[JudgeConfig(hidden=4)].head.layers] == [4, 1]
    assert fit_judge(cases, PLAIN).head.text() == plain.text(), "the same again is the same"


def test_a_known_answer_is_found() -> None:
    """Log-odds 3 x - 1 of one feature, another that says nothing, and one that never varies."""
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(20_000, 3, generator=rng) * torch.tensor([1.0, 5.0, 0.0]) + 2
    right = torch.rand(20_000, generator=rng) < torch.sigmoid(3 * values[:, 0] - 6 - 1)
    head, _ = fit_head(values, right, ("gap_min", "gap_mean", "ends"), JudgeConfig(hidden=0, penalty=0.0), {})
    points = torch.tensor([[2.0, 2.0, 2.0], [3.0, 2.0, 2.0], [2.0, 7.0, 2.0]])
    assert head(points).tolist() == pytest.approx([-1, 2, -1], abs=0.15)


def test_importance_is_of_what_is_used(studied: Study) -> None:
    head = fit_judge(studied.cases, JudgeConfig()).head
    values, right = collect_features(studied.cases, head.names), collect_labels(studied.cases)
    found = measure_importance(head, values, right)
    assert set(found) == set(head.names)
    assert max(found.values()) > 0.05
    deaf = replace(head, layers=tuple((torch.zeros_like(weight), bias) for weight, bias in head.layers))
    assert set(measure_importance(deaf, values, right).values()) == {0.0}
    assert measure_importance(head, values, right, seed=1) != found


def test_nothing_to_learn_is_said(studied: Study) -> None:
    case = studied.cases[0]
    flat = replace(case, trace=replace(case.trace, tokens=case.trace.tokens[-1].expand_as(case.trace.tokens)))
    with pytest.raises(RequestError, match="at every step of these decodings"):
        fit_judge([flat], PLAIN)


def test_its_rule_does_live_what_was_replayed(studied: Study, judge: Path, tmp_path: Path) -> None:
    family = judge_family(judge)
    found = replay_rules(studied.cases, family.rules)
    assert (np.diff(found.steps, axis=0) <= 0).all(), "nested"
    row = family.settings.index(2.0)
    assert found.steps[row].mean() < found.full.mean()
    recipe = f"full stop=judge(path='{judge}', bar=2)"
    what = Evaluation("tiny", "sudoku", (recipe,), tmp_path, limit=EXAMPLES, seed=5)
    live = {record.id: record for record in evaluate(what)}
    for column, case in enumerate(studied.cases):
        assert live[case.example.id].steps == found.steps[row, column]
        assert (live[case.example.id].answer != case.record.answer) == found.changed[row, column]


def test_teach_then_calibrate(checkpoint: Path, tmp_path: Path) -> None:
    """Examples that trained the judge are left out, and the certificate names the head."""
    path = tmp_path / "judge.json"
    asked: dict[str, Any] = {"task": "choice", "seed": 3}
    made = train_judge(str(checkpoint), limit=8, out=path, config=PLAIN, **asked)
    assert len(made.head.trained["examples"]) == 8
    assert made.head.trained["model_sha256"]
    again = train_judge(str(checkpoint), limit=8, work=tmp_path / "judge.work", config=PLAIN, **asked)
    assert again.head.text() == path.read_text()
    goal: dict[str, Any] = {"risk": 0.3, "confidence": 0.9}
    out = tmp_path / "rule.json"
    found = calibrate(str(checkpoint), limit=24, family=judge_family(path), out=out, **asked, **goal).certificate
    assert found.examples == 16
    assert found.ladder == "judge"
    assert found.certified
    bar = judge_family(path).settings[found.rung or 0]
    assert found.rule == Judge(str(path), bar)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in (path, out):
        shutil.copy(file, elsewhere)
    moved = read_certificate(elsewhere / "rule.json").rule
    assert moved == Judge(str(elsewhere / "judge.json"), bar)
    plan = Calibration.prepare(
        evaluation_for(str(checkpoint), "choice", None, "full", None, tmp_path / "work", {}, limit=24, seed=3),
        RiskGoal(family=judge_family(path)),
    )
    assert plan.notes[0] == "8 of 24 examples were used to train the judge and are left out"
    assert "16 examples cannot show" in plan.notes[1]
    with pytest.raises(RequestError, match="trained on all these examples"):
        calibrate(str(checkpoint), limit=8, family=judge_family(path), work=tmp_path / "few", **asked, **goal)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"look": "txt"}, "did you mean 'text'"),
        ({"hidden": -1}, "hidden must be from 0"),
        ({"penalty": -1.0}, "penalty must be from 0 to "),
        ({"penalty": float("inf")}, "penalty must be from 0 to "),
        ({"seed": -1}, "seed must be from 0 to "),
    ],
)
def test_nonsense_is_refused(wish: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        JudgeConfig(**wish)


def test_a_cache_leaves_nothing_to_see_of_the_text(checkpoint: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"task": "choice", "recipe": "dual", "limit": 4, "work": tmp_path}
    with pytest.raises(RequestError, match=r"cannot learn from cache=dual.*look=\"answer\""):
        train_judge(str(checkpoint), **asked)
