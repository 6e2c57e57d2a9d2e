"""Tuning looks at pilot examples only, tests one rung after the other on the others, and keeps what it promises."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretell
from foretell.certify.certification import Looks
from foretell.certify.decode_store import DecodeStore
from foretell.certify.ladders import TRANSFERS, Ladder, ModelScale
from foretell.certify.pilot import PilotResult, Tried
from foretell.certify.risk import binomial_p_values, examples_needed, spend
from foretell.certify.search import RiskGoal, certify_ladder
from foretell.certify.tune import Tuned, Tuning, split_examples, total_needed, tune
from foretell.certify.tune_report import split_evenly
from foretell.certify.tune_tables import groups_above, make_tables
from foretell.engine.certificate import read_certificate
from foretell.errors import ForetellError, MissingExtraError, RequestError
from foretell.evaluation import run as module
from foretell.evaluation.records import Record
from foretell.evaluation.run import Evaluation, PreparedEvaluation, evaluate
from foretell.policies.transfer.threshold import Threshold
from foretell.recipes.presets import parse
from foretell.recipes.recipe import Recipe
from tests.certify.planted import ANSWERED, OPEN, STEPS, PlantedStore, draw, prepare_bench, prompts

ASKED: dict[str, Any] = {"task": "choice", "limit": 36, "pilot": 8, "seed": 3, "risk": 0.6, "confidence": 0.9}


@pytest.fixture(scope="module", autouse=True)
def _short_search() -> Iterator[None]:
    """Two transfers and few levels: what the pilot finds is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foretell.certify.pilot.TRANSFERS", {name: TRANSFERS[name] for name in ("threshold", "med")})
        patch.setattr("foretell.certify.pilot.WIDEST", 2)
        yield


class Decodings:
    """Notes what is decoded, in which order: the stage's title and the ids."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def stage(self, title: str, _: int) -> Callable[[Record], None]:
        return lambda record: self.made.append((title, record.id))


@pytest.fixture(scope="module")
def decodings() -> Decodings:
    return Decodings()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuned")


@pytest.fixture(scope="module")
def made(checkpoint: Path, home: Path, decodings: Decodings) -> Tuned:
    return tune(str(checkpoint), out=home / "tuned.json", stage=decodings.stage, **ASKED)


def parts(checkpoint: Path, folder: Path) -> tuple[set[str], set[str]]:
    """Return the ids of the pilot part and of the calibration part of `made`."""
    what = Evaluation(str(checkpoint), "choice", ("full",), folder, limit=36, seed=3, independent=True)
    both = split_examples(PreparedEvaluation.prepare(what).examples, 8, None, 3)
    return {one.id for one in both[0]}, {one.id for one in both[1]}


def test_examples_are_split_at_random(checkpoint: Path, tmp_path: Path) -> None:
    examples = prepare_bench(checkpoint, tmp_path, 40).examples

    def ids(*wish: Any) -> list[list[str]]:
        return [[one.id for one in part] for part in split_examples(examples, *wish)]

    first, second = ids(None, None, 0)
    assert (len(first), len(second)) == (10, 30), "a quarter, and all others"
    assert {*first, *second} == {one.id for one in examples}
    assert ids(None, None, 0) == [first, second]
    assert ids(None, None, 1) != [first, second]
    assert {*ids(None, None, 1)[0]} != {*first}
    assert [len(part) for part in ids(12, 20, 0)] == [12, 20]
    assert not {*ids(12, 20, 0)[0]} & {*ids(12, 20, 0)[1]}
    assert [len(part) for part in split_examples([examples[0]] * 4000, None, None, 0)] == [400, 3600]
    assert [len(part) for part in split_examples(examples[:20], None, None, 0)] == [8, 12]
    for wish, says in (
        ((7, None), "pilot must be .* got 7"),
        ((33, None), "pilot must be .* got 33"),
        ((8, 7), "calibration must be .* got 7"),
        ((8, 33), "calibration must be .* got 33"),
    ):
        with pytest.raises(RequestError, match=says):
            split_examples(examples, wish[0], wish[1], 0)
    with pytest.raises(RequestError, match="tuning needs at least 16 examples, got 15"):
        split_examples(examples[:15], None, None, 0)


def test_the_pilot_never_sees_calibration_examples(
    made: Tuned, decodings: Decodings, checkpoint: Path, tmp_path: Path
) -> None:
    pilot, calibration = parts(checkpoint, tmp_path)
    seen = {kind: {name for title, name in decodings.made if title.startswith(kind)} for kind in ("pilot", "calib")}
    assert seen["pilot"] == pilot
    assert seen["calib"] == calibration
    kinds = [title.split(":")[0] for title, _ in decodings.made]
    assert kinds == sorted(kinds, reverse=True), "nothing of the calibration set before the ladder is chosen"
    assert {*kinds} == {"pilot", "calibration"}


def test_faster_rungs_wait_for_the_one_before(made: Tuned, decodings: Decodings) -> None:
    titles = [*dict.fromkeys(title for title, _ in decodings.made if title.startswith("calibration"))]
    count = len(made.search.trials)
    rungs = [f"calibration: rung {place + 1} of {len(made.search.ladder.rungs)}" for place in range(count)]
    assert titles[: 1 + count] == ["calibration: full decoding", *rungs]
    assert all(one.certified for one in made.search.trials[:-1])


def test_the_certificate_is_that_of_the_fastest_rung(made: Tuned, home: Path) -> None:
    found, chosen = made.certificate, made.search.fastest
    assert found.certified
    assert chosen is not None
    assert chosen.certified
    assert (found.recipe, found.speedup) == (found.rungs[found.rung or 0], round(chosen.speedup, 4))
    assert (found.task, found.pilot, found.examples, found.look, found.delta) == ("choice", 8, 28, 1, 0.08)
    assert (found.against, found.loss, found.cost) == ("full block_length=16", "answer", "forwards")
    assert all("block_length=16" in rung for rung in found.rungs if "block_length=none" not in rung)
    assert found.recipe == str(parse(found.recipe)), "complete, without the task"
    assert chosen.p_value == pytest.approx(binomial_p_values(np.array(round(28 * chosen.empirical_risk)), 28, 0.6))
    assert read_certificate(home / "tuned.json") == replace(found, report=json.loads(json.dumps(found.report)))


def test_it_does_live_what_it_says(made: Tuned, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    """Decoded again with the file as a recipe: the same forwards, the same answers lost."""
    file = str(home / "tuned.json")
    what = Evaluation(
        str(checkpoint), "choice", ("full", file), tmp_path / "e", limit=36, seed=3, independent=True, batch_size=5
    )
    assert PreparedEvaluation.prepare(what).notes() == []
    wanted = parts(checkpoint, tmp_path)[1]
    by_recipe: dict[str, dict[str, Record]] = {"full": {}, "tuned.json": {}}
    for record in evaluate(what):
        if record.id in wanted:
            by_recipe[record.recipe][record.id] = record
    full, fast = by_recipe.values()
    assert len(full) == len(fast) == 28
    forwards = [sum(one.forwards for one in side.values()) for side in (full, fast)]
    assert forwards[0] / forwards[1] == pytest.approx(made.certificate.speedup, abs=1e-3)
    lost = sum(fast[name].answer != full[name].answer for name in full) / 28
    assert lost == pytest.approx(made.certificate.empirical_risk, abs=1e-6)


def test_repeating_decodes_nothing(made: Tuned, checkpoint: Path, home: Path) -> None:
    before, again = (home / "tuned.json").read_bytes(), Decodings()
    tune(str(checkpoint), out=home / "tuned.json", stage=again.stage, **ASKED)
    assert again.made == []
    assert (home / "tuned.json").read_bytes() == before


def test_an_interrupted_tuning_goes_on(
    made: Tuned, decodings: Decodings, checkpoint: Path, home: Path, tmp_path: Path
) -> None:
    work, some = tmp_path / "work", Decodings()
    total = len(decodings.made)

    def stage(title: str, count: int) -> Callable[[Record], None]:
        note = some.stage(title, count)

        def watch(record: Record) -> None:
            note(record)
            if len(some.made) == stops[0]:
                stops.pop(0)
                raise KeyboardInterrupt

        return watch

    stops = [total // 2, 10**9]
    with pytest.raises(KeyboardInterrupt):
        tune(str(checkpoint), work=work, stage=stage, **ASKED)
    done = tune(str(checkpoint), work=work, stage=stage, **ASKED)
    assert done.certificate == made.certificate
    lines = Counter(
        (path.parent, json.loads(line)["id"])
        for path in work.rglob("results-*.jsonl")
        for line in path.read_text().splitlines()
    )
    assert max(lines.values()) == 1, "nothing is written twice"
    assert sum(lines.values()) == total


def test_two_workers_decode_what_one_does(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They start only for enough examples."""
    started: list[int] = []
    processes = module._run_in_processes

    def start(*given: Any) -> Any:
        started.append(1)
        return processes(*given)

    monkeypatch.setattr(module, "_run_in_processes", start)
    bench = prepare_bench(checkpoint, tmp_path / "two", 8, batch_size=1, workers=2)
    store, fast = DecodeStore(bench), "full transfer=threshold(0.5)"
    few = store.records("full", bench.examples[:7])
    assert (len(few), started) == (7, [])
    both = store.records(fast, bench.examples)
    assert started == [1]
    alone = DecodeStore(prepare_bench(checkpoint, tmp_path / "one", 8, batch_size=1)).records(fast, bench.examples)
    timeless = [[replace(one, seconds=0, wall=0) for one in side] for side in (both, alone)]
    assert timeless[0] == timeless[1]


# From here on nothing is decoded: risks and costs are planted.

COUNT = 120
GOAL = RiskGoal(risk=0.1, confidence=0.9, against="full")
BARS = (0.999, 0.99, 0.9, 0.6)
LADDER = Ladder("mine", tuple(f"full transfer=threshold(value={bar})" for bar in BARS))


def bar_of(recipe: Recipe) -> float:
    assert isinstance(recipe.transfer, Threshold)
    return recipe.transfer.value


def planted(*risks: float) -> dict[str, Any]:
    """Return risks of the rungs of LADDER, which cost 16, 8, 4 and 2 of 64 steps."""
    return {
        "risk": lambda recipe: risks[BARS.index(bar_of(recipe))],
        "cost": lambda recipe: 16 >> BARS.index(bar_of(recipe)),
    }


@pytest.fixture(scope="module")
def bench(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedEvaluation:
    return prepare_bench(checkpoint, tmp_path_factory.mktemp("planted"), COUNT)


def tuning(bench: PreparedEvaluation, *risks: float, goal: RiskGoal = GOAL, **more: Any) -> Tuning:
    store = PlantedStore(bench, **planted(*risks), **more)
    return Tuning(store, goal, *split_examples(bench.examples, 20, None, 0))


def run_planted(plan: Tuning, folder: Path, ladder: Ladder = LADDER) -> Tuned:
    """Certify LADDER, as if a pilot had chosen it."""
    what = replace(plan.bench.evaluation, out=folder)
    plan = replace(plan, store=replace(plan.store, bench=replace(plan.bench, evaluation=what)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tuning, "search", lambda self: chosen(self, ladder))
        return plan.run()


def chosen(plan: Tuning, ladder: Ladder) -> PilotResult:
    bars = dict.fromkeys(("confidence", "gap", "entropy"), (0.5,) * 27)
    count, size = len(ladder.rungs), len(plan.pilot)
    tried = Tried(
        ladder,
        lambda level, odds=1.0: ladder.rungs[0],
        np.zeros((count, size)),
        np.ones((count, size)),
        np.full(size, 4.0),
        4.0,
    )
    return PilotResult(ModelScale(bars, bars, 9, 3), ladder, ladder, (tried,), ((size, ("mine",)),))


def asked_of(made: Tuning) -> list[tuple[str, str, int]]:
    store = made.store
    assert isinstance(store, PlantedStore)
    return [(title, recipe, len(ids)) for title, recipe, ids in store.asked]


def test_rungs_are_decoded_one_after_the_other_and_given_up_early(bench: PreparedEvaluation, tmp_path: Path) -> None:
    """The third rung cannot pass any more after a quarter of the examples; the fourth is never decoded."""
    plan = tuning(bench, 0.0, 0.02, 0.9, 0.0)
    done = run_planted(plan, tmp_path)
    titles = [f"calibration: rung {place} of 4" for place in (1, 2, 3)]
    rungs = [(titles[place], LADDER.rungs[place], size) for place in (0, 1) for size in (25, 50, 100)]
    wanted = [("calibration: full decoding", "full", 100), *rungs, (titles[2], LADDER.rungs[2], 25)]
    assert asked_of(plan)[: len(wanted)] == wanted
    assert not any(recipe == LADDER.rungs[3] for _, recipe, _ in asked_of(plan))
    trials = done.search.trials
    assert [(one.examples, one.certified) for one in trials] == [(100, True), (100, True), (25, False)]
    assert trials[2].p_value > 0.08
    assert [one["examples"] for one in done.certificate.report["frontier"]] == [100, 100, 25]  # type: ignore[index]
    assert (done.certificate.rung, done.certificate.speedup) == (1, 8.0)


def test_a_later_look_gives_up_as_the_first(bench: PreparedEvaluation, tmp_path: Path) -> None:
    """A rung that passes at 0.08 and not at 0.016 is decoded completely, and fails."""
    fifth = sorted(draw(0, one.id) for one in tuning(bench, 0, 0, 0, 0).calibration)[4]
    plan = tuning(bench, 0.0, fifth + 1e-9, 0.9, 0.9)
    first = run_planted(plan, tmp_path)
    p_value = first.search.trials[1].p_value
    assert 0.016 < p_value < 0.08
    assert first.certificate.rung == 1
    second = run_planted(replace(plan, goal=replace(GOAL, cost="steps")), tmp_path)
    assert (second.certificate.look, second.certificate.delta, second.certificate.rung) == (2, 0.016, 0)
    assert second.search.trials[1].examples == 100
    assert second.certificate.says.endswith("; look 2 at this calibration set")


def test_looks_are_counted(bench: PreparedEvaluation, tmp_path: Path) -> None:
    plan = tuning(bench, 0.0, 0.0, 0.0, 0.0)

    def look(plan: Tuning, ladder: Ladder = LADDER) -> tuple[int, float]:
        found = run_planted(plan, tmp_path, ladder).certificate
        return found.look, found.delta

    assert [look(plan), look(plan)] == [(1, 0.08)] * 2
    assert look(replace(plan, goal=replace(GOAL, risk=0.2))) == (2, 0.016)
    assert look(plan) == (1, 0.08)
    assert look(replace(plan, calibration=plan.calibration[:-1])) == (3, 0.0032)
    assert look(plan, Ladder("mine", LADDER.rungs[:2]))[0] == 4
    assert len(json.loads(Looks(tmp_path).file.read_text())) == 4


def test_a_bad_rung_is_certified_in_at_most_delta_of_the_draws(bench: PreparedEvaluation) -> None:
    """400 calibration sets; the second rung's risk is just above the allowed one, the third far above."""
    draws, delta, bad = 400, 0.08, 0.101
    plan = tuning(bench, 0.02, bad, 0.3, 0.3)
    full = plan.store.records("full", plan.calibration)
    wrong = good = 0
    for salt in range(draws):
        assert isinstance(plan.store, PlantedStore)
        one = replace(plan, store=replace(plan.store, salt=salt))
        found = certify_ladder(LADDER, one.decode_rungs(LADDER, full, []), GOAL, delta)
        passed = sum(trial.certified for trial in found.trials)
        good += passed >= 1
        wrong += passed >= 2
    spread = (delta * (1 - delta) * draws) ** 0.5
    assert wrong <= delta * draws + 3 * spread
    assert wrong >= 3, "it comes close to delta: the test could fail"
    assert good > 0.9 * draws


@pytest.mark.parametrize("cost", ["steps", "forwards", "columns", "seconds"])
def test_every_cost(bench: PreparedEvaluation, tmp_path: Path, cost: str) -> None:
    found = run_planted(tuning(bench, 0.0, 0.9, 0.9, 0.9, goal=replace(GOAL, cost=cost)), tmp_path).certificate
    assert (found.cost, found.speedup, found.rung) == (cost, STEPS / 16, 0)


def share_of_tokens(full: Any, fast: Any, example: Any) -> float:
    assert example["prompt"]
    return 0.5 if full.tokens != fast.tokens else 0.0


@pytest.mark.parametrize(
    ("loss", "each"), [("answer", 1.0), ("text", 1.0), ("tokens", 1 / 3), ("mine.py:half", 0.5), (share_of_tokens, 0.5)]
)
def test_every_loss(
    bench: PreparedEvaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: Any, each: float
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def half(full, fast, example):\n    return (full.text != fast.text) / 2\n")
    goal = RiskGoal(risk=0.2, confidence=0.9, loss=loss, against="full")
    plan = tuning(bench, 0.1, 1.0, 1.0, 1.0, goal=goal)
    found = run_planted(plan, tmp_path / "w")
    changed = sum(draw(0, one.id) < 0.1 for one in plan.calibration)
    assert 0 < changed < 20
    assert found.certificate.empirical_risk == pytest.approx(each * changed / 100, abs=1e-6)
    assert found.certificate.certified
    assert found.certificate.loss == (loss if isinstance(loss, str) else "share_of_tokens")
    row = found.certificate.report["frontier"][0]  # type: ignore[index]
    assert row["interval"][0] <= row["risk"] <= row["interval"][1]


def test_success_needs_labels(checkpoint: Path, tmp_path: Path) -> None:
    given = [{"prompt": prompt, "answer": "right"} for prompt in prompts(40)]
    goal = RiskGoal(risk=0.3, confidence=0.9, loss="success", against="full")

    def prepared(lines: Sequence[Any], folder: str) -> Tuning:
        bench = prepare_bench(checkpoint, tmp_path / folder, lines)
        return Tuning.prepare(bench.evaluation, goal, pilot=8)

    plan = prepared(given, "labelled")
    assert (len(plan.pilot), len(plan.calibration)) == (8, 32)
    store = PlantedStore(plan.bench, **planted(0.1, 0.9, 0.9, 0.9))
    found = run_planted(replace(plan, store=store), tmp_path / "w").certificate
    assert found.certified
    assert "loses a right answer of full decoding" in found.says
    with pytest.raises(RequestError, match='the loss "success" needs right answers, and 20 prompts '):
        prepared([*given[:20], *prompts(40)[20:]], "bare")


def test_too_few_examples(checkpoint: Path, tmp_path: Path) -> None:
    """It says so first, what they can show, and writes a file that decodes in full."""
    bench = prepare_bench(checkpoint, tmp_path / "w", 30)
    plan = Tuning.prepare(bench.evaluation, RiskGoal(risk=0.01, against="full"))
    assert (len(plan.pilot), len(plan.calibration)) == (8, 22)
    (note,) = plan.notes
    assert "22 examples cannot show a risk of at most 1% with confidence 0.95: at least 321 are needed" in note
    best = plan.goal.best_risk(22, spend(0.05, 1))
    assert examples_needed(best, 1 - spend(0.05, 1)) == 22
    assert ", so provide 428 in all (a part of them is the pilot); the 22 of the calibration set can show " in note
    offered = float(note.rpartition(" (--risk ")[2].rstrip(")"))
    assert best <= offered < best + 1e-4
    assert Tuning.prepare(bench.evaluation, RiskGoal(risk=offered, against="full")).notes == [], "what it offers works"
    enough = Tuning.prepare(bench.evaluation, RiskGoal(risk=0.3, against="full"))
    assert enough.notes == []
    made = run_planted(replace(plan, store=PlantedStore(plan.bench, **planted(0, 0, 0, 0))), tmp_path / "w")
    found = made.certificate
    assert (found.certified, found.rung, found.recipe, found.speedup) == (False, None, "full block_length=6", 1.0)
    assert "at least 321 are needed" in found.says
    assert f"22 examples can show a risk of {best:.2%} at best" in found.says
    assert (found.report["transfer_alone"], found.report["groups"]) == (None, [])  # type: ignore[index]
    assert not Looks(tmp_path / "w").file.exists(), "a look that cannot certify anything costs nothing"
    again = Tuning.prepare(bench.evaluation, RiskGoal(risk=offered, against="full"))
    safe = PlantedStore(again.bench, **planted(0, 0, 0, 0))
    certified = run_planted(replace(again, store=safe), tmp_path / "w").certificate
    assert (certified.certified, certified.look) == (True, 1), "so what it offers works in the same folder"
    made.save(tmp_path / "none.json")
    engine = foretell.load(checkpoint)
    fast, full = engine.generate(prompts(1)[0], recipe=tmp_path / "none.json"), engine.generate(prompts(1)[0], **OPEN)
    assert (fast.tokens, fast.steps) == (full.tokens, full.steps)
    assert fast.notes[0].startswith("nothing is certified: 22 examples cannot show")


def test_notes_name_a_later_look_and_what_it_can_show(bench: PreparedEvaluation, tmp_path: Path) -> None:
    plan = tuning(bench, 0.0, 0.0, 0.0, 0.0)
    run_planted(plan, tmp_path)
    placed = replace(plan.bench, evaluation=replace(plan.bench.evaluation, out=tmp_path))
    plan = replace(plan, store=replace(plan.store, bench=placed))
    assert plan.notes == [], "the same command again is the same look"
    (note,) = replace(plan, goal=replace(GOAL, risk=0.2)).notes
    assert note.startswith("this is look 2 at this calibration set, so it is tested at delta = 0.016; on examples")
    _, note = replace(plan, goal=replace(GOAL, risk=0.03)).notes
    best = GOAL.best_risk(len(plan.calibration), 0.016)
    assert f"can show a risk of {100 * math.ceil(1e4 * best) / 1e4:.4g}% at best" in note


def test_notes_name_prompts_that_repeat(checkpoint: Path, tmp_path: Path) -> None:
    bench = prepare_bench(checkpoint, tmp_path, prompts(4) * 15)
    plan = Tuning.prepare(bench.evaluation, GOAL, pilot=12)
    assert plan.notes[0].startswith("only 4 of 48 examples are distinct, but all count as independent draws")


def test_a_ladder_that_fails_says_why(bench: PreparedEvaluation, tmp_path: Path) -> None:
    found = run_planted(tuning(bench, 0.5, 0.9, 0.9, 0.9), tmp_path).certificate
    assert not found.certified
    assert "the safest rung has a mean loss of " in found.says
    assert " on 25 examples, which does not show a risk of at most 10%; 100 examples can show a risk of " in found.says
    sizes: Any = {one["examples"]: one["expected_speedup"] for one in found.report["sizes"]}  # type: ignore[index]
    assert {50, 100, 300, 10_000} <= {*sizes}, "fewer and more"
    assert sizes[50] < 3.5 < sizes[10_000] <= 4, "predicted from the pilot, where no rung loses anything"


def test_groups_are_listed_and_those_above_are_named(checkpoint: Path, tmp_path: Path) -> None:
    """All examples with the label "hard" lose; the average of all hides it."""
    lines = [{"prompt": text, "label": "hard" if n % 12 == 0 else "easy"} for n, text in enumerate(prompts(COUNT))]
    bench = prepare_bench(checkpoint, tmp_path, lines)
    hard = [one.id for one in bench.examples if one.data["label"] == "hard"]
    plan = tuning(bench, 0.0, 1.0, 1.0, 1.0, always=hard, goal=replace(GOAL, risk=0.2))
    found = run_planted(plan, tmp_path / "w").certificate
    assert found.certified
    rows = found.report["groups"]  # type: ignore[index]
    count = sum(one.id in hard for one in plan.calibration)
    labels = {one["group"]: one for one in rows if one["by"] == "label"}
    assert (labels["hard"]["examples"], labels["hard"]["risk"], labels["hard"]["proven_above"]) == (count, 1.0, True)
    assert (labels["easy"]["examples"], labels["easy"]["risk"], labels["easy"]["above"]) == (100 - count, 0.0, False)
    assert rows[0]["by"] == rows[1]["by"] == "label", "labels first"
    assert {one["by"] for one in rows} == {"label", "prompt length", "answer length", "exit step"}
    for by in ("label", "prompt length", "answer length", "exit step"):
        assert sum(one["examples"] for one in rows if one["by"] == by) == 100
    assert {one["group"] for one in rows if one["by"] == "exit step"} == {"16"}, "of the fast recipe"
    assert groups_above(found)[0].startswith(f"label hard: 100.00% of {count} examples")
    assert not any("easy" in line for line in groups_above(found))
    (table,) = (one for one in make_tables(found) if one.headings[0] == "group")
    assert len(table.rows) == len(rows)
    assert table.rows[[row[0] for row in table.rows].index("label hard")][-1] == "proven"


@pytest.mark.parametrize(("calibration", "total"), [(8, 16), (22, 30), (321, 428), (1200, 1600), (3000, 3400)])
def test_how_many_examples_leave_enough_for_the_certificate(calibration: int, total: int) -> None:
    assert total_needed(calibration) == total
    examples = prompts(total)
    assert len(split_examples(examples, None, None, 0)[1]) >= calibration  # type: ignore[arg-type]
    if total > 16:
        assert len(split_examples(examples[:-1], None, None, 0)[1]) < calibration  # type: ignore[arg-type]


def test_the_table_always_has_the_transfer_alone_and_the_plain_threshold(
    bench: PreparedEvaluation, tmp_path: Path
) -> None:
    found = run_planted(tuning(bench, 0.0, 0.0, 0.0, 0.0), tmp_path).certificate
    row = found.report["tried"][0]  # type: ignore[index]
    stopped = [row | {"ladder": f"factor + sure, offset {n}", "stops": True} for n in range(12)]
    factor, threshold = (row | {"ladder": name, "stops": False} for name in ("factor", "threshold"))
    made = replace(found, report=found.report | {"tried": [*stopped, factor, threshold]})  # type: ignore[operator]
    (table,) = (one for one in make_tables(made) if one.headings[0] == "ladder")
    assert [one[0] for one in table.rows][-3:] == ["factor + sure, offset 7", "factor", "threshold"]
    made = replace(found, report=found.report | {"tried": [threshold, factor, *stopped]})  # type: ignore[operator]
    (table,) = (one for one in make_tables(made) if one.headings[0] == "ladder")
    assert [one[0] for one in table.rows][:2] == ["threshold", "factor"]
    assert len(table.rows) == 8, "none twice"


def test_values_are_split_into_thirds() -> None:
    groups = split_evenly(np.arange(9.0))
    assert [name for name, _ in groups] == ["0 to 2", "3 to 5", "6 to 8"]
    assert [mask.sum() for _, mask in groups] == [3, 3, 3]
    assert [name for name, _ in split_evenly(np.array([4.0] * 7))] == ["4"]
    odd = np.array([1.0, 1, 1, 1, 1, 2, 7])
    assert [name for name, _ in split_evenly(odd)] == ["1", "2 to 7"]
    assert np.sum([mask for _, mask in split_evenly(odd)], axis=0).tolist() == [1] * 7


def test_the_report_says_what_the_stopping_rule_adds(checkpoint: Path, tmp_path: Path) -> None:
    """The certified recipe is measured without its rule, too, and planned with other numbers of examples."""
    bench = prepare_bench(checkpoint, tmp_path, 60, ANSWERED)
    rungs = [f"{rung} stop=sure(entropy=0.5)" for rung in LADDER.rungs]
    plan = tuning(bench, 0.0, 0.5, 0.5, 0.5)
    found = run_planted(plan, tmp_path / "w", Ladder("stopped", tuple(rungs))).certificate
    alone = found.report["transfer_alone"]  # type: ignore[index]
    assert alone["stops"]
    assert alone["recipe"] == "full block_length=6 transfer=threshold(value=0.999)"
    assert alone["speedup"] == 4.0
    assert ("calibration: the transfer alone", LADDER.rungs[0], 40) in asked_of(plan)
    sizes = found.report["sizes"]  # type: ignore[index]
    numbers = [one["examples"] for one in sizes]
    assert numbers == sorted({*numbers})
    assert {40, 300, 10_000} <= {*numbers}
    assert len(numbers) == 10, "seven, the present one, half of it, and the next useful one"
    assert all(1.0 <= one["expected_speedup"] <= 4.0 for one in sizes)


# Whole tunings of the random model, from every kind of input.


def test_prompts_from_a_list_and_from_a_file(checkpoint: Path, tmp_path: Path) -> None:
    wish: dict[str, Any] = {"pilot": 8, "risk": 0.9, "confidence": 0.9, "options": OPEN, "loss": "text"}
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(prompts(20)))
    listed = tune(str(checkpoint), prompts=prompts(20), work=tmp_path / "w", **wish).certificate
    filed = tune(str(checkpoint), prompts=file, out=tmp_path / "tuned.json", **wish).certificate
    assert replace(filed, examples_sha256="", report=None) == replace(listed, examples_sha256="", report=None)
    assert (filed.task, filed.window, filed.answer, filed.loss) == (None, 12, None, "text")
    assert filed.certified
    assert "stop=" not in filed.recipe.replace("stop_at_eos", ""), "no answer region, no rule"
    assert filed.options == {"max_new_tokens": 12}
    engine = foretell.load(checkpoint)
    fast, full = engine.generate(prompts(20), recipe=tmp_path / "tuned.json"), engine.generate(prompts(20), **OPEN)
    assert all(one.notes == () for one in fast)
    assert sum(one.forwards for one in fast) < sum(one.forwards for one in full)


def test_texts_with_masks(checkpoint: Path, tmp_path: Path) -> None:
    texts = [
        f"{name} has [MASK*{2 + n % 3}] boxes with {n + 2} apples." for n in range(8) for name in ("Tom", "Ann", "He")
    ]
    out = tmp_path / "tuned.json"
    made = tune(str(checkpoint), texts=texts, loss="tokens", risk=0.9, confidence=0.9, pilot=8, out=out)
    found = made.certificate
    assert found.certified
    assert (found.fills, found.window, found.answer, found.task) == (True, None, None, None)
    assert "it changes at most 90% of the tokens of full decoding, on average" in found.says
    assert all(" stop=" not in rung for rung in found.rungs)
    lengths = [one["group"] for one in found.report["groups"] if one["by"] == "text length"]  # type: ignore[index]
    assert lengths[0].split()[0] == "10", "nothing is longer than its text: the padding of the window does not count"
    assert max(int(one.split()[-1]) for one in lengths) == 12
    engine = foretell.load(checkpoint)
    full, fast = engine.fill(texts), engine.fill(texts, recipe=out)
    assert all(one.notes == () for one in fast)
    assert sum(one.forwards for one in fast) < sum(one.forwards for one in full)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({}, "give a task, prompts, or texts with masks: one of them"),
        ({"task": "choice", "prompts": prompts(20)}, "one of them"),
        ({"texts": ["[MASK]"], "prompts": prompts(20)}, "one of them"),
        ({"task": "choice", "loss": "anwser"}, "did you mean 'answer'"),
        ({"task": "choice", "cost": "money"}, "unknown cost 'money'"),
        ({"task": "choice", "risk": 0.0}, "risk must be a number above 0"),
        ({"task": "choice", "limit": 20, "against": "prophet"}, "a recipe that never stops early, got 'prophet'"),
        (
            {"task": "choice", "limit": 20, "against": "full sample=gumbel(temperature=0.5)"},
            "only greedy decoding can be tuned, got 'full sample=gumbel(temperature=0.5)'",
        ),
        ({"task": "choice", "limit": 10}, "tuning needs at least 16 examples, got 10"),
        ({"task": "choice", "limit": 20, "pilot": 13}, "pilot must be"),
        ({"task": "choice", "out": "tuned.txt"}, "is written to a .json file, got tuned.txt"),
        ({"task": "choice", "out": "no/where/tuned.json"}, "there is no folder no/where"),
        ({"task": "choice", "work": None}, "say where to write the result"),
        ({"task": "choice", "questions": "none.json"}, "questions are asked about prompts"),
        ({"prompts": prompts(20), "template": "ask"}, "a template ('ask') is for typed decisions"),
        ({"prompts": prompts(20), "options": OPEN, "coverage": 0.9}, "a coverage (0.9) is for typed decisions"),
        ({"prompts": ["Tom has 4 balls."] * 19 + ["Tom has 4 zeppelin"], "options": OPEN}, "has no 'zeppelin'"),
    ],
)
def test_nonsense_is_refused(checkpoint: Path, tmp_path: Path, wish: dict[str, Any], says: str) -> None:
    with pytest.raises(ForetellError) as raised:
        tune(str(checkpoint), **{"work": tmp_path / "w"} | wish)
    assert says in str(raised.value)
    assert not [*(tmp_path / "w").rglob("results-*.jsonl")]


def test_a_missing_extra_is_found_first(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        assert name == "lab"
        raise MissingExtraError("install foretell[lab]")

    monkeypatch.setattr("foretell.certify.tune.require_extra", refuse)
    with pytest.raises(MissingExtraError):
        tune(str(tmp_path / "no model"), task="choice", work=tmp_path / "w")


def test_against_another_recipe(bench: PreparedEvaluation, tmp_path: Path) -> None:
    """The rungs change that recipe, and the certificate names it."""
    other = "full steps=12 stop=never"
    what = replace(bench.evaluation, recipes=(other,), out=tmp_path)
    plan = Tuning.prepare(what, replace(GOAL, against=other))
    assert plan.against == other
    rungs = tuple(f"{other} transfer=threshold(value={bar}) stop=sure(entropy=0.5)" for bar in BARS)
    store = PlantedStore(plan.bench, **planted(0.0, 0.9, 0.9, 0.9))
    found = run_planted(replace(plan, store=store), tmp_path, Ladder("mine", rungs)).certificate
    assert found.against == "full steps=12 block_length=6"
    assert f"another answer than '{other}' on at most 10%" in found.says
    alone = found.report["transfer_alone"]  # type: ignore[index]
    assert alone["recipe"] == "full steps=12 block_length=6 transfer=threshold(value=0.999)"
