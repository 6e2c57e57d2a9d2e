"""Families are nested, and what is replayed for all their members at once is what each of them does."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any as Anything

import numpy as np
import pytest

import foretell
from foretell.certify.outcomes import find_exits, replay_rules
from foretell.certify.replay import Study, study
from foretell.errors import RecipeError, RequestError
from foretell.evaluation.run import Evaluation
from foretell.loop.protocols import Stop
from foretell.policies.region.masked import Masked
from foretell.policies.stop.combined import All, Any
from foretell.policies.stop.families import FAMILIES, Family, find_families, with_token_clock
from foretell.policies.stop.never import Never
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.scales import LogOdds
from foretell.policies.stop.schedules import Linear, Staged
from foretell.policies.stop.stable import Stable
from foretell.policies.stop.sure import Sure
from foretell.recipes.text import format_value, parse_value


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Of a model that is right and sure now and then."""
    return study(Evaluation("tiny", "countdown", ("full",), tmp_path_factory.mktemp("study"), limit=12, seed=5))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_shortcut_is_the_replay(name: str, studied: Study) -> None:
    family, traces = FAMILIES[name], [case.trace for case in studied.cases[:5]]
    rules = family.rules[::9]
    found = find_exits(traces, rules, family.region)
    assert found == [[trace.replay(rule, family.region) for rule in rules] for trace in traces]
    assert len({step for steps in found for step in steps}) > 2, "the members differ on this model"


def test_traces_of_any_length_are_asked_together(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts and texts of several lengths, more traces than are asked at once, and one left over."""
    engine = foretell.load(checkpoint)
    prompts = ["Tom has 3 boxes.", "Tom has 3 boxes with 4 apples each.", "He eats 5."]
    asked: dict[str, Anything] = {"max_new_tokens": 12, "answer_length": 3, "stop_at_eos": True, "remasking": "random"}
    asked["recipe"] = "full sample=gumbel(temperature=3.0)"
    texts = [one for seed in range(11) for one in engine.generate(prompts, trace=True, seed=seed, **asked)]
    made = [one.trace for one in texts if one.trace is not None]
    assert len({len(trace) for trace in made}) > 1
    rules: list[Stop] = [Stable(steps, inf) for steps in (4, 3, 2, 1)] + [
        Prophet(Linear(x, x)) for x in (1.0, 0.5, 0.1)
    ]
    expected = [[trace.replay(rule, Masked()) for rule in rules] for trace in made]
    assert len({step for steps in expected for step in steps}) > 4
    for size in (1, 3, 64):
        monkeypatch.setattr("foretell.certify.outcomes.TRACES_PER_BATCH", size)
        assert find_exits(made, rules, Masked()) == expected
    longer = engine.generate(prompts[0], trace=True, **(asked | {"max_new_tokens": 14})).trace
    assert longer is not None
    mixed = [made[0], longer, made[1]]
    assert find_exits(mixed, rules) == [[trace.replay(rule) for rule in rules] for trace in mixed]


def test_rules_share_a_score_only_if_it_is_the_same(studied: Study) -> None:
    """Rules of all kinds in one call, so that a rule would take another one's score if their keys were equal."""
    taus = [Linear(bar, bar) for bar in (0.1, 0.3, 1.0, 3.0, 9.0)]
    kinds: list[dict[str, Anything]] = [
        {}, {"reduce": "min"}, {"reduce": "quantile"}, {"reduce": "quantile", "q": 0.7}, {"over": "masked"},
        {"scale": LogOdds()}, {"clock": "tokens"},
    ]  # fmt: skip
    rules: list[Stop] = [Prophet(tau, **kind) for tau in taus for kind in kinds]
    rules += [Sure(0.05), Sure(0.05, over="masked"), Stable(1, inf), Stable(1, 0.05), Stable(3, 0.05), Persistent(2)]
    rules += [Persistent(9), All((rules[0], Stable(1, inf))), Any((rules[0], Stable(1, inf))), Never()]
    traces = [case.trace for case in studied.cases]
    assert find_exits(traces, rules) == [[trace.replay(rule) for rule in rules] for trace in traces]


def test_grids_are_fine_and_in_order() -> None:
    for family in FAMILIES.values():
        falling = family.settings if family.settings[0] > family.settings[-1] else family.settings[::-1]
        ratios = np.array(falling[:-1]) / np.array(falling[1:])
        assert (ratios > 1).all()
        assert np.median(ratios) < 1.06


@pytest.mark.parametrize("name", FAMILIES)
def test_a_bolder_member_stops_no_later(name: str, studied: Study) -> None:
    family = FAMILIES[name]
    steps = replay_rules(studied.cases, family.rules, family.region).steps
    assert (np.diff(steps, axis=0) <= 0).all()
    assert steps[0].mean() > steps[-1].mean()


@pytest.mark.parametrize("name", FAMILIES)
def test_members_have_a_text_that_reads_back(name: str) -> None:
    family = FAMILIES[name]
    assert len({format_value(rule) for rule in family.rules}) == len(family.settings)
    for rule in family.rules:
        assert parse_value(Stop, format_value(rule), "stop") == rule


def test_published_thresholds_are_members() -> None:
    assert FAMILIES["prophet"].rule(1.0) == Prophet()
    assert FAMILIES["linear"].rule(1.0) == Prophet(Linear())
    assert FAMILIES["prophet-min"].rule(2.0) == Prophet(Staged(15.0, 10.0, 5.0), reduce="min")
    assert FAMILIES["stable"].rule(0.005) == Stable()
    for family in FAMILIES.values():
        assert family.published is None or family.published in family.settings
    with pytest.raises(RecipeError, match="no member at 3"):
        Family("mine", "", "n", (1.0, 2.0), FAMILIES["prophet"].rule, published=3.0)
    with pytest.raises(RecipeError, match="no members"):
        Family("mine", "", "n", (), FAMILIES["prophet"].rule)


def test_families_by_name() -> None:
    own = Family("mine", "never", "n", (1.0,), lambda _: Never())
    assert find_families(own) == (own,)
    assert find_families("sched")[0].region == Masked()
    assert [one.name for one in find_families(["entropy", own])] == ["entropy", "mine"]
    every = find_families(["all", own])
    assert {one.name for one in every} == {*FAMILIES, "mine"} - {"sched"}
    for names, says in (
        ("prophet-mim", "did you mean 'prophet-min'"),
        ([], "needs at least one family"),
        (["entropy", "all"], "each family can be given once"),
        (["entropy", "sched"], "read different regions"),
    ):
        with pytest.raises(RequestError, match=says):
            find_families(names)


def test_only_an_unsaid_clock_is_set() -> None:
    plain, by_steps = Prophet(Linear(2, 1)), Prophet(Linear(2, 1), clock="steps")
    rules = (plain, by_steps, Any((plain, All((by_steps, plain)))), Never())
    family = with_token_clock(Family("mine", "", "n", (0, 1, 2, 3), lambda index: rules[int(index)]))
    by_tokens = replace(plain, clock="tokens")
    assert family.rules == (by_tokens, by_steps, Any((by_tokens, All((by_steps, by_tokens)))), Never())


def test_outcomes_are_those_of_the_records(studied: Study) -> None:
    rules: tuple[Stop, ...] = (Never(), Stable(4, inf), Prophet(Linear(0.9, 0.2)), Prophet(Staged(0, 0, 0)))
    found = replay_rules(studied.cases, rules)
    for row, rule in enumerate(rules):
        records = studied.replay("x", rule)
        assert found.steps[row].tolist() == [record.steps for record in records]
        differs = [a.answer != b.record.answer for a, b in zip(records, studied.cases, strict=True)]
        assert found.losses("answer")[row].tolist() == differs
        lost = [b.record.correct and not a.correct for a, b in zip(records, studied.cases, strict=True)]
        assert found.losses("success")[row].tolist() == lost
    assert found.losses("answer")[0].sum() == 0 < found.losses("answer")[-1].sum()
    assert found.speedups()[0] == 1.0
    assert found.speedups()[-1] == found.full.mean()
    with pytest.raises(RequestError, match="unknown loss 'accuracy'"):
        found.losses("accuracy")
