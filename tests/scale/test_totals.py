"""Metrics of several replicas as one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from foretell.scale.totals import Totals


def metrics(steps: int, waiting: int, needed: int, computed: int, *seconds: float) -> str:
    """Return the text of one replica."""
    registry = CollectorRegistry()
    Counter("foretell_requests", "By route.", ("route", "outcome"), registry=registry).labels("/a", "ok").inc(steps)
    Counter("foretell_steps", "Steps.", registry=registry).inc(steps)
    Counter("foretell_columns_needed", "Needed.", registry=registry).inc(needed)
    Counter("foretell_columns_computed", "Computed.", registry=registry).inc(computed)
    Gauge("foretell_requests_waiting", "Waiting.", registry=registry).set(waiting)
    Gauge("foretell_padding_share", "Share.", registry=registry).set(0.9)
    queued = Histogram("foretell_queue_seconds", "Queue.", buckets=(1, 2), registry=registry)
    for one in seconds:
        queued.observe(one)
    return generate_latest(registry).decode()


def read(totals: Totals) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(totals)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_they_are_added_up() -> None:
    totals = Totals()
    totals.update({"a": metrics(3, 1, 60, 100, 0.5), "b": metrics(4, 2, 20, 100, 1.5, 3)})
    found = read(totals)
    assert found["foretell_steps_total"] == 7
    assert found["foretell_requests_waiting"] == 3
    assert found["foretell_padding_share"] == 0.6
    assert [found[f"foretell_queue_seconds_bucket[{one}]"] for one in ("1.0", "2.0", "+Inf")] == [1, 2, 3]
    assert found["foretell_queue_seconds_sum"] == 5
    assert not any("created" in name or "foretell_requests_total" in name for name in found)


def test_counters_do_not_fall_when_a_replica_goes() -> None:
    totals = Totals()
    totals.update({"a": metrics(3, 1, 60, 100, 0.5), "b": metrics(4, 2, 20, 100)})
    totals.update({"b": metrics(5, 0, 20, 100)})
    totals.update({"b": metrics(6, 0, 20, 100), "c": metrics(1, 7, 0, 0, 0.5)})
    found = read(totals)
    assert found["foretell_steps_total"] == 10
    assert found["foretell_queue_seconds_count"] == 2
    assert found["foretell_requests_waiting"] == 7
    assert found["foretell_padding_share"] == 0.6


def test_nothing_is_known_before_a_replica_answers() -> None:
    assert read(Totals()) == {}
