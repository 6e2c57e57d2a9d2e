"""Climbs: bad rungs are rarely taken, good ones soon, and drift leads back down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from foretell.certify.audit import PATIENT, AuditState, Entry, Event, Header, key_of
from foretell.certify.betting import EProcess, log_wealths, zeros_needed
from foretell.certify.climb import _place_stop, export, place_ladder
from foretell.certify.ladders import TOLERANCES, ModelScale
from foretell.certify.losses import LOSSES
from foretell.engine.engine import load
from foretell.engine.options import RequestTemplate
from foretell.errors import RequestError
from foretell.policies.stop.families import FAMILIES

RISK, DELTA = 0.1, 0.1
GOAL: dict[str, Any] = {"model": "m", "model_sha256": "0", "dtype": "float32", "risk": RISK, "confidence": 1 - DELTA}
GOAL |= {"loss": "answer", "graded": False, "share": 0.5, "against": "full", "climbs": True}
LADDER = ["full transfer=threshold(0.9)", "full transfer=threshold(0.8)", "full transfer=threshold(0.7)"]


def header(rungs: int = 3, **more: Any) -> Header:
    return Header(**{**GOAL, **more}, rungs=LADDER[:rungs])


def entry(
    state: AuditState,
    number: int,
    losses: Sequence[float | None],
    label: str | None = None,
    costs: Sequence[int] = (20, 10, 5, 4),
) -> Entry:
    """Return an audit; `costs` are the forwards of rungs 0, 1, ..."""
    forwards = [costs[0], *(None if loss is None else cost for loss, cost in zip(losses, costs[1:], strict=False))]
    return Entry(number, key_of(number, ""), label, state.serving(label), list(losses), forwards)


def climb(
    state: AuditState,
    losses: Iterable[Sequence[float]],
    ahead: int | None = None,
    costs: Sequence[int] = (20, 10, 5, 4),
) -> list[Event]:
    """Audit requests as `Climb` would: the rung in use, and those that are not earned yet."""
    for number, drawn in enumerate(losses, state.audits):
        wanted = {state.serving(None), *state.explored(ahead)}
        made = [loss if rung in wanted else None for rung, loss in enumerate(drawn, 1)]
        state.add(entry(state, number, made, costs=costs))
    return state.events


def draw(seed: int, size: int, *risks: float) -> np.ndarray[Any, Any]:
    """Return losses [size, rungs] that depend on each other: whoever loses on a rung loses on all worse ones."""
    return (np.random.default_rng(seed).random((size, 1)) < np.array(risks)).astype(float)


def count_taken(losses: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return how many rungs each of many climbs ever takes, given losses [climbs, size, rungs], by the definition."""
    peaks = np.stack([log_wealths(losses[..., rung], RISK, "above", graded=False).max(axis=1) for rung in range(3)], 1)
    found: np.ndarray[Any, Any] = np.cumprod(peaks >= -math.log(DELTA), axis=1).sum(axis=1)
    return found


@pytest.mark.parametrize("risks", [(0.101, 0.101, 0.101), (0.02, 0.101, 0.11), (0.0, 0.0, 0.101), (0.101, 0.0, 0.0)])
def test_a_bad_rung_is_taken_in_at_most_delta_of_the_climbs(risks: tuple[float, ...]) -> None:
    """Also if a good rung stands behind a bad one, and however the losses of the rungs depend on each other."""
    runs = 2000
    losses = (np.random.default_rng(1).random((runs, 500, 1)) < np.array(risks)).astype(float)
    bad = sum(risk <= RISK for risk in risks[: next(at for at, risk in enumerate(risks) if risk > RISK)])
    taken = int((count_taken(losses) > bad).sum())
    assert taken <= stats.binom.ppf(0.999, runs, DELTA)
    assert (count_taken(losses) >= bad).mean() > 0.95  # good ones are earned


@pytest.mark.parametrize("ahead", [None, 1])
def test_the_state_takes_rungs_by_the_definition(ahead: int | None) -> None:
    """Testing rungs at the same time changes when they are taken, and never which losses decide."""
    for seed in range(25):
        losses = draw(seed, 300, 0.02, 0.06, 0.14)
        state = AuditState(header(confidence=1 - DELTA))
        climb(state, losses, ahead)
        ups = [event for event in state.events if event.kind == "earned"]
        if any(event.kind == "alarm" for event in state.events):
            continue
        assert state.rung == state.earned == len(ups)
        if ahead is None and not any(test.rejects(DELTA) for test in state.large):
            assert state.rung == count_taken(losses[None])[0]


def test_rungs_ahead_save_audits() -> None:
    """Three rungs without losses are earned with the audits of one, and one after another with three times as many."""
    one = zeros_needed(RISK, DELTA, graded=False)
    for ahead, factor in ((None, 1), (1, 3)):
        state = AuditState(header())
        climb(state, draw(0, factor * one - 1, 0, 0, 0), ahead)
        assert state.rung == factor - 1
        assert state.needed(state.rung + 1) in (1, 2)  # one more audit, of one in two requests
        climb(state, draw(0, 1, 0, 0, 0), ahead)
        assert state.rung == 3


def test_a_bad_rung_is_not_explored_any_more() -> None:
    state = AuditState(header())
    climb(state, draw(0, 60, 0.0, 0.5, 0.0))
    assert state.rung == 1
    assert state.explored() == []
    assert len(state.losses[2]) < 30
    assert len(state.losses[3]) == len(state.losses[2])  # nothing above it can be earned, so it is not decoded either


def test_the_share_falls_when_nothing_is_left_to_earn_or_it_takes_long() -> None:
    state = AuditState(header(rest=0.02))
    assert state.share == 0.5
    climb(state, draw(0, 60, 0.0, 0.0, 0.0))
    assert (state.rung, state.share) == (3, 0.02)
    slow = AuditState(header(1, rest=0.02))
    patience = PATIENT * zeros_needed(RISK, DELTA, graded=False)
    losses = np.tile([[0.0]] * 9 + [[1.0]], (patience // 10, 1))  # at exactly eps
    climb(slow, losses[: patience - 1])
    assert (slow.rung, slow.share) == (0, 0.5)
    climb(slow, losses[:1])
    assert (slow.rung, slow.share, slow.explored()) == (0, 0.02, [1])  # it goes on, less often


def test_drift_steps_down_once_per_alarm_and_not_up_again() -> None:
    state = AuditState(header())
    climb(state, draw(0, 60, 0.0, 0.0, 0.0))
    events = climb(state, draw(1, 400, 0.0, 0.4, 0.4))
    assert [(event.kind, event.rung) for event in events] == [
        ("earned", 1), ("earned", 2), ("earned", 3), ("use", 3), ("alarm", 3), ("use", 2), ("alarm", 2), ("use", 1)
    ]  # fmt: skip
    assert (state.rung, state.top, state.explored()) == (1, 1, [])
    alarms = [event.audits for event in events if event.kind == "alarm"]
    assert max(alarms) < 120
    climb(state, draw(2, 300, 0.0, 0.0, 0.0))
    assert state.rung == 1
    every = AuditState(header())
    climb(every, draw(0, 60, 0.0, 0.0, 0.0))
    climb(every, draw(1, 600, 0.9, 0.9, 0.9))
    assert (every.rung, every.serving(None)) == (0, 0)  # full decoding


def test_an_alarm_of_a_label_steps_down_for_this_label() -> None:
    state = AuditState(header())
    climb(state, draw(0, 60, 0.0, 0.0, 0.0))
    for number in range(600):
        label = "rare" if number % 25 == 0 else "usual"
        bad = float(label == "rare")
        state.add(entry(state, 100 + number, [0.0, 0.0, bad], label))
    assert [(event.kind, event.label) for event in state.events[4:]] == [("alarm", "rare")]
    assert (state.serving("rare"), state.serving("usual"), state.serving(None)) == (2, 3, 3)
    made = export(state)
    assert (made.rung, made.recipe) == (1, LADDER[1]), "rung 3 has no more losses of this label"
    climb(state, draw(3, 600, 0.9, 0.9, 0.9))
    assert state.rung == state.shared < 2, "the label's limit is above what is in use"


def test_losses_of_a_rung_that_is_no_longer_in_use_raise_no_alarm() -> None:
    """A request that was answered by another rung is evidence about that one only."""
    state = AuditState(header(1))
    late = [entry(state, number, [1.0]) for number in range(500, 540)]  # answered in full
    climb(state, draw(0, 60, 0.0))
    assert state.rung == 1
    for one in late:
        state.add(one)
    assert state.rung == 1
    assert state.recent == [0.0] * len(state.recent)


def test_graded_losses_are_tested_by_their_own_bets() -> None:
    graded, yes_no = AuditState(header(graded=True)), AuditState(header())
    for state in (graded, yes_no):
        climb(state, np.full((20, 3), 0.02))
    same = EProcess(RISK, "above")
    for _ in range(20):
        same.add(0.02)
    assert graded.small[1].log_wealth == same.log_wealth != yes_no.small[1].log_wealth


def test_the_rung_in_use_is_exported() -> None:
    state = AuditState(header(window=24, pins=[]))
    before = export(state)
    assert (before.certified, before.recipe, before.speedup) == (False, "full", 1.0)
    assert "no rung that is faster has been earned with 0 audits" in before.says
    climb(state, draw(0, 60, 0.0, 0.0, 0.3))
    made = export(state)
    assert (made.certified, made.recipe, made.rung, made.speedup) == (True, LADDER[1], 1, 4.0)
    assert (made.risk, made.confidence, made.loss, made.window) == (RISK, 1 - DELTA, "answer", 24)
    assert 0 < made.upper_bound <= RISK
    risky = AuditState(header())
    climb(risky, draw(0, 600, 0.0, 0.02, 0.5))
    assert export(risky).empirical_risk == np.mean(risky.losses[2]) > 0
    with pytest.raises(RequestError, match="only a climb can be exported"):
        export(AuditState(replace(header(), climbs=False)))


def test_a_rung_is_watched_from_when_it_is_used() -> None:
    """What was seen of the rung before, or of another rung, does not count."""
    state = AuditState(header())
    climb(state, draw(0, 60, 0.0, 0.0, 0.0))
    assert len(state.recent) == 60 - zeros_needed(RISK, DELTA, graded=False)
    while state.rung == 3:
        climb(state, draw(1, 1, 1.0, 1.0, 1.0))
    assert (state.rung, state.recent, state.evidence()) == (2, [], 1.0)
    climb(state, draw(1, 1, 0.0, 0.0, 0.0))
    assert (state.rung, state.recent) == (2, [0.0])


def test_the_fastest_earned_rung_is_used() -> None:
    """Also if it is not the last one, or is full decoding. Later rungs are tested and earned all the same."""
    one = zeros_needed(RISK, DELTA, graded=False)
    state = AuditState(header())
    climb(state, draw(0, one, 0, 0, 0), 1, costs=(20, 10, 15, 4))
    assert (state.earned, state.rung, state.serving(None), state.explored()) == (1, 1, 1, [2, 3])
    climb(state, draw(0, one, 0, 0, 0), 1, costs=(20, 10, 15, 4))
    assert (state.earned, state.rung, state.explored()) == (2, 1, [3])
    assert len(state.recent) == one  # the test of the rung in use goes on
    level = state.level(None)
    climb(state, draw(0, one, 0, 0, 0), 1, costs=(20, 10, 15, 4))
    assert (state.earned, state.rung, state.recent) == (3, 3, [])
    assert state.level(None) == pytest.approx(level / 2)  # 1 / (3 * 4) instead of 1 / (2 * 3)
    assert [(event.kind, event.rung) for event in state.events] == [
        ("earned", 1), ("use", 1), ("earned", 2), ("earned", 3), ("use", 3)
    ]  # fmt: skip
    slow = AuditState(header())
    climb(slow, draw(0, one, 0, 0, 0), costs=(20, 20, 21, 30))
    assert (slow.earned, slow.rung, slow.share) == (3, 0, 0.5)
    made = export(slow)
    assert (made.certified, made.recipe, made.speedup) == (False, "full", 1.0)


def test_a_rung_that_is_not_earned_is_not_used_however_fast_it_is() -> None:
    state = AuditState(header())
    climb(state, draw(0, 300, 0.0, 0.101, 0.0), costs=(20, 15, 4, 2))
    assert (state.earned, state.rung, state.serving("label")) == (1, 1, 1)
    assert state.speedup(3) == 10


def test_an_alarm_takes_away_the_rung_in_use_and_all_after_it() -> None:
    costs = (20, 15, 5, 10)
    state = AuditState(header())
    climb(state, draw(0, 30, 0, 0, 0), costs=costs)
    assert (state.earned, state.rung) == (3, 2)
    climb(state, draw(1, 60, 0.0, 0.9, 0.0), costs=costs)
    assert (state.earned, state.top, state.rung) == (1, 1, 1)  # not rung 3, which was earned only if rung 2 was
    assert state.explored() == []
    climb(state, draw(2, 100, 0.0, 0.0, 0.0), costs=costs)
    assert (state.earned, state.rung) == (1, 1)


def test_after_an_alarm_of_a_label_it_gets_the_fastest_rung_before() -> None:
    costs = (20, 5, 15, 4)
    state = AuditState(header())
    climb(state, draw(0, 30, 0, 0, 0), costs=costs)
    assert state.rung == 3
    for number in range(600):
        label = "rare" if number % 25 == 0 else "usual"
        state.add(entry(state, 100 + number, [None, None, float(label == "rare")], label, costs))
    assert (state.rung, state.caps) == (3, {"rare": 2})
    assert (state.serving("rare"), state.serving("usual"), state.serving(None)) == (1, 3, 3)


def test_the_rung_in_use_stays_if_the_speed_of_another_is_unknown() -> None:
    state = AuditState(header(2))
    for number in range(60):
        made = entry(state, number, [0.0, 0.0])
        state.add(replace(made, forwards=[20, 15, None]))
    assert (state.earned, state.rung, state.speedup(2)) == (2, 1, None)


@pytest.fixture(scope="module")
def full(checkpoint: Path) -> RequestTemplate:
    return load(checkpoint).template(max_new_tokens=12, suffix="The answer is", answer_length=2)


@pytest.mark.parametrize(
    ("lossless", "forwards", "loss", "fills", "place"),
    [
        (10, 5, "answer", False, 7),  # two settings before the boldest rule without a loss
        (3, 5, "answer", False, 0),
        (2, 5, "answer", False, None),  # no setting is that safe
        (0, 5, "answer", False, None),
        (10, 6, "answer", False, None),  # audits in full would cost as much as it saves
        (10, 5, "success", False, 7),
        (10, 5, "text", False, None),  # a rule that watches the answer changes the rest
        (10, 5, "answer", True, None),
    ],
)
def test_the_stopping_rule_of_a_ladder(
    full: RequestTemplate, lossless: int, forwards: int, loss: str, fills: bool, place: int | None
) -> None:
    """Rules from `lossless` on lose in the pilot, and the last before them takes `forwards`, each earlier one 1 more.

    Full decoding takes 10 forwards, and a fifth of the requests is audited.
    """
    rules = FAMILIES["entropy"].rules

    def replay(_one: Any, _done: Any, _trace: Any, template: RequestTemplate) -> Any:
        at = rules.index(template.recipe.stop)
        return SimpleNamespace(at=at, forwards=forwards + lossless - 1 - at)

    def measure(_one: Any, _done: Any, early: Any) -> float:
        return float(early.at >= lossless)

    subject: Any = SimpleNamespace(loss=LOSSES[loss], replay=replay, measure=measure)
    pilot: Any = [(number, SimpleNamespace(trace=True, forwards=10)) for number in range(3)]
    found = [*_place_stop(subject, pilot, replace(full, fills=fills), 0.2)]
    assert found == ([] if place is None else [replace(full.recipe, stop=rules[place])])


def test_a_ladder_begins_with_a_stopping_rule_and_safe_bars(
    full: RequestTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a model whose confidence is 1 - t at the tolerance t."""
    bars = tuple(1 - tolerance for tolerance in TOLERANCES)
    scale = ModelScale(dict.fromkeys(("confidence", "gap", "entropy"), bars), {}, 9, 9)
    monkeypatch.setattr(ModelScale, "of", classmethod(lambda _, __: scale))
    rule = replace(full.recipe, stop=FAMILIES["entropy"].rules[0])
    monkeypatch.setattr("foretell.certify.climb._place_stop", lambda *_: [rule])
    first, *transfers = place_ladder(SimpleNamespace(), [], full, 0.2)  # type: ignore[arg-type]
    assert first == rule
    values = [one.transfer.value for one in transfers]  # type: ignore[attr-defined]
    assert values == sorted(values, reverse=True)
    assert 1 - values[0] == pytest.approx(TOLERANCES[0] / 64, rel=0.1)
    assert 1 - values[2] == pytest.approx(TOLERANCES[0] / 4, rel=0.1)
    assert len(values) == 12
