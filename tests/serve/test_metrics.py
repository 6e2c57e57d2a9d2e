"""Gauges that are read when somebody asks: the queue, the batch, the padding and the audits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from foretell.engine.outcome import Usage
from foretell.serve.metrics import Metrics


def gauges(load: int, supervisor: Any = None, columns: tuple[int, int] = (0, 0)) -> dict[str, float]:
    worker: Any = SimpleNamespace(load=load, max_batch=8)
    metrics = Metrics(worker, supervisor)
    metrics.needed.inc(columns[0])
    metrics.computed.inc(columns[1])
    lines = [line.split() for line in metrics.text().decode().splitlines() if line[:1] != "#"]
    return {name: float(value) for name, value in lines}


def test_the_queue_is_what_does_not_fit_into_the_batch() -> None:
    for load, waiting, running in ((0, 0, 0), (8, 0, 8), (11, 3, 8)):
        found = gauges(load)
        assert (found["foretell_requests_waiting"], found["foretell_rows_running"]) == (waiting, running)


def test_padding_is_the_share_of_columns_that_nobody_needed() -> None:
    assert gauges(0)["foretell_padding_share"] == 0
    assert gauges(0, columns=(3, 4))["foretell_padding_share"] == 0.25


def test_the_work_of_a_decision_is_counted() -> None:
    worker: Any = SimpleNamespace(load=0, max_batch=8)
    metrics = Metrics(worker, None)
    outcome: Any = SimpleNamespace(steps=3, forwards=5, usage=Usage(7, 9))
    metrics.count_outcome(outcome)
    counters = (metrics.steps, metrics.forwards, metrics.needed, metrics.computed)
    assert [metrics._value(one) for one in counters] == [3, 5, 7, 9]


def test_audits_are_shown_with_their_alarms() -> None:
    events = [SimpleNamespace(kind=kind) for kind in ("earned", "alarm", "use", "alarm")]
    state = SimpleNamespace(events=events, audits=5, rung=2, losses=["none", "few", "some"], bound={"some": 0.04}.get)
    found = gauges(0, SimpleNamespace(state=state))
    names = ("audits", "audit_alarms", "audit_rung", "audit_risk_bound")
    assert [found[f"foretell_{name}"] for name in names] == [5, 2, 2, 0.04]
    state.rung = 0
    assert gauges(0, SimpleNamespace(state=state))["foretell_audit_risk_bound"] == 0
    assert "foretell_audits" not in gauges(0)
