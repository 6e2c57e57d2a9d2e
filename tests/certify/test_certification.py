"""A certificate says what was shown and for what, and every certification is a look that is recorded."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretell.certify.certification import Certification, Looks
from foretell.certify.ladders import Ladder
from foretell.certify.search import LadderSearch, RiskGoal, Trial
from foretell.errors import RequestError, StorageError
from foretell.evaluation.run import Evaluation, PreparedEvaluation

LADDER = Ladder("mine", ("full steps=8", "full steps=4", "full steps=2"))


def test_a_look_is_counted_once(tmp_path: Path) -> None:
    looks = Looks(tmp_path / "work")
    one, other = {"goal": (0.1, "answer")}, {"goal": (0.2, "answer")}
    assert (looks.number(one), looks.number(other)) == (1, 1)
    assert not looks.folder.exists(), "asking for a number is no look"
    assert [looks.count(look) for look in (one, other, one)] == [1, 2, 1]
    assert (looks.number(one), looks.number(other), looks.number({"goal": 3})) == (1, 2, 3)
    assert json.loads(looks.file.read_text()) == [{"goal": [0.1, "answer"]}, {"goal": [0.2, "answer"]}]
    assert Looks(tmp_path / "elsewhere").number(other) == 1


def test_looks_at_the_same_time_get_different_numbers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda number: Looks(tmp_path).count({"number": number % 8}), range(16))]
    assert sorted(found[:8]) == [*range(1, 9)]
    assert found[8:] == found[:8]


@pytest.mark.parametrize("content", ["", "[", "{}", "3", "null", '["a"]', "[{}, 1]", "[" * 100_000])
def test_a_damaged_list_is_not_an_empty_one(content: str, tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    looks.file.write_text(content)
    for ask in (looks.number, looks.count):
        with pytest.raises(StorageError, match=r"looks\.json"):
            ask({"goal": 1})
    assert looks.file.read_text() == content


def prepared(checkpoint: Path, folder: Path, task: str = "choice", **more: Any) -> Certification:
    what = Evaluation(str(checkpoint), task, ("full",), folder / "work", limit=3, **more)
    bench = PreparedEvaluation.prepare(what)
    orders = [bench.recipes[0].template(bench.engine, one, 0) for one in bench.examples]
    layouts, against = [one.layout for one in orders], str(orders[0].recipe)
    return Certification(bench, RiskGoal(risk=0.05, confidence=0.9), bench.examples, layouts, against)


def searched(*certified: bool, risk: float = 0.0) -> LadderSearch:
    trials = [Trial(LADDER.rungs[i], risk, 0.01, 2.0 + i, 3, one) for i, one in enumerate(certified)]
    return LadderSearch(LADDER, tuple(trials), 0.04 if any(certified) else 0.0)


def test_another_question_is_another_look(checkpoint: Path, tmp_path: Path) -> None:
    plan = prepared(checkpoint, tmp_path)
    goal = plan.goal
    others = [
        plan,
        replace(plan, examples=plan.examples[:2]),
        replace(plan, against="full steps=3"),
        *(
            replace(plan, goal=replace(goal, **{name: value}))  # type: ignore[arg-type]
            for name, value in (("risk", 0.06), ("confidence", 0.91), ("loss", "text"), ("cost", "seconds"))
        ),
    ]
    assert [one.look("a") for one in others] == [1, 2, 3, 4, 5, 6, 7]
    assert plan.look("b", record=False) == plan.look("a", "b", record=False) == 8
    assert plan.look("b") == 8
    assert plan.look("a", "b") == 9
    assert [one.look("a") for one in others] == [1, 2, 3, 4, 5, 6, 7]
    assert [plan.delta(look) for look in (1, 2)] == pytest.approx([0.08, 0.016])


def test_what_a_certificate_says(checkpoint: Path, tmp_path: Path) -> None:
    plan = replace(prepared(checkpoint, tmp_path), pilot=5)
    found = plan.certificate([searched(True, True, False, risk=1 / 3)], 1, "no")
    assert (found.certified, found.rung, found.recipe, found.speedup) == (True, 1, "full steps=4", 3.0)
    assert (found.rungs, found.ladder, found.against) == ([*LADDER.rungs], "mine", "full block_length=16")
    assert (found.look, found.delta, found.upper_bound, found.cost) == (1, 0.08, 0.04, "forwards")
    assert (found.fills, found.window, found.answer, found.task, found.pilot) == (False, 32, [31, 1], "choice", 5)
    assert found.pins
    assert found.says == (
        "with confidence 0.9, it gives another answer than full decoding on at most 5% of examples like the 3 it was "
        "calibrated on (1 of those)"
    )
    second = plan.certificate([searched(False), searched(True)], 2, "no")
    assert second.says.endswith("; 2 ladders were tested and share delta; look 2 at this calibration set")
    assert (second.delta, second.rung) == (0.016, 0)
    none = plan.certificate([searched(False)], 1, "no such luck", {"table": [1]})
    assert (none.certified, none.rung, none.recipe) == (False, None, none.against)
    assert (none.says, none.speedup, none.empirical_risk, none.upper_bound) == ("no such luck", 1.0, 0.0, 0.0)
    assert none.report == {"table": [1]}
    mixed = replace(plan, layouts=[plan.layouts[0], replace(plan.layouts[1], length=40)])
    assert (mixed.certificate([searched(True)], 1, "").window, mixed.certificate([searched(True)], 1, "").answer) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (
            {"loss": "tokens"},
            "it changes at most 5% of the tokens of full decoding, on average over examples like the 3 it was",
        ),
        (
            {"loss": "tokens", "against": "full steps=9"},
            "it changes at most 5% of the tokens of 'full steps=9', on average over examples like the 3",
        ),
        ({"loss": lambda *_: 0.5}, "its loss <lambda> is at most 5% on average over examples like the 3"),
        ({"loss": "text"}, "it gives another text than full decoding on at most 5% of examples like the 3"),
        ({"loss": "success"}, "it loses a right answer of full decoding on at most 5% of examples like the 3"),
        ({"against": "full steps=9"}, "it gives another answer than 'full steps=9' on at most 5% of examples"),
    ],
)
def test_the_promise_fits_the_loss(wish: dict[str, Any], says: str, checkpoint: Path, tmp_path: Path) -> None:
    plan = prepared(checkpoint, tmp_path)
    plan = replace(plan, goal=replace(plan.goal, **wish))
    found = plan.certificate([searched(True, risk=0.0125)], 1, "")
    assert found.says.startswith(f"with confidence 0.9, {says}")
    assert found.says.endswith("(mean loss 1.25%)" if plan.goal.measure.graded else "(0 of those)")
    assert found.loss == plan.goal.measure.name


def test_a_certificate_of_fills_has_no_window(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "masked.jsonl"
    file.write_text("".join(json.dumps({"text": f"Tom has [MASK*2] boxes with {n} apples."}) + "\n" for n in (2, 3, 4)))
    plan = prepared(checkpoint, tmp_path, "fill", source=file)
    assert len({(one.length, one.answer) for one in plan.layouts}) == 1, "also if all texts have the same length"
    found = plan.certificate([searched(True)], 1, "")
    assert (found.fills, found.window, found.answer, found.pins, found.task) == (True, None, None, None, None)


def test_labels_are_needed_only_by_losses_that_read_them(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Tom has 3 boxes.", "answer": "3", "id": "a"}\n{"prompt": "He eats 5.", "id": "b"}\n')
    layout = {"max_new_tokens": 12, "answer_length": 2}
    plan = prepared(checkpoint, tmp_path, "prompts", source=file, options=layout)
    plan.check_labels()
    success = replace(plan, goal=replace(plan.goal, loss="success"))
    with pytest.raises(RequestError, match=r'the loss "success" needs right answers, and 1 prompts \(first: b\)'):
        success.check_labels()
    replace(success, examples=[one for one in plan.examples if one.id == "a"]).check_labels()
