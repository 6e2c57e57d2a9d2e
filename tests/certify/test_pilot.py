"""The pilot finds the ladder with the best planted risks, and builds only stacks that make sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.certify.decode_store import DecodeStore
from foretell.certify.decodings import evaluation_for
from foretell.certify.ladders import TOLERANCES, TRANSFERS, Ladder, ModelScale
from foretell.certify.pilot import OFFSETS, STOPS, Pilot, PilotResult, Stack, Tried, _add_stop, cost_of
from foretell.certify.search import RiskGoal
from foretell.engine.trace import Trace
from foretell.errors import ModelError
from foretell.evaluation.run import PreparedEvaluation
from foretell.policies.stop.never import Never
from foretell.policies.transfer.factor import Factor
from foretell.policies.transfer.threshold import Threshold
from foretell.recipes.presets import parse
from foretell.recipes.recipe import Recipe
from foretell.recipes.text import format_value
from tests.certify.planted import ANSWERED, OPEN, STEPS, PlantedStore, prepare_bench

PILOT, PLANNED, DELTA = 64, 400, 0.08
GOAL = RiskGoal(risk=0.05, confidence=0.9, against="full")
SCALE = ModelScale(
    bars={
        "confidence": tuple(1 - tolerance for tolerance in TOLERANCES),
        "gap": tuple(8 - 12 * tolerance for tolerance in TOLERANCES),
        "entropy": TOLERANCES,
    },
    right={},
    drafts=100,
    wrong=10,
)


@pytest.fixture(scope="module")
def trace(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    bench = prepare_bench(checkpoint, tmp_path_factory.mktemp("t"), 1)
    done = bench.engine.generate(bench.examples[0].prompt, trace=True, **OPEN)
    assert done.trace is not None
    return done.trace


@pytest.fixture(scope="module")
def bench(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return prepare_bench(checkpoint, tmp_path_factory.mktemp("w"), PILOT)


@pytest.fixture
def known_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale of a model whose confidence is 1 - t at the tolerance t."""
    monkeypatch.setattr(ModelScale, "of", classmethod(lambda _, __: SCALE))


def boldness(recipe: Recipe) -> float:
    """Return the tolerance that a recipe was placed at."""
    transfer = recipe.transfer
    if isinstance(transfer, Threshold):
        return 1 - transfer.value
    return transfer.factor / 2 if isinstance(transfer, Factor) else 0.0


def search(
    bench: Any, trace: Trace, risk: Callable[[Recipe], float], cost: Callable[[Recipe], int], goal: RiskGoal = GOAL
) -> tuple[PilotResult, PlantedStore]:
    store = PlantedStore(bench, risk=risk, cost=cost, trace=trace)
    return Pilot(store, goal, bench.examples, PLANNED, DELTA, "full").run(), store


@pytest.mark.usefixtures("known_scale")
def test_bad_stacks_die_and_the_best_one_is_chosen(bench: Any, trace: Trace) -> None:
    """Every transfer changes everything except two, and of those the factor is faster."""

    def risk(recipe: Recipe) -> float:
        good = isinstance(recipe.transfer, Threshold | Factor) and recipe.block_length == 6
        return boldness(recipe) / 4 if good else 1.0

    def cost(recipe: Recipe) -> int:
        fast = 2 if isinstance(recipe.transfer, Factor) else 1
        return max(1, round((16 - 24 * boldness(recipe)) / fast))

    found, store = search(bench, trace, risk, cost)
    rounds = found.rounds
    assert [size for size, _ in rounds] == [32, 64]
    assert len(rounds[0][1]) == 2 * len(TRANSFERS), "with and without blocks"
    assert len(rounds[1][1]) <= 1 + len(rounds[0][1]) // 2
    assert {"threshold", "factor"} <= {*rounds[1][1]}
    assert found.chosen.name == "factor"
    assert found.transfer_alone.rungs == found.chosen.rungs, "without stops the best is a transfer"
    assert all("stop=" not in rung for one in found.tried for rung in one.ladder.rungs)
    expected = [one.expected for one in found.tried]
    assert expected == sorted(expected, reverse=True)
    assert found.tried[0].expected > 8
    assert len(found.tried[0].ladder.rungs) > 3, "more levels than in the rounds before"
    dead = {*rounds[0][1]} - {*rounds[1][1]}
    for title, _, ids in store.asked:
        if any(title == f"pilot: {name}, 32 examples" for name in dead):
            assert len(ids) == 32
    assert not any(title.startswith(f"pilot: {name}, 64") for name in dead for title, _, _ in store.asked)
    bold = [boldness(parse(rung)) for rung in found.chosen.rungs]
    assert bold == sorted(bold), "from safe to fast"
    assert len({*bold}) >= 2


@pytest.mark.usefixtures("known_scale")
def test_the_plain_threshold_is_always_compared(bench: Any, trace: Trace) -> None:
    """It is the worst of all here, and still among the finalists."""
    found, _ = search(bench, trace, lambda recipe: float(isinstance(recipe.transfer, Threshold)), lambda _: 8)
    assert "threshold" in found.rounds[-1][1]
    assert "threshold" in {one.ladder.name for one in found.tried}
    assert found.chosen.name != "threshold"


@pytest.mark.usefixtures("known_scale")
def test_what_cannot_be_replayed_is_tried_too(bench: Any, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pilot, "_live_variants", lambda _, best: [replace(best, expected=best.expected + 1)])
    found, _ = search(bench, trace, lambda _: 0.0, lambda _: 8)
    assert found.tried[0].expected == found.tried[1].expected + 1


@pytest.mark.usefixtures("known_scale")
def test_a_small_pilot_has_one_round(bench: Any, trace: Trace) -> None:
    store = PlantedStore(bench, trace=trace)
    found = Pilot(store, GOAL, bench.examples[:12], PLANNED, DELTA, "full").run()
    assert [size for size, _ in found.rounds] == [12]
    assert len(found.rounds[0][1]) == 2 * len(TRANSFERS)
    assert {len(one.full) for one in found.tried} == {12}


def stacks(
    model: Path, folder: Path, cost: str = "forwards", options: dict[str, Any] = OPEN, against: str = "full"
) -> list[str]:
    store = DecodeStore(prepare_bench(model, folder, 2, options, against))
    pilot = Pilot(store, replace(GOAL, cost=cost), store.bench.examples, PLANNED, DELTA, against)
    return [one.name for one in pilot._list_stacks()]


def test_caches_are_tried_where_they_can_save(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [f"{name}{more}" for name in TRANSFERS for more in ("", " block_length=none")]
    for cost in ("forwards", "steps"):
        assert stacks(checkpoint, tmp_path, cost) == plain
    for cost in ("columns", "seconds"):
        names = stacks(checkpoint, tmp_path, cost)
        assert {*names} == {*plain, *(f"{name} cache={kind}" for name in TRANSFERS for kind in ("dual", "prefix"))}
        assert names[0] == "threshold"
        shown = {*stacks(checkpoint, tmp_path / "long", cost, {**OPEN, "max_new_tokens": 16})} - {*names}
        hiding = ("off(visible=near(6))", "dual(visible=near(6))")
        assert shown == {f"{name} cache={kind}" for name in TRANSFERS for kind in hiding}

    def refuse(*_: object) -> None:
        raise ModelError("no cache")

    monkeypatch.setattr("foretell.models.transformer.Transformer.new_cache", refuse)
    assert stacks(checkpoint, tmp_path, "columns") == plain


def test_blocks_are_dropped_only_where_there_are_some(checkpoint: Path, tmp_path: Path) -> None:
    for block in (None, 12, 13):
        options = {"max_new_tokens": 12, **({} if block is None else {"block_length": block})}
        assert stacks(checkpoint, tmp_path / str(block), options=options) == [*TRANSFERS]
    assert len(stacks(checkpoint, tmp_path / "11", options=OPEN | {"block_length": 11})) == 2 * len(TRANSFERS)


def test_a_stack_is_a_recipe_at_every_level() -> None:
    stack = Stack("full", TRANSFERS["threshold"], "block_length=none")
    assert stack.name == "threshold block_length=none"
    texts = [stack.recipe(SCALE, level) for level in range(len(TOLERANCES))]
    values = [boldness(parse(text)) for text in texts]
    assert values == sorted(values)
    assert values == pytest.approx(TOLERANCES, rel=0.07)
    assert parse(texts[0]).stop_at_eos
    assert parse(texts[0]).block_length is None


@pytest.mark.parametrize("name", STOPS)
def test_stopping_rules_are_valid_beyond_the_scale(name: str) -> None:
    kind = STOPS[name]
    last = len(TOLERANCES) - 1
    rules = [kind.rule(SCALE, level) for level in (-9, 0, last - 2, last, last + 12)]
    assert rules[0] != rules[1] != rules[2] != rules[3] == rules[4]
    for rule in rules:
        replace(parse("swift"), stop=rule)  # raises if the rule cannot be combined with a parallel transfer


@pytest.fixture(scope="module")
def with_stops(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Pilot:
    """A pilot on real decodings of eight prompts whose windows have an answer region."""
    bench = prepare_bench(checkpoint, tmp_path_factory.mktemp("stops"), 8, ANSWERED)
    pilot = Pilot(DecodeStore(bench), replace(GOAL, risk=0.3), bench.examples, 60, DELTA, "full")
    pilot._full = {case.example.id: case.record for case in pilot.store.cases("full", bench.examples)}
    return pilot


def test_stopping_rules_are_replayed_as_they_decode(with_stops: Pilot) -> None:
    """What a replay predicts for a rung with a rule is what decoding it gives, also the cost."""
    stack = Stack("full", TRANSFERS["threshold"])
    levels = [22, 26]
    tried = with_stops._try(stack, SCALE, levels, 8)
    assert tried.ladder.settings == (22.0, 26.0)
    found = with_stops._with_stops(tried, SCALE)
    assert len(found) == len(STOPS) * len(OFFSETS)
    assert len({one.ladder.name for one in found}) == len(found)
    early = [one for one in found if (one.speedups > tried.speedups + 1e-9).any()]
    assert early, "some rules stop"
    one = max(early, key=lambda ladder: ladder.speedups[-1])
    name, offset = one.ladder.name.removeprefix("threshold + ").split(", offset ")
    for place, (rung, level) in enumerate(zip(one.ladder.rungs, levels, strict=True)):
        assert rung.startswith(tried.ladder.rungs[place] + " stop=")
        assert parse(with_stops.store.resolve(rung)).stop == STOPS[name].rule(SCALE, level + int(offset))
        live = with_stops.store.records(rung, with_stops.examples)
        assert [record.forwards for record in live] == pytest.approx(list(one.costs[place]))
        lost = [with_stops._loss(*pair) for pair in with_stops._pairs(live)]
        assert lost == list(one.losses[place])


def test_replayed_rules_cost_what_the_goal_counts(with_stops: Pilot) -> None:
    pilot = Pilot(with_stops.store, replace(GOAL, cost="columns"), with_stops.examples, 60, DELTA, "full")
    rung, full = "full transfer=threshold(value=0.5)", [*with_stops._full.values()]
    rule = STOPS["entropy"].rule(SCALE, len(TOLERANCES) - 1)
    _, (costs,) = pilot._replay(rung, [rule], full)
    live = pilot.store.records(f"{rung} stop={format_value(rule)}", pilot.examples)
    assert list(costs) == pytest.approx([one.columns_needed for one in live], rel=0.1)
    assert min(costs) > max(one.steps for one in live)


def test_rules_move_with_the_level_of_the_transfer(with_stops: Pilot) -> None:
    tried = with_stops._try(Stack("full", TRANSFERS["threshold"]), SCALE, [22, 26], 8)
    for one in with_stops._with_stops(tried, SCALE):
        if "entropy, offset -8" in one.ladder.name:
            rules: list[Any] = [parse(rung).stop for rung in one.ladder.rungs]
            bars = [rule.entropy for rule in rules]
            assert bars == pytest.approx([TOLERANCES[14], TOLERANCES[18]], rel=0.07)
            break
    else:
        raise AssertionError("the ladder is missing")


def test_rules_need_an_answer_and_a_trace(with_stops: Pilot, checkpoint: Path, tmp_path: Path) -> None:
    fast = "full transfer=threshold(value=0.9)"
    assert with_stops._stops(fast)
    assert not with_stops._stops(f"{fast} cache=dual"), "a trace lacks what a cache would compute"
    bench = prepare_bench(checkpoint, tmp_path, 2)
    pilot = Pilot(DecodeStore(bench), GOAL, bench.examples, PLANNED, DELTA, "full")
    assert not pilot._stops(fast), "no answer region"
    tried = tried_with([[0.0]], [[8.0]])
    assert pilot._with_stops(tried, SCALE) == []


def at_level(level: float, odds: float = 1.0) -> str:
    return f"full transfer=threshold(value={1 - (0.1 + level / 50) * odds:g})"


def ladder_of(levels: Sequence[float], safest: float) -> tuple[str, ...]:
    """Return the rungs at these levels after safer ones, each with half the odds of the next."""
    safer = [odds for odds in (1 / 16, 1 / 8, 1 / 4, 1 / 2) if odds >= safest]
    return (*(at_level(levels[0], odds) for odds in safer), *map(at_level, levels))


def tried_with(losses: Sequence[Sequence[float]], costs: Sequence[Sequence[float]], expected: float = 2.0) -> Tried:
    """The first rung is at level 3, the next at 4, and so on."""
    levels = range(3, 3 + len(losses))
    full = np.full(len(losses[0]), float(STEPS))
    ladder = Ladder("mine", tuple(map(at_level, levels)), tuple(map(float, levels)), "level")
    return Tried(ladder, at_level, np.array(losses), np.array(costs), full, expected)


def rows(*risks: float, size: int = 400) -> list[list[float]]:
    return [[float(place < round(risk * size)) for place in range(size)] for risk in risks]


def costs(*each: float, size: int = 400) -> list[list[float]]:
    return [[one] * size for one in each]


@pytest.fixture
def trimmer(bench: Any) -> Pilot:
    return trimmer_with(bench, lambda _: 8)


def trimmer_with(bench: Any, cost: Callable[[Recipe], int]) -> Pilot:
    pilot = Pilot(PlantedStore(bench, cost=cost), GOAL, bench.examples, PLANNED, DELTA, "full")
    pilot._full = {one.id: one for one in pilot.store.records("full", bench.examples)}
    return pilot


@pytest.mark.parametrize(
    ("risks", "prices", "safest", "kept"),
    [
        # Of what the pilot decoded, nothing slower than a rung that surely passes, and no hopeless one.
        ((0.0, 0.0, 0.045, 0.2), (32, 16, 8, 4), 1 / 2, [4, 4.5, 5]),
        ((0.03, 0.03), (8, 4), 1 / 2, [4]),  # equally likely to pass: the faster one
        ((0.035, 0.0, 0.03), (16, 32, 8), 1 / 2, [4, 4.5, 5]),  # slower and riskier than the next
        # The riskier the first rung, the safer those before it.
        ((0.03, 0.2), (8, 4), 1 / 2, [3]),
        ((0.045, 0.2), (8, 4), 1 / 4, [3]),
        ((0.2, 0.3), (8, 4), 1 / 8, [3]),  # all hopeless
        ((0.9,), (8,), 1 / 16, [3]),
        ((0.0,), (8,), 1 / 2, [3]),
    ],
)
def test_a_ladder_is_trimmed(
    trimmer: Pilot, risks: tuple[float, ...], prices: tuple[float, ...], safest: float, kept: list[float]
) -> None:
    found = trimmer._trim(tried_with(rows(*risks), costs(*prices)))
    assert found.rungs == ladder_of(kept, safest)
    assert found.name == "mine"


def test_slower_rungs_than_one_that_is_nearly_certain_to_pass_are_dropped(
    trimmer: Pilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pilot, "_chances", lambda *_: [1.0, 0.985, 0.5])
    found = trimmer._trim(tried_with(rows(0.0, 0.0, 0.0), costs(32, 16, 8)))
    assert found.rungs == ladder_of([4, 4.5, 5], 1 / 2)


def test_safer_rungs_differ_from_the_others(trimmer: Pilot) -> None:
    """Numbers are rounded, so several rungs may have the same; such a rung is not tested twice."""

    def rounded(level: float, odds: float = 1.0) -> str:
        return f"full transfer=threshold(value={1 - 0.1 * odds:.1f})"

    tried = replace(tried_with(rows(0.03), costs(8)), make=rounded)
    assert trimmer._trim(tried).rungs == ("full transfer=threshold(value=0.9)",)


def test_safer_rungs_that_save_little_are_left_out(bench: Any) -> None:
    """The speedups of 1/2, 1/4, ... of the odds are 2.0x, 1.3x and 1.2x, measured on the first examples."""
    costs_of = {0.92: 32, 0.96: 49, 0.98: 53, 0.99: 1}
    pilot = trimmer_with(bench, lambda recipe: costs_of[round(1 - boldness(recipe), 2)])
    tried = tried_with(rows(0.9), costs(8))
    assert pilot._trim(tried).rungs == ladder_of([3], 1 / 4)
    store: Any = pilot.store
    asked = [(title, ids) for title, _, ids in store.asked if title == "pilot: safer rungs"]
    assert asked == [("pilot: safer rungs", [one.id for one in bench.examples[:32]])] * 3


def test_safer_rungs_are_safer_in_every_number() -> None:
    """The transfer and the stopping rule, on a scale whose safest levels all have the same bar."""
    flat = replace(SCALE, bars={"confidence": (0.9,) * 27, "entropy": (0.2,) * 27, "gap": (5.0,) * 27})
    make = partial(_add_stop, partial(Stack("full", TRANSFERS["threshold"]).recipe, flat), STOPS["entropy"], flat, 0)
    made: list[Any] = [parse(make(3, odds)) for odds in (1 / 4, 1 / 2, 1)]
    assert [one.transfer.value for one in made] == pytest.approx([0.975, 0.95, 0.9], abs=0.005)
    assert [one.stop.entropy for one in made] == pytest.approx([0.05, 0.1, 0.2], rel=0.07)


def test_the_best_level_is_worth_most(trimmer: Pilot) -> None:
    assert trimmer._best_level(tried_with(rows(0.0, 0.01, 0.2), costs(32, 16, 4))) == 4
    assert trimmer._best_level(tried_with(rows(0.0, 0.01, 0.01), costs(32, 16, 4))) == 5
    chances = trimmer._chances(tried_with(rows(0.0, 0.03, 0.2), costs(32, 16, 4)))
    assert chances[0] > 0.98
    assert 0.1 < chances[1] < 0.9
    assert chances[2] == 0


def test_rechecking_is_tried_on_the_best_ladder_with_a_rule(bench: Any) -> None:
    """One rung first; all of them only if that one is better."""

    def recheck(faster: bool) -> tuple[list[Tried], PlantedStore]:
        store = PlantedStore(bench, cost=lambda recipe: 4 if faster and "recheck" in str(recipe.verify).lower() else 16)
        pilot = Pilot(store, GOAL, bench.examples, PLANNED, DELTA, "full")
        pilot._full = {one.id: one for one in store.records("full", bench.examples)}
        store.asked.clear()
        plain = tried_with(rows(0.0, 0.0, size=PILOT), costs(32, 16, size=PILOT), expected=3.9)
        assert pilot._live_variants(plain) == [], "without a rule there is nothing to recheck"
        rungs = tuple(f"{rung} stop=sure" for rung in plain.ladder.rungs)
        ladder = Ladder("mine + sure", rungs, plain.ladder.settings, "level")
        stopped = replace(plain, ladder=ladder, make=lambda level, odds=1.0: f"{at_level(level, odds)} stop=sure")
        return pilot._live_variants(stopped), store

    (one,), store = recheck(faster=False)
    assert one.ladder.name == "mine + sure + recheck (one rung)"
    assert one.ladder.rungs == (f"{at_level(4)} stop=sure verify=recheck",), "the rung nearest to what is expected"
    assert len(store.asked) == 1
    (whole,), store = recheck(faster=True)
    assert whole.ladder.name == "mine + sure + recheck"
    assert [rung.endswith(" stop=sure verify=recheck") for rung in whole.ladder.rungs] == [True, True]
    assert whole.expected > 8
    assert whole.make(3, 0.5) == f"{at_level(3, 0.5)} stop=sure verify=recheck"


@pytest.mark.parametrize("cache", ["dual", "off(visible=near(2))"])
def test_stopping_rules_are_not_replayed_where_traces_lack_what_they_read(
    checkpoint: Path, tmp_path: Path, cache: str
) -> None:
    bench = prepare_bench(checkpoint, tmp_path, 2, ANSWERED)
    pilot = Pilot(PlantedStore(bench), GOAL, bench.examples, PLANNED, DELTA, "full")
    rung = "full transfer=threshold(value=0.9)"
    assert pilot._stops(rung)
    assert not pilot._stops(f"{rung} cache={cache}")


def test_every_cost_is_counted(bench: Any) -> None:
    (record,) = PlantedStore(bench, cost=lambda _: 8).records("full transfer=threshold(0.9)", bench.examples[:1])
    record = replace(record, forwards=9, columns_needed=70, wall=0.25, seconds=3.0)
    assert [cost_of(record, cost) for cost in ("steps", "forwards", "columns", "seconds")] == [8, 9, 70, 0.25]


def test_fills_have_ladders_of_transfers_only(checkpoint: Path, tmp_path: Path) -> None:
    texts = [f"Tom has [MASK*3] boxes with {n} apples." for n in (3, 4)]
    what = evaluation_for(str(checkpoint), None, None, "full", None, tmp_path, {}, texts=texts)
    bench = PreparedEvaluation.prepare(what)
    pilot = Pilot(DecodeStore(bench), GOAL, bench.examples, PLANNED, DELTA, "full")
    assert not pilot._stops("full transfer=threshold(value=0.9)")
    assert [one.name for one in pilot._list_stacks()] == [*TRANSFERS]
    assert parse(pilot.store.resolve(pilot._list_stacks()[0].recipe(SCALE, 9))).stop == Never()
