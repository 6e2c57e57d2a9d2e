"""Studies on traces say what live runs do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from foretell.certify.replay import Study, study
from foretell.evaluation.run import Evaluation, evaluate
from foretell.policies.region.pattern import Pattern
from foretell.policies.region.whole import Whole
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.recipes.text import format_value

RULE = Prophet(Linear(0.9, 0.2))
LIVE = "full stop=prophet(tau=linear(0.9,0.2))"


def of(task: str, checkpoint: Path, out: Path) -> Study:
    return study(Evaluation(str(checkpoint), task, ("full",), out, limit=5, seed=3))


@pytest.mark.parametrize("task", ["sudoku", "choice"])
def test_a_replayed_rule_is_the_live_one(task: str, checkpoint: Path, tmp_path: Path) -> None:
    found = of(task, checkpoint, tmp_path / "full")
    replayed = {record.id: record for record in found.replay("x", RULE)}
    live = evaluate(Evaluation(str(checkpoint), task, (LIVE,), tmp_path / "live", limit=5, seed=3))
    assert len(live) == len(replayed) == 5
    for record in live:
        other = replayed[record.id]
        for name in ("text", "answer", "correct", "steps", "forwards", "exit", "response_tokens", "finish", "tokens"):
            assert getattr(record, name) == getattr(other, name), name
        assert record.value == pytest.approx(other.value, abs=1e-3)
    assert {record.finish for record in replayed.values()} >= {"settled"}


@pytest.mark.parametrize("task", ["word-free", "word_96"])
def test_a_replayed_rule_with_an_answer_found_is_the_live_one(task: str, checkpoint: Path, tmp_path: Path) -> None:
    """Nothing is pinned, or the answer is found elsewhere than the layout has it; in batches, with a cache."""
    found = of(task, checkpoint, tmp_path / "full")
    region = Pattern(r"[a-z]{3,}")
    replayed = {record.id: record for record in found.replay("x", RULE, region)}
    recipes = tuple(f"{LIVE} region={format_value(region)}{more}" for more in ("", " cache=dual(refresh=1)"))
    live = evaluate(Evaluation(str(checkpoint), task, recipes, tmp_path / "live", limit=5, seed=3, batch_size=3))
    assert len(live) == 10
    for record in live:
        other = replayed[record.id]
        for name in ("text", "answer", "correct", "steps", "exit", "response_tokens", "finish"):
            assert getattr(record, name) == getattr(other, name), name
    assert any(record.finish == "settled" for record in live)
    assert [record.exit for record in live] != [record.exit for record in found.replay("x", RULE, Whole())] * 2


def test_a_replay_reads_the_answer_region_as_a_live_run_does(checkpoint: Path, tmp_path: Path) -> None:
    """The public benchmarks look into the region first."""
    found = of("choice", checkpoint, tmp_path)
    reads_region = SimpleNamespace(extract=lambda completion: completion.answer, grade=lambda *_: True)
    for case in found.cases:
        record = replace(case, benchmark=reads_region).replay("x", RULE)
        assert record.exit is not None
        assert record.answer == case.engine.codec.decode([int(case.trace.tokens[record.exit, -1])])


def test_the_first_of_a_larger_study_are_the_smaller_one(checkpoint: Path, tmp_path: Path) -> None:
    what = Evaluation(str(checkpoint), "sudoku", ("full",), tmp_path / "a", limit=5, seed=3)
    some, few = study(what, 2), study(replace(what, limit=2, out=tmp_path / "b"))
    assert [case.record.text for case in some.cases] == [case.record.text for case in few.cases]
    assert len(some.records) == 2


def test_a_written_announcement_marks_the_answer(checkpoint: Path, tmp_path: Path) -> None:
    found = study(Evaluation(str(checkpoint), "word-free", ("full",), tmp_path, limit=1))
    case = found.cases[0]

    def where(text: str) -> list[int]:
        written = case.engine.codec.encode(text)
        final = torch.tensor([*written, *[2] * (case.trace.tokens.shape[1] - len(written))])
        tokens = torch.cat([case.trace.tokens[:-1], final[None]])
        other = replace(case, trace=replace(case.trace, tokens=tokens))
        return final[other.answer_positions].tolist()

    def digits(text: str) -> list[int]:
        return case.engine.codec.encode(text)

    assert where("1 + 2 = 3 . The answer is 3") == digits("3")
    assert where("The answer is 5 . The answer is 12") == digits("12")
    assert where("The answer is 5 .") == digits("5")
    assert where("The answer is 5\n7") == digits("5")
    assert where("1 + 2 = 3 .") == []


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
