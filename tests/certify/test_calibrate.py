"""A calibrated rule does live what its certificate says of the calibration set, and is chosen as it should be."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretell
from foretell.certify.betting import betting_p_values
from foretell.certify.calibrate import Calibrated, Calibration, calibrate
from foretell.certify.decodings import evaluation_for
from foretell.certify.risk import next_useful
from foretell.certify.search import RiskGoal
from foretell.engine.certificate import read_certificate
from foretell.errors import RecipeError, RequestError, StorageError
from foretell.evaluation.records import Record, read_records
from foretell.evaluation.run import Evaluation, PreparedEvaluation, evaluate
from foretell.policies.region.masked import Masked
from foretell.policies.stop.families import FAMILIES, Family, with_token_clock
from foretell.policies.stop.never import Never
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.recipes.text import format_value

EXAMPLES = 24
# 12 examples without an error, or 20 with one, show this at a first look, which spends 0.8 of delta.
GOAL: dict[str, Any] = {"risk": 0.2, "confidence": 0.9, "family": "prophet-min"}
LAYOUT: dict[str, Any] = {"max_new_tokens": 12, "block_length": 6, "suffix": "The answer is", "answer_length": 2}
NAMES = ("Tom", "Ann", "Adam", "He")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rules")


@pytest.fixture(scope="module")
def made(checkpoint: Path, home: Path) -> Calibrated:
    return calibrate(str(checkpoint), task="choice", limit=EXAMPLES, seed=3, out=home / "rule.json", **GOAL)


def unlooked(work: Path, folder: Path) -> Path:
    """Copy decodings without the looks at them."""
    return Path(shutil.copytree(work, folder, ignore=shutil.ignore_patterns("looks.json")))


def test_the_boldest_rule_before_the_first_failure(made: Calibrated) -> None:
    found, trials = made.certificate, made.search.trials
    assert made.search.ladder.settings == FAMILIES["prophet-min"].settings
    assert [trial.rung for trial in trials] == [*made.search.ladder.rungs] == found.rungs
    passed = [trial.p_value <= 0.08 for trial in trials]
    last = passed.index(False) - 1
    assert 0 < last < len(trials) - 1, "this model certifies some of the family"
    assert [trial.certified for trial in trials] == [index <= last for index in range(len(trials))]
    chosen = trials[last]
    assert found.certified
    assert (found.recipe, found.rung, found.ladder) == (chosen.rung, last, "prophet-min")
    rules = FAMILIES["prophet-min"].rules
    assert found.rungs == [f"full block_length=16 stop={format_value(rule)}" for rule in rules]
    assert (found.cost, found.look, found.delta, found.pilot, found.fills) == ("steps", 1, 0.08, 0, False)
    assert found.empirical_risk == pytest.approx(chosen.empirical_risk, abs=1e-6)
    assert found.speedup == pytest.approx(chosen.speedup, abs=1e-4)
    assert found.empirical_risk <= found.upper_bound <= found.risk == 0.2
    assert (found.task, found.examples, found.seed, found.loss) == ("choice", EXAMPLES, 3, "answer")


def test_it_does_live_what_it_says(made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    """Decoded again with the rule in it: the same steps, the same answers lost."""
    what = Evaluation(
        str(checkpoint), "choice", ("full", "prophet"), tmp_path, limit=EXAMPLES, seed=3, independent=True,
        options={"stop": home / "rule.json"},
    )  # fmt: skip
    assert PreparedEvaluation.prepare(what).notes() == []
    by_recipe: dict[str, dict[str, Record]] = {"full": {}, "prophet": {}}
    for record in evaluate(what):
        by_recipe[record.recipe][record.id] = record
    full, early = by_recipe["full"], by_recipe["prophet"]
    assert len(full) == len(early) == EXAMPLES
    assert {record.finish for record in full.values()} == {"complete"}, "a recipe that never stops is left as it is"
    steps = [sum(one.steps for one in side.values()) for side in (full, early)]
    assert steps[0] / steps[1] == pytest.approx(made.certificate.speedup, abs=1e-3)
    differs = sum(early[name].answer != full[name].answer for name in full)
    assert differs / EXAMPLES == pytest.approx(made.certificate.empirical_risk, abs=1e-6)


def test_it_does_so_with_a_cache(checkpoint: Path, tmp_path: Path) -> None:
    """A stopping rule has its region computed, which is why the full decodings do so too."""
    asked: dict[str, Any] = {"limit": EXAMPLES, "seed": 3}
    rule, recipe = tmp_path / "rule.json", "dual block_length=8"
    found = calibrate(str(checkpoint), task="choice", recipe=recipe, out=rule, **asked, **GOAL).certificate
    assert found.certified
    assert replace(found.chosen, stop=Never()) == foretell.parse(recipe)
    recipes = (recipe, f"{recipe} stop={format_value(found.rule)}")
    done = evaluate(Evaluation(str(checkpoint), "choice", recipes, tmp_path / "live", independent=True, **asked))
    early = [one.steps for one in done if one.recipe == recipes[1]]
    assert EXAMPLES * 29 / sum(early) == pytest.approx(found.speedup, abs=1e-3)


def test_against_another_recipe(made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    """Fewer steps from the start, and what counts are the answers and steps of the whole budget."""
    asked: dict[str, Any] = {"task": "choice", "limit": EXAMPLES, "seed": 3, "recipe": "full steps=16"}
    wish: dict[str, Any] = {"family": "entropy", "risk": 0.9, "confidence": 0.9}
    rule = tmp_path / "rule.json"
    found = calibrate(str(checkpoint), against="full", out=rule, **asked, **wish)
    alone = calibrate(str(checkpoint), work=rule.with_suffix(".work"), **asked, **wish)
    assert found.certificate.against == "full block_length=16"
    assert found.certificate.chosen.steps == 16
    assert alone.certificate.against == "full steps=16 block_length=16"
    assert "it gives another answer than full decoding on at most 90% of examples" in found.certificate.says
    full = {one.id: one for one in read_records(home / "rule.work")}
    half = {one.id: one for one in read_records(rule.with_suffix(".work"))}
    differs = sum(half[name].answer != full[name].answer for name in full) / EXAMPLES
    assert differs > 0, "and these are not the same"
    assert found.search.trials[0].empirical_risk == pytest.approx(differs), "the safest rule never stops"
    assert alone.search.trials[0].empirical_risk == 0
    steps = [sum(one.steps for one in side.values()) for side in (full, half)]
    ratio = found.search.trials[0].speedup / alone.search.trials[0].speedup
    assert ratio == pytest.approx(steps[0] / steps[1])
    none = calibrate(str(checkpoint), against="full", out=rule, **asked, **wish | {"risk": 0.001}).certificate
    assert (none.certified, none.recipe) == (False, "full block_length=16"), "not the faster recipe, which loses some"
    with pytest.raises(RequestError, match="never stops early, got 'prophet'"):
        calibrate(str(checkpoint), against="prophet", out=rule, **asked, **wish)


def test_it_holds_for_the_weights_that_were_decoded_with(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="int8 weights need torchao")
    options: dict[str, Any] = {"task": "choice", "limit": 12, "out": tmp_path / "rule.json", **GOAL}
    assert calibrate(str(checkpoint), quantize="int8", **options).certificate.dtype == "float32+int8"


def test_the_file_is_the_certificate_and_always_the_same(made: Calibrated, checkpoint: Path, home: Path) -> None:
    path = home / "rule.json"
    assert read_certificate(path) == made.certificate
    before, decoded = path.read_bytes(), read_records(home / "rule.work")
    seen: list[Record] = []
    calibrate(str(checkpoint), task="choice", limit=EXAMPLES, seed=3, out=path, watch=seen.append, **GOAL)
    assert path.read_bytes() == before
    assert not seen, "nothing is decoded twice"
    assert len(decoded) == EXAMPLES


def test_every_wish_changes_the_rule(made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    """On the same decodings, as if each were the first look: another risk, confidence, family or loss."""

    def other(**wish: Any) -> Calibrated:
        work = unlooked(home / "rule.work", tmp_path / str(len([*tmp_path.iterdir()])))
        return calibrate(str(checkpoint), task="choice", limit=EXAMPLES, seed=3, work=work, **GOAL | wish)

    def bold(one: Calibrated) -> int:
        return sum(trial.certified for trial in one.search.trials)

    assert bold(other(risk=0.6)) > bold(made) > bold(other(risk=0.11))
    assert bold(other(confidence=0.6)) > bold(made) > bold(other(confidence=0.99))
    assert isinstance(other(family="persistence").certificate.rule, Persistent)
    # Nothing that random weights answer is right, so nothing right is lost: the boldest rule of all.
    assert bold(other(loss="success")) == len(made.search.trials) > bold(made)
    own = Family("mine", "two lines", "start", (50.0, 0.0), lambda start: Prophet(Linear(start, start)))
    assert other(family=own, risk=0.9).certificate.ladder == "mine"


def test_every_look_is_recorded_and_paid_for(made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    """Another risk, limit, loss, family (also of the same name) or comparison is another look; the same one is not."""
    work = unlooked(home / "rule.work", tmp_path / "w")
    asked: dict[str, Any] = {"task": "choice", "limit": EXAMPLES, "seed": 3, "work": work} | GOAL

    def own(bar: float) -> Family:
        return Family("mine", "a line", "bar", (bar,), lambda one: Prophet(Linear(one, one)))

    def look(**wish: Any) -> tuple[int, float]:
        found = calibrate(str(checkpoint), **asked | wish).certificate
        return found.look, found.delta

    assert look() == (1, 0.08)
    assert look() == (1, 0.08)
    assert look(risk=0.3) == (2, 0.016)
    assert look() == (1, 0.08), "an earlier look keeps its number"
    assert look(loss="consistency") == (1, 0.08), "an old name of the same loss"
    wishes: list[dict[str, Any]] = [
        {"confidence": 0.8},
        {"loss": "text"},
        {"family": own(5.0)},
        {"family": own(4.0)},
        {"loss": lambda full, fast, _: full.answer != fast.answer},
        {"loss": lambda full, fast, _: full.text != fast.text},
        {"against": "full steps=16"},
    ]
    assert [look(**wish)[0] for wish in wishes] == [*range(3, 10)]
    assert look(risk=0.3) == (2, 0.016)
    what = evaluation_for(str(checkpoint), "choice", None, "full", None, work, {}, limit=EXAMPLES, seed=3)
    again, fresh = (Calibration.prepare(what, RiskGoal(**GOAL | {"risk": eps})).notes for eps in (0.3, 0.31))
    assert again[0].startswith("this is look 2 at this calibration set, so it is tested at delta = 0.016; on examples")
    assert again[0].endswith(f" that are not in {work} it would be 0.08")
    assert fresh[0].startswith("this is look 10 ")
    assert "and one family at a first look needs 7" in fresh[1]
    assert look(risk=0.31)[0] == 10, "the warning was not a look"
    assert look(limit=EXAMPLES + 2)[0] == 11, "the old examples and two more"
    (work / "looks.json").write_text("[1]")
    with pytest.raises(StorageError, match=r"looks\.json is not a list of looks"):
        look(limit=EXAMPLES + 2)


def test_a_second_look_needs_more(made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"task": "choice", "limit": EXAMPLES, "seed": 3, **GOAL}
    work = unlooked(home / "rule.work", tmp_path / "w")
    calibrate(str(checkpoint), **asked | {"risk": 0.21}, work=work)
    second = calibrate(str(checkpoint), **asked, work=work)
    assert second.certificate.certified
    assert second.certificate.says.endswith("; look 2 at this calibration set")
    firsts = [trial.p_value for trial in made.search.trials]
    assert [trial.p_value for trial in second.search.trials] == firsts
    passed = [sum(trial.certified for trial in one.search.trials) for one in (made, second)]
    assert passed[1] == [one <= 0.016 for one in firsts].index(False) < passed[0]


def test_texts_with_masks_are_certified_by_betting(checkpoint: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "masked.jsonl", tmp_path / "rule.json"
    texts = [f"{NAMES[n % 4]} has [MASK*{2 + n % 3}] boxes with {n + 2} apples." for n in range(29)]
    texts.append("[MASK*40] apples")  # a longer window
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    goal: dict[str, Any] = {"risk": 0.3, "confidence": 0.9, "family": "prophet", "loss": "tokens"}
    what = evaluation_for(str(checkpoint), "fill", None, "full", out, None, {}, source=file)
    assert len(Calibration.prepare(what, RiskGoal()).families) == 8, "a text has many masks, so no family is a twin"
    made = calibrate(str(checkpoint), task="fill", source=file, out=out, **goal)
    found, trials = made.certificate, made.search.trials
    assert found.certified
    assert (found.fills, found.window, found.answer, found.pins, found.task) == (True, None, None, None, None)
    assert "it changes at most 30% of the tokens of full decoding, on average over examples like the 30" in found.says
    engine = foretell.load(checkpoint)
    full, fast = engine.fill(texts), engine.fill(texts, recipe=out)
    assert all(one.notes == () for one in fast)
    shares = np.array([
        sum(a != b for a, b in zip(one.generated, other.generated, strict=True)) / len(one.generated)
        for one, other in zip(full, fast, strict=True)
    ])  # fmt: skip
    assert found.empirical_risk == pytest.approx(shares.mean(), abs=1e-6)
    assert trials[found.rung or 0].p_value == pytest.approx(float(betting_p_values(shares, 0.3)))
    sums = [30 * trial.empirical_risk for trial in trials]
    assert any(abs(one - round(one)) > 0.01 for one in sums), "shares, not zeros and ones"
    assert found.speedup == pytest.approx(sum(a.steps for a in full) / sum(a.steps for a in fast), abs=1e-4)


def test_several_families_share_the_doubt(made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    """The fastest of all their certified rules, each search with its part of delta."""
    asked: dict[str, Any] = {"task": "choice", "limit": EXAMPLES, "seed": 3, "risk": 0.3}

    def tested(name: str, family: Any, confidence: float) -> Calibrated:
        work = unlooked(home / "rule.work", tmp_path / name)
        return calibrate(str(checkpoint), family=family, confidence=confidence, work=work, **asked)

    both = tested("both", ["prophet-min", "entropy"], 0.9)
    alone = [tested(name, name, 0.95) for name in ("prophet-min", "entropy")]
    assert [search.trials for search in both.searches] == [one.search.trials for one in alone]
    speeds = [one.certificate.speedup for one in alone]
    assert len({*speeds}) == 2
    assert both.certificate.speedup == max(speeds)
    assert both.certificate.ladder == alone[speeds.index(max(speeds))].certificate.ladder
    assert both.certificate.says.endswith("; 2 ladders were tested and share delta")


def test_delta_is_shared_by_weights_that_are_fixed_in_advance() -> None:
    eight = RiskGoal(confidence=0.96)
    assert [*eight.shares.values()] == [1 / 8] * 8
    judge = Family("judge", "", "bar", (1.0,), lambda bar: Prophet(Linear(bar, bar)))
    alone, nine = RiskGoal(family=judge), RiskGoal(family=["all", judge], confidence=0.9)
    assert alone.shares == {"judge": 1.0}
    assert nine.shares == pytest.approx(dict.fromkeys(eight.shares, 0.2 / 8) | {"judge": 0.8})
    assert sum(nine.shares.values()) == pytest.approx(1)
    # The judge has 0.8 of the 0.8 that a first look has.
    assert [nine.next_useful(400), alone.next_useful(400)] == [
        next_useful(400, 0.01, 1 - 0.1 * 0.64),
        next_useful(400, 0.01, 0.96),
    ]


def test_families_that_are_equal_on_one_token_are_charged_once(checkpoint: Path, tmp_path: Path) -> None:
    def charged(length: int, recipe: str = "full", **wish: Any) -> tuple[str, ...]:
        options = {"max_new_tokens": 12, "answer_length": length}
        what = evaluation_for(str(checkpoint), None, ["Tom"], recipe, None, tmp_path, options)
        plan = Calibration.prepare(what, RiskGoal(**wish))
        assert {*plan.goal.shares} == {one.name for one in plan.families}
        return tuple(plan.goal.shares)

    every = tuple(name for name in FAMILIES if name != "sched")
    assert charged(2) == charged(1, "full region=fixed(offset=3, length=2)") == every
    assert charged(1) == charged(2, "full region=fixed(offset=3, length=1)")
    assert charged(1) == tuple(name for name in every if name not in ("prophet-min", "linear-min"))
    assert charged(1, family=["prophet-min", "linear"]) == ("prophet-min", "linear"), "alone they are kept"
    assert charged(1, "full region=delimiter") == every, "a region that is sought may have any length"


def test_every_example_is_compared_before_the_first_is_decoded(
    made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path
) -> None:
    options = {"stop": str(home / "rule.json"), "on_mismatch": "fail"}
    recipes = ("full", "prophet")
    bench = PreparedEvaluation.prepare(
        Evaluation(str(checkpoint), "choice", recipes, tmp_path / "out", limit=2, options=options)
    )
    bench.check()
    assert made.certificate.certified
    first, second = bench.examples
    other = replace(bench, examples=(first, replace(second, options={**second.options, "max_new_tokens": 40})))
    with pytest.raises(RequestError, match=f"example {second.id}: the certificate .* has 40 positions"):
        other.check()


def test_another_task_is_noted(made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    rule = {"stop": str(home / "rule.json")}
    what = Evaluation(str(checkpoint), "sudoku", ("prophet",), tmp_path, limit=1, options=rule)
    notes = PreparedEvaluation.prepare(what).notes()
    assert any("window has 24 positions, not 32" in note for note in notes)
    assert "this stopping rule was certified on choice, not sudoku" in notes
    steps = replace(what, task="choice", recipes=("prophet steps=7",))
    assert "steps is 7, not none" in PreparedEvaluation.prepare(steps).notes()[0]
    with pytest.raises(RequestError, match="none of full stops early"):
        PreparedEvaluation.prepare(replace(what, recipes=("full",)))


def test_its_file_is_a_recipe_of_an_evaluation(made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    """Decoded live: the same steps as the replay, whatever the task prefers."""
    rule = str(home / "rule.json")
    what = Evaluation(
        str(checkpoint), "choice", ("full", rule), tmp_path, limit=EXAMPLES, seed=3, independent=True,
        options={"steps": 5, "block_length": 4},
    )  # fmt: skip
    bench = PreparedEvaluation.prepare(what)
    assert bench.notes() == []
    assert str(bench.recipes[1].recipe) == bench.manifest()["recipes"]["rule.json"]["recipe"] == made.certificate.recipe
    steps = [one.steps for one in evaluate(what) if one.recipe == "rule.json"]
    assert 29 * EXAMPLES / sum(steps) == pytest.approx(made.certificate.speedup, abs=1e-3)
    other = replace(what, task="sudoku", limit=1, options={})
    assert "rule.json was certified on choice, not sudoku" in PreparedEvaluation.prepare(other).notes()


def test_a_mismatch_is_for_the_recipes_that_have_a_certificate(
    made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path
) -> None:
    rule = str(home / "rule.json")
    what = Evaluation(str(checkpoint), "choice", ("prophet", rule), tmp_path, limit=1, options={"on_mismatch": "full"})
    assert PreparedEvaluation.prepare(what).recipes[0].recipe.stop == Prophet()
    wider = PreparedEvaluation.prepare(replace(what, options={"on_mismatch": "full", "max_new_tokens": 40}))
    assert [one["recipe"] for one in wider.manifest()["recipes"].values()][1] == made.certificate.against
    with pytest.raises(RequestError, match="does not hold here"):
        PreparedEvaluation.prepare(replace(what, options={"on_mismatch": "fail", "temperature": 0.5}))
    with pytest.raises(RequestError, match="on_mismatch=full needs the file of a certificate"):
        PreparedEvaluation.prepare(replace(what, recipes=("full", "prophet")))
    with pytest.raises(RequestError, match="recipe and stop are both files of certificates"):
        PreparedEvaluation.prepare(replace(what, options={"stop": rule}))
    copy = tmp_path / "rule.json"
    replace(made.certificate, options={"chat": False}).save(copy)
    raw = PreparedEvaluation.prepare(replace(what, recipes=(str(copy),)))
    order = raw.recipes[0].template(raw.engine, raw.examples[0], 0)
    assert order.chat is None, "an evaluation's recipes share its options"
    with pytest.raises(RequestError, match=r"each recipe needs its own name, got rule\.json, rule\.json"):
        PreparedEvaluation.prepare(replace(what, recipes=(rule, str(copy))))


def test_prompts_have_the_window_of_a_certified_recipe(made: Calibrated, checkpoint: Path, tmp_path: Path) -> None:
    """All recipes have, also those without a certificate."""
    model, rule = tmp_path / "model", tmp_path / "rule.json"
    model.mkdir()
    for path in checkpoint.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    layouts = {"a": {"max_new_tokens": 20, "block_length": 4, "answer_start": 3, "answer_length": 2}, "b": LAYOUT}
    (model / "foretell.json").write_text(json.dumps({"default": "a", "layouts": layouts}))
    (tmp_path / "p.txt").write_text("Tom has 3 boxes.")

    def layouts_of(**options: Any) -> list[tuple[int, Any, Any]]:
        what = Evaluation(
            str(model), "prompts", ("full", str(rule)), tmp_path / "e", source=tmp_path / "p.txt", options=options
        )
        bench = PreparedEvaluation.prepare(what)
        orders = [one.template(bench.engine, bench.examples[0], 0) for one in bench.recipes]
        return [(one.layout.length, one.layout.answer, one.recipe.block_length) for one in orders]

    made.certificate.save(rule)
    assert layouts_of() == [(32, (31, 1), 4), (32, (31, 1), 16)]
    assert layouts_of(max_new_tokens=24) == [(24, (3, 2), 4), (24, (3, 2), 16)]
    replace(made.certificate, options={"layout": "b"}).save(rule)
    assert layouts_of() == [(12, (10, 2), 6), (12, (10, 2), 16)]
    assert layouts_of(layout="a") == [(20, (3, 2), 4), (20, (3, 2), 16)]


def test_too_few_examples_fall_back_to_never(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "rule.json"
    what = evaluation_for(str(checkpoint), "choice", None, "full", out, None, {}, limit=3)
    plan = Calibration.prepare(what, RiskGoal(family="entropy"))
    assert plan.notes == [plan.goal.shortage(3, 0.8)]
    assert "at least 321 are needed" in plan.notes[0], "(1 - 0.01)^321 is at most 0.8 of 0.05"
    eight = Calibration.prepare(what, RiskGoal())
    assert "at least 499 are needed" in eight.notes[0], "six families: the answer is one token"
    assert eight.notes[0].endswith("and one family at a first look needs 321")
    made = calibrate(str(checkpoint), task="choice", limit=3, family="entropy", out=out)
    found = read_certificate(out)
    assert found == made.certificate
    assert (found.certified, found.recipe, found.speedup, found.rung) == (False, "full block_length=16", 1.0, None)
    assert "at least 321 are needed" in found.says
    engine = foretell.load(checkpoint)
    done = engine.generate("Tom has 3 boxes.", recipe="prophet", stop=out, max_new_tokens=6, answer_length=2)
    assert done.finish == "complete"
    assert "at least 321 are needed" in done.notes[0]


def test_a_family_that_is_never_safe_falls_back_too(
    made: Calibrated, checkpoint: Path, home: Path, tmp_path: Path
) -> None:
    reckless = Family("reckless", "at once", "bar", (0.0,), lambda bar: Prophet(Linear(bar, bar)))
    work = unlooked(home / "rule.work", tmp_path / "w")
    wish: dict[str, Any] = {"task": "choice", "limit": EXAMPLES, "seed": 3, "work": work} | GOAL | {"family": reckless}
    found = calibrate(str(checkpoint), **wish).certificate
    assert (found.certified, found.rule) == (False, Never())
    assert "no rule of reckless is shown to have a risk of at most 20%" in found.says
    assert "; the safest loses " in found.says
    assert found.says.endswith(f"fresh examples that allows one loss more is {next_useful(EXAMPLES, 0.2, 0.92)}")
    graded = calibrate(str(checkpoint), **wish | {"loss": "tokens"}).certificate
    assert graded.look == 2
    assert "; the safest has a mean loss of " in graded.says
    assert graded.says.endswith(" on 24 examples"), "for graded losses no number of examples allows one more"


def test_the_region_is_where_the_rule_really_looks(checkpoint: Path, tmp_path: Path) -> None:
    """SchED brings its own region; a window without an answer region is refused; what the recipe says stays."""

    def region(recipe: str, family: str, options: dict[str, Any]) -> str:
        what = evaluation_for(str(checkpoint), "choice", None, recipe, None, tmp_path, options, limit=1)
        return str(Calibration.prepare(what, RiskGoal(family=family)).recipe.region)

    assert region("full", "prophet", {}) == "Fixed(offset=0, length=0)"
    assert region("prophet", "sched", {}) == "Masked()"
    assert region("full region=after", "sched", {}) == "After(length=0, skip=0)"
    free = evaluation_for(str(checkpoint), "choice-free", None, "full", None, tmp_path, {}, limit=1)
    with pytest.raises(RequestError, match="choice-free: this window has no answer region"):
        Calibration.prepare(free, RiskGoal())


def asked(count: int) -> list[str]:
    return [f"{NAMES[number % 4]} has {number + 2} boxes with {number + 3} apples each." for number in range(count)]


def test_prompts_without_labels(checkpoint: Path, tmp_path: Path) -> None:
    """A list and a file of the same prompts are the same; the answer is what stands in the region."""
    out, file = tmp_path / "rule.json", tmp_path / "prompts.txt"
    file.write_text("\n".join(asked(16)))
    listed = calibrate(str(checkpoint), prompts=asked(16), out=out, options=LAYOUT, **GOAL).certificate
    read = calibrate(str(checkpoint), prompts=file, work=tmp_path / "w", options=LAYOUT, **GOAL).certificate
    assert listed == read
    assert (listed.task, listed.examples, listed.window, listed.answer) == (None, 16, 12, [10, 2])
    assert listed.against == "full block_length=6"
    assert listed.options == {name: value for name, value in LAYOUT.items() if name != "block_length"}
    engine = foretell.load(checkpoint)
    early, full = (engine.generate(asked(16), recipe="prophet", stop=rule, **LAYOUT) for rule in (out, "never"))
    assert all(one.notes == () for one in early)
    assert [one.tokens for one in engine.generate(asked(16), recipe=out)] == [one.tokens for one in early]
    differs = sum(a.answer != b.answer for a, b in zip(early, full, strict=True)) / 16
    assert differs == pytest.approx(listed.empirical_risk, abs=1e-6)
    other = calibrate(str(checkpoint), prompts=asked(12), work=tmp_path / "x", options=LAYOUT, **GOAL).certificate
    assert other.examples_sha256 != listed.examples_sha256


def test_prompts_are_decoded_as_the_model_prefers(checkpoint: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in checkpoint.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    layouts = {"short": LAYOUT, "bare": {"max_new_tokens": 8}}
    (model / "foretell.json").write_text(json.dumps({"default": "short", "layouts": layouts}))

    def prepared(recipe: str = "full", **options: Any) -> Calibration:
        what = evaluation_for(str(model), None, asked(2), recipe, None, tmp_path / "w", options)
        return Calibration.prepare(what, RiskGoal())

    assert prepared().layouts[0].answer == (10, 2)
    assert prepared().recipe.block_length == 6
    assert prepared(max_new_tokens=20).layouts[0].answer == (18, 2)
    with pytest.raises(RequestError, match="this window has no answer region, so a stopping rule never stops early"):
        prepared(layout="bare")
    bare = prepared("full region=masked", layout="bare")
    assert (bare.layouts[0].length, bare.layouts[0].answer, str(bare.recipe)) == (8, None, "full region=masked")
    with pytest.raises(RequestError, match="unknown layout 'bar'; did you mean 'bare'"):
        prepared(layout="bar")


def test_success_needs_labels(checkpoint: Path, tmp_path: Path) -> None:
    """Half of the prompts are labelled with what full decoding says: those can be lost, the others cannot."""
    said = foretell.load(checkpoint).generate(asked(16), **LAYOUT)
    right = [one.answer if number % 2 else "nothing" for number, one in enumerate(said)]
    file, bare = tmp_path / "prompts.jsonl", tmp_path / "bare.jsonl"
    lines = [{"prompt": prompt, "answer": answer} for prompt, answer in zip(asked(16), right, strict=True)]
    file.write_text("\n".join(map(json.dumps, lines)))
    both = {
        loss: calibrate(str(checkpoint), prompts=file, work=tmp_path / "w", loss=loss, options=LAYOUT, **GOAL)
        for loss in ("success", "answer")
    }
    lost, changed = ([trial.empirical_risk for trial in both[loss].search.trials] for loss in ("success", "answer"))
    assert all(a <= b for a, b in zip(lost, changed, strict=True))
    assert 0 < max(lost) <= 0.5 < max(changed)
    bare.write_text("\n".join(map(json.dumps, [*lines[:3], {"prompt": "Tom has 4 balls.", "id": "ball"}])))
    with pytest.raises(RequestError, match=r'1 prompts \(first: ball\) have no "answer"'):
        calibrate(str(checkpoint), prompts=bare, work=tmp_path / "y", loss="success", options=LAYOUT)
    bare.write_text(json.dumps({"prompt": "Tom has 4 balls.", "answer": [4]}))
    with pytest.raises(RequestError, match=r'line 1: "answer" must be a text or a number, got \[4\]'):
        calibrate(str(checkpoint), prompts=bare, work=tmp_path / "y", options=LAYOUT)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({}, "give a task, prompts"),
        ({"task": "choice", "prompts": ["Tom"]}, "one of them"),
        ({"prompts": ["Tom"], "source": "folder"}, "a data folder is only for benchmarks"),
        ({"task": "chioce"}, "did you mean 'choice'"),
        ({"task": "choice", "family": "profet"}, "did you mean 'prophet'"),
        ({"task": "choice", "loss": "sucess"}, "did you mean 'success'"),
        ({"task": "choice", "risk": 1}, "risk must be a number"),
        ({"task": "choice", "out": "rule.txt"}, "the result is written to a .json file, got rule.txt"),
        ({"task": "choice", "out": "no/where/rule.json"}, "there is no folder no/where"),
        ({"task": "choice", "work": None}, "say where to write the result"),
        (
            {"prompts": ["Tom has 4 balls.", "Tom has 4 zeppelin"], "options": LAYOUT},
            "example 2: the model's vocabulary has no 'zeppelin'",
        ),
        ({"prompts": "nowhere.jsonl"}, "cannot read the prompt file nowhere.jsonl"),
        ({"prompts": ["Tom has 4 balls."], "options": {"sufix": "is"}}, "did you mean 'suffix'"),
    ],
)
def test_nonsense_is_refused(checkpoint: Path, tmp_path: Path, wish: dict[str, Any], says: str) -> None:
    with pytest.raises((RequestError, RecipeError)) as raised:
        calibrate(str(checkpoint), **{"work": tmp_path / "w"} | wish)
    assert says in str(raised.value)


def test_examples_with_windows_of_their_own_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    what = evaluation_for(str(checkpoint), "choice", None, "full", None, tmp_path, {}, limit=2)
    plan = Calibration.prepare(what, RiskGoal())
    assert plan.layouts[0] == plan.layouts[1]
    odd = replace(plan, layouts=(plan.layouts[0], foretell.Layout(9)))
    with pytest.raises(RequestError, match="do not share one window"):
        odd._check()


def test_a_parallel_recipe_has_its_own_clock(checkpoint: Path, tmp_path: Path) -> None:
    """Progress is what is filled there; the rule that is written says so and can be used with the recipe."""
    rule = tmp_path / "rule.json"
    made = calibrate(str(checkpoint), task="choice", recipe="swift", limit=EXAMPLES, seed=3, out=rule, **GOAL)
    assert all("clock=tokens" in trial.rung for trial in made.search.trials)
    engine = foretell.load(checkpoint)
    assert engine.template(recipe="swift", stop=rule).recipe.transfer.parallel
    sched = with_token_clock(FAMILIES["sched"]).rules[0]
    assert format_value(sched).count("clock=tokens") == 1


def test_a_cache_needs_an_answer_that_is_laid_out(checkpoint: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"prompts": [f"Tom has {n} apples." for n in (3, 4)], "options": {"max_new_tokens": 8}}
    with pytest.raises(
        RequestError, match=r"with cache=dual a rule can be certified only if the answer has a fixed position"
    ):
        calibrate(str(checkpoint), recipe="dual region=masked", work=tmp_path, **asked, **GOAL)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("full verify=recheck", "with verify=recheck no rule can be certified"),
        ("dual region=pattern('a')", "with cache=dual a rule can be certified only if the answer has a fixed position"),
        ("full cache=off(near(4)) region=boxed", "with cache=off(visible=near(suffix=4)) a rule can be certified"),
    ],
)
def test_what_a_trace_does_not_hold_is_not_certified(checkpoint: Path, tmp_path: Path, recipe: str, says: str) -> None:
    with pytest.raises(RequestError) as raised:
        calibrate(str(checkpoint), task="choice", limit=2, recipe=recipe, work=tmp_path, **GOAL)
    assert says in str(raised.value)


def test_recipes_are_read_as_eval_reads_them(checkpoint: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"task": "choice", "limit": 2, "work": tmp_path, **GOAL}
    made = calibrate(str(checkpoint), recipe="full max_new_tokens=24 remasking=margin", **asked).certificate
    assert made.window == 24
    assert "score=margin" in made.recipe


def test_examples_that_repeat_are_noted(checkpoint: Path, tmp_path: Path) -> None:
    what = evaluation_for(str(checkpoint), None, ["Tom has 3 apples."] * 4, "full", None, tmp_path, LAYOUT)
    notes = Calibration.prepare(what, RiskGoal(**GOAL)).notes
    assert any(note.startswith("only 1 of 4 examples are distinct") for note in notes)


def test_a_rule_looks_where_it_was_certified(checkpoint: Path, tmp_path: Path) -> None:
    """SchED watches every mask; a recipe that says nothing of the region takes it over from the rule."""
    rule = tmp_path / "rule.json"
    asked: dict[str, Any] = {
        "task": "choice",
        "limit": EXAMPLES,
        "seed": 3,
        "out": rule,
        **GOAL,
        "risk": 0.6,
        "family": "sched",
    }
    found = calibrate(str(checkpoint), **asked).certificate
    assert found.certified
    assert found.chosen.region == Masked()
    bench = PreparedEvaluation.prepare(
        Evaluation(str(checkpoint), "choice", ("prophet",), tmp_path / "e", limit=1, options={"stop": rule})
    )
    order = bench.recipes[0].template(bench.engine, bench.examples[0], 0)
    assert order.recipe.region == Masked()
    assert order.notes == ()
