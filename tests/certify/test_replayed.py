"""Evaluations that replay stopping rules on the traces of one decoding give the results of decoding each recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from foretell import POLICIES, Beliefs, StateView, Verdict
from foretell.certify.replayed import DECODED, ReplayedEvaluation
from foretell.errors import RequestError
from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.records import Record, read_records
from foretell.evaluation.report import report
from foretell.evaluation.run import Evaluation, PreparedEvaluation, evaluate

RULE = "prophet(tau=linear(0.9,0.2))"
RECIPES = (
    "full", f"full stop={RULE}", f"full stop={RULE} region=whole", "full steps=4", f"full steps=4 stop={RULE}",
    f"full cache=dual stop={RULE}", f"full stop={RULE} verify=recheck",
    f"threshold stop={RULE[:-1]},clock=tokens)",
)  # fmt: skip
SAME = ("text", "answer", "correct", "steps", "forwards", "exit", "response_tokens", "finish", "tokens", "budget")


def plan(checkpoint: Path, out: Path, recipes: tuple[str, ...] = RECIPES, limit: int = 3) -> ReplayedEvaluation:
    what = Evaluation(str(checkpoint), "choice", recipes, out, limit=limit, seed=3)
    return ReplayedEvaluation.of(PreparedEvaluation.prepare(what), trace_all=True)


def run(made: ReplayedEvaluation) -> tuple[list[Record], list[Record]]:
    """Return all results, and those that were new."""
    new: list[Record] = []
    made.check()
    return made.run(new.append), new


def test_replayed_results_are_the_decoded_ones(checkpoint: Path, tmp_path: Path) -> None:
    made = plan(checkpoint, tmp_path / "a")
    assert dict(made.baselines) == {RECIPES[1]: "full", RECIPES[2]: "full", RECIPES[4]: "full steps=4"}
    assert made.decoded == ("full", "full steps=4", *RECIPES[5:])
    records, new = run(made)
    assert len(new) == made.total == len(records) == 3 * len(RECIPES)
    live = {one.key: one for one in evaluate(replace(made.bench.evaluation, out=tmp_path / "b"))}
    for record in records:
        for name in SAME:
            assert getattr(record, name) == getattr(live[record.key], name), (name, record.key)
        assert record.wall == record.seconds == 0.0, "a replay measures no time"
    exits = [[one.exit for one in records if one.recipe == name] for name in RECIPES[1:3]]
    assert exits[0] != exits[1], "each rule reads its own region"
    assert read_records(tmp_path / "a") == records
    assert [row.n for row in report(tmp_path / "a").rows] == [3] * len(RECIPES)


def test_decodings_are_never_repeated(checkpoint: Path, tmp_path: Path) -> None:
    run(plan(checkpoint, tmp_path, RECIPES[:2]))
    (trace,) = {one.trace for one in read_records(tmp_path) if one.recipe == "full"}
    assert trace is not None
    assert (tmp_path / trace).is_file(), "relative to the results folder"
    again = plan(checkpoint, tmp_path, (*RECIPES[:2], f"full stop={RULE[:-1]},reduce=min)"))
    assert len(again.finished()) == 3
    records, new = run(again)
    assert {one.recipe for one in new} == set(again.baselines), "only replays, of the new and of the old rules"
    assert len(records) == 9
    larger = plan(checkpoint, tmp_path, RECIPES[:2], limit=4)
    records, new = run(larger)
    assert [one.recipe for one in new].count("full") == 1
    assert len(records) == 8
    assert list(read_manifest(tmp_path)["recipes"]) == [*RECIPES[:2]]
    with pytest.raises(RequestError, match="another evaluation, of more examples"):
        plan(checkpoint, tmp_path, RECIPES[:2]).check()


@dataclass(frozen=True, slots=True)
class Late:
    """Settles at a step that a test changes."""

    def reads(self, state: StateView) -> torch.Tensor:
        return state.answer

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        return Verdict(state.step >= STEP)


STEP = 3


def test_a_rule_whose_code_has_changed_is_replayed_again(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES["stop"], "late", Late)
    recipes = ("full", "full stop=late")
    assert {one.steps for one in run(plan(checkpoint, tmp_path, recipes))[0][3:]} == {STEP + 1}
    monkeypatch.setattr(f"{__name__}.STEP", 5)
    assert {one.steps for one in run(plan(checkpoint, tmp_path, recipes))[0][3:]} == {6}


def test_a_baseline_that_is_not_asked_for_is_shared_by_at_least_two(checkpoint: Path, tmp_path: Path) -> None:
    alone = plan(checkpoint, tmp_path / "a", RECIPES[1:2])
    assert not alone.baselines, "decoding it takes less time than decoding its baseline"
    two = plan(checkpoint, tmp_path / "b", RECIPES[1:3])
    assert two.decoded == (f"{RECIPES[1]} stop=never",)
    records, new = run(two)
    assert (len(records), len(new)) == (6, 9)


def test_what_no_trace_can_tell_is_decoded(checkpoint: Path, tmp_path: Path) -> None:
    for setting in ("cache=dual", "verify=recheck"):
        recipes = (f"full {setting}", f"full {setting} stop={RULE}", f"full {setting} stop={RULE} region=whole")
        assert not plan(checkpoint, tmp_path, recipes).baselines, setting


def test_a_folder_of_another_kind_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    evaluate(Evaluation(str(checkpoint), "choice", RECIPES[:2], tmp_path, limit=1, seed=3))
    with pytest.raises(RequestError, match="decoded every recipe"):
        plan(checkpoint, tmp_path, RECIPES[:2], limit=1).check()
    assert not (tmp_path / DECODED).exists()
    other = Evaluation(str(checkpoint), "choice", RECIPES[:2], tmp_path, limit=1, seed=4)
    made = ReplayedEvaluation.of(PreparedEvaluation.prepare(other))
    with pytest.raises(RequestError, match="seed: 3 before, 4 now"):
        made.check()
