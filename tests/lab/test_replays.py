"""Studies on traces say what live runs do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretell.lab.evaluate import Evaluation, evaluate
from foretell.lab.replays import Study, study
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear

RULE = Prophet(Linear(0.9, 0.2))
LIVE = "full stop=prophet(tau=linear(0.9,0.2))"


def of(task: str, checkpoint: Path, out: Path) -> Study:
    return study(Evaluation(str(checkpoint), task, ("full",), out, limit=5, seed=3))


@pytest.mark.parametrize("task", ["sudoku", "choice"])
def test_a_replayed_rule_is_the_live_one(task: str, checkpoint: Path, tmp_path: Path) -> None:
    found = of(task, checkpoint, tmp_path / "full")
    replayed = {record.id: record for record in found.under("x", RULE)}
    live = evaluate(Evaluation(str(checkpoint), task, (LIVE,), tmp_path / "live", limit=5, seed=3))
    assert len(live) == len(replayed) == 5
    for record in live:
        other = replayed[record.id]
        for name in ("text", "answer", "correct", "steps", "exit", "tokens"):
            assert getattr(record, name) == getattr(other, name), name
    assert {record.finish for record in replayed.values()} >= {"settled"}


def test_traces_are_kept(checkpoint: Path, tmp_path: Path) -> None:
    first, again = (of("sudoku", checkpoint, tmp_path) for _ in range(2))
    assert [case.record for case in first.cases] == [case.record for case in again.cases]


def test_convergence_counts_right_answers_only(checkpoint: Path, tmp_path: Path) -> None:
    found = of("sudoku", checkpoint, tmp_path)
    cases = tuple(replace(case, record=replace(case.record, correct=i < 2)) for i, case in enumerate(found.cases))
    some = replace(found, cases=cases)
    assert len(some.right) == 2
    for for_good in (False, True):
        shares = [some.settled_by(share, for_good=for_good) for share in (0.25, 0.5, 1.0)]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
    assert some.settled_by(0.5, for_good=True) <= some.settled_by(0.5, for_good=False)
    for case in some.right:
        assert case.first_match is not None
        assert case.last_change is not None
        assert case.first_match <= case.last_change
