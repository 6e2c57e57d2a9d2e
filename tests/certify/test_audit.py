"""Audits: who is chosen, what the tests conclude, and what a log survives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.certify import audit
from foretell.certify.audit import AuditState, DriftTest, Entry, Header, key_of, open_log, read_log
from foretell.certify.betting import bounds, place_bets
from foretell.errors import ForetellError, RequestError, StorageError

GOAL: dict[str, Any] = {"model": "m", "model_sha256": "0", "dtype": "float32", "risk": 0.01, "confidence": 0.95}
GOAL |= {"loss": "answer", "graded": False, "share": 0.1, "against": "full", "seed": "s"}
AUDIT = Header(**GOAL, rungs=["swift"])
RISK, DELTA = 0.01, 0.05


def entry(number: int, loss: float | None, label: str | None = None, used: int = 1, **more: Any) -> Entry:
    return Entry(number, key_of(number, ""), label, used, [loss], [20, 4], **more)


def drift_peaks(losses: np.ndarray[Any, Any], risk: float) -> np.ndarray[Any, Any]:
    """Return the largest wealth of many drift tests at once, after each of the losses [tests, n]."""
    stakes, logs = place_bets(risk, "at most")
    shares = np.exp(logs)
    wealth, waiting = np.tile(shares / 2, (len(losses), 1)), 0.5
    found = np.empty(losses.shape)
    for at in range(losses.shape[1]):
        left = 0.5 * audit.LATER / (at + 1 + audit.LATER)
        wealth = (wealth + shares * (waiting - left)) * (1 + stakes * (risk - losses[:, at : at + 1]))
        waiting = left
        found[:, at] = wealth.sum(axis=1) + waiting
    return np.maximum.accumulate(np.maximum(found, 1.0), axis=1)


def draw(rng: np.random.Generator, runs: int, *parts: tuple[int, float]) -> np.ndarray[Any, Any]:
    return np.concatenate([rng.random((runs, size)) < risk for size, risk in parts], axis=1).astype(float)


def test_the_choice_is_random_fixed_and_nested() -> None:
    keys = [key_of(number, "a prompt") for number in range(20_000)]
    chosen = {key for key in keys if AUDIT.chooses(key, 0.02)}
    assert 320 < len(chosen) < 480
    assert (
        chosen == {key for key in keys if AUDIT.chooses(key, 0.02)} <= {key for key in keys if AUDIT.chooses(key, 0.1)}
    )
    other = Header(**{**GOAL, "seed": "another"}, rungs=["swift"])
    assert {key for key in keys if other.chooses(key, 0.02)} != chosen
    assert not any(AUDIT.chooses(key, 0.0) for key in keys)
    assert all(AUDIT.chooses(key, 1.0) for key in keys)
    assert Header(**{name: value for name, value in GOAL.items() if name != "seed"}, rungs=["swift"]).seed != AUDIT.seed
    assert key_of(1, "a") != key_of(2, "a") != key_of(2, "b")


def test_a_drift_test_is_its_formula() -> None:
    losses = draw(np.random.default_rng(0), 1, (200, 0.01), (200, 0.2))
    losses[0, :50] *= 0.3
    test = DriftTest(RISK)
    peaks = []
    for loss in losses[0]:
        test.add(loss)
        peaks.append(test.peak)
    assert peaks == pytest.approx(drift_peaks(losses, RISK)[0])
    assert test.rejects(1 / peaks[-1])
    assert not test.rejects(0.999 / peaks[-1])


def test_a_bet_on_a_true_hypothesis_wins_nothing_on_average() -> None:
    """Whatever has happened before, the expected wealth after one more loss with the risk eps is the wealth now."""
    test = DriftTest(RISK)
    for loss in draw(np.random.default_rng(1), 1, (300, 0.05))[0]:
        before = test._wealth.sum() + test._waiting
        after = []
        for outcome in (0.0, 1.0):
            other = DriftTest(RISK)
            other.count, other._wealth, other._waiting = test.count, test._wealth, test._waiting
            other.add(outcome)
            after.append(other._wealth.sum() + other._waiting)
        assert (1 - RISK) * after[0] + RISK * after[1] == pytest.approx(before)
        test.add(float(loss))


def test_false_alarms_are_rare() -> None:
    """A million requests of which 2% are audited, at exactly the risk that is allowed."""
    peaks = drift_peaks(draw(np.random.default_rng(2), 400, (20_000, RISK)), RISK)[:, -1]
    assert (peaks >= 1 / DELTA).mean() <= DELTA
    assert (peaks >= 4).mean() <= 0.25 + 3 * np.sqrt(0.25 * 0.75 / 400)


@pytest.mark.parametrize(("quiet", "risk", "most"), [(0, 0.05, 200), (0, 0.1, 60), (2000, 0.05, 450), (2000, 0.1, 150)])
def test_drift_is_noticed(quiet: int, risk: float, most: int) -> None:
    """Half of the alarms come within a few hundred audits, also after a long time without losses."""
    peaks = drift_peaks(draw(np.random.default_rng(3), 100, (quiet, 0.002), (4 * most, risk)), RISK)
    alarms = np.where(peaks[:, -1] >= 2 / DELTA, (peaks >= 2 / DELTA).argmax(axis=1), quiet + 4 * most) - quiet
    assert np.median(alarms) <= most
    assert (alarms < 4 * most).mean() >= 0.95


def test_the_state_of_an_audit() -> None:
    state = AuditState(AUDIT)
    events = [event for number in range(40) for event in state.add(entry(number, float(number % 2)))]
    assert [(event.kind, event.label) for event in events] == [("alarm", None)]  # once
    assert (state.rung, state.drifted, state.serving(None)) == (1, True, 0)
    assert (state.audits, sum(state.losses[1]), state.speedup(1)) == (40, 20.0, 5.0)
    assert 0.3 < state.bound(state.losses[1]) < 0.8
    assert state.bound(state.losses[1]) == bounds(np.array(state.losses[1]), DELTA, graded=False)[1]
    assert state.bound([]) == 1.0
    assert state.evidence() >= 1 / state.level(None)
    assert state.share == 0.1


def test_a_label_has_its_own_alarm() -> None:
    """All requests together are fine, but one kind of them is not."""
    state = AuditState(AUDIT)
    events = []
    for number in range(12_000):
        bad = number % 400 == 0
        events += state.add(entry(number, float(bad), "long" if number % 80 == 0 else "short"))
        if events:
            break
    assert [(event.kind, event.label) for event in events] == [("alarm", "long")]
    assert state.serving("long") == 0
    assert state.serving("short") == state.serving("new") == state.serving(None) == 1


@pytest.mark.parametrize(("loss", "used"), [(None, 1), (None, 0), (1.0, 0)])
def test_only_answers_of_the_rung_in_use_are_watched(loss: float | None, used: int) -> None:
    """Requests that another rung answered say nothing about drift: neither for it nor against it."""
    state = AuditState(AUDIT)
    for number in range(30):
        state.add(entry(number, loss, "kind", used))
    assert (state.recent, state.by_label, state.evidence(), state.events) == ([], {}, 1.0, [])
    state.add(entry(30, 0.0, "kind"))
    assert (state.recent, state.by_label) == ([0.0], {"kind": [0.0]})


def test_levels_add_up_to_delta() -> None:
    state = AuditState(AUDIT)
    for number in range(300):
        state.add(entry(number, 0.0, f"label {number}"))
    levels = [state.level(None), *(state.level(f"label {number}") for number in range(300))]
    assert levels[:3] == pytest.approx([DELTA / 2, DELTA / 4, DELTA / 12])
    assert 0.99 * DELTA < sum(levels) <= DELTA
    climb = AuditState(Header(**GOAL, rungs=["a", "b"], climbs=True))
    assert climb.level(None) == pytest.approx(DELTA / 4)


def test_what_failed_in_full_is_no_evidence() -> None:
    state = AuditState(AUDIT)
    assert state.add(entry(1, None, error="NaN")) == []
    assert (state.failed, state.audits, state.losses[1]) == (1, 0, [])


def write(path: Path, losses: Sequence[float], header: Header = AUDIT) -> AuditState:
    with open_log(path) as log:
        state = log.start(header)
        for loss in losses:
            log.add(entry(len(log.keys), loss))
    return state


def test_a_log_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, [0.0, 1.0])
    with path.open("a") as file:
        file.write('{"id": 9, "key"')  # a process was killed here
    assert read_log(path).losses[1] == [0.0, 1.0]
    state = write(path, [0.5])
    again = read_log(path)
    assert again.losses[1] == state.losses[1] == [0.0, 1.0, 0.5]
    assert again.header == AUDIT
    assert again.evidence() == state.evidence()
    assert len(path.read_text().splitlines()) == 4
    assert [one.name for one in tmp_path.iterdir()] == ["log.jsonl"]  # no lock is left


def test_a_log_belongs_to_one_writer_and_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PATIENCE", 0.01)
    path = tmp_path / "log.jsonl"
    with open_log(path) as log:
        log.start(AUDIT)
        with pytest.raises(RequestError, match="another run is writing"), open_log(path):
            pass
        assert read_log(path).audits == 0  # but anyone may read it
    assert write(path, [], Header(**{**GOAL, "share": 0.5, "seed": "other"}, rungs=["swift"])).share == 0.5


OTHER: dict[str, Any] = {
    "model": "n", "model_sha256": "1", "dtype": "bfloat16", "risk": 0.02, "confidence": 0.9, "loss": "text",
    "graded": True, "against": "full steps=4", "rungs": ["other"], "climbs": True, "fills": True, "window": 8,
    "answer": [1, 2], "pins": [[0, 1]], "device": "cuda", "compile": True, "certificate": "1",
}  # fmt: skip


def test_what_a_run_that_continues_a_log_may_change(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, [])
    free = {"share": 0.5, "rest": 0.1, "pilot": ["k"], "torch": "0", "seed": "t", "options": {"max_new_tokens": 8}}
    assert {*OTHER, *free, "foretell_audit"} == {one.name for one in fields(Header)}
    for name, value in OTHER.items():
        with pytest.raises(RequestError, match=f"is about another run: its {name} is"):
            write(path, [], Header(**{**GOAL, "rungs": ["swift"], name: value}))
    with pytest.raises(RequestError, match="its chat is None, not False"):
        write(path, [], Header(**GOAL, rungs=["swift"], options={"chat": False}))
    for name, value in free.items():
        assert write(path, [], Header(**{**GOAL, "rungs": ["swift"], name: value})).header.risk == 0.01


def test_a_log_that_was_never_started_is_not_left(tmp_path: Path) -> None:
    with open_log(tmp_path / "log.jsonl"):
        pass
    assert list(tmp_path.iterdir()) == []


LINE = {"id": 1, "key": "k", "label": None, "used": 1, "losses": [0], "forwards": [1, 1]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7\n", "must be an object, got 7"),
        ("{\n", "not valid JSON"),
        ('{"id": 1}\n', "is missing"),
        (json.dumps({**LINE, "losses": [2.0]}) + "\n", "<= 1.0"),
        (json.dumps({**LINE, "losses": []}) + "\n", "ladder of 1"),
        (json.dumps({**LINE, "used": 2}) + "\n", "ladder of 1"),
        ("x" * (audit.LONGEST + 1), "more than 1,048,576 bytes"),
    ],
)
def test_damaged_logs(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "log.jsonl"
    write(path, [0.0])
    with path.open("a") as file:
        file.write(line)
    with pytest.raises(StorageError, match=f"log.jsonl, line 3: .*{message}"):
        read_log(path)


def test_damaged_headers(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("")
    with pytest.raises(StorageError, match="is empty"):
        read_log(path)
    write(path, [])
    stored = json.loads(path.read_text())
    for name, value in (("risk", 2), ("rungs", []), ("share", -1), ("foretell_audit", 2), ("new", 1)):
        path.write_text(json.dumps({**stored, name: value}) + "\n")
        with pytest.raises(ForetellError, match=r"log.jsonl, line 1"):
            read_log(path)
    path.write_text("".join(json.dumps(line) + "\n" for line in (stored, LINE, LINE)))
    with pytest.raises(StorageError, match="in the log twice"):
        read_log(path)
