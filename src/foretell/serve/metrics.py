"""Prometheus metrics of one server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from foretell.certify.supervise import Supervisor
from foretell.engine.completion import Completion
from foretell.engine.outcome import Outcome
from foretell.serve.worker import Worker

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, inf)
RATES = (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, inf)


class Metrics:
    """Counters that requests increase, and gauges that are read at every scrape."""

    def __init__(self, worker: Worker, supervisor: Supervisor | None) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "foretell_requests", "Requests by route and outcome.", ("route", "outcome"), registry=self.registry
        )
        self.latency = Histogram(
            "foretell_request_seconds", "Time from arrival to the last byte.", buckets=SECONDS, registry=self.registry
        )
        self.queued = Histogram(
            "foretell_queue_seconds", "Time before the first step.", buckets=SECONDS, registry=self.registry
        )
        self.steps = Counter("foretell_steps", "Steps that were taken.", registry=self.registry)
        self.saved = Counter(
            "foretell_steps_saved", "Steps of the budget that were not needed.", registry=self.registry
        )
        self.forwards = Counter("foretell_forwards", "Forward passes, counted per request.", registry=self.registry)
        self.tokens = Counter("foretell_tokens", "Tokens of answers.", registry=self.registry)
        self.prompt_tokens = Counter("foretell_prompt_tokens", "Tokens of prompts.", registry=self.registry)
        self.rate = Histogram(
            "foretell_tokens_per_forward", "Tokens of an answer per pass.", buckets=RATES, registry=self.registry
        )
        self.needed = Counter("foretell_columns_needed", "Columns that rows needed.", registry=self.registry)
        self.computed = Counter(
            "foretell_columns_computed", "Columns that were computed, with padding.", registry=self.registry
        )
        self.registry.register(_Gauges(worker, supervisor, self))

    def count(self, done: Completion) -> None:
        """Count the work of one decoded window."""
        self.steps.inc(done.steps)
        self.saved.inc(done.saved)
        self.forwards.inc(done.forwards)
        self.rate.observe(done.tokens_per_forward)
        self.needed.inc(done.columns_needed)
        self.computed.inc(done.columns_computed)

    def count_tokens(self, prompt: int, made: int, queued: Sequence[float]) -> None:
        """Count a finished request: its tokens, and how long each of its parts waited."""
        self.prompt_tokens.inc(prompt)
        self.tokens.inc(made)
        for seconds in queued:
            self.queued.observe(seconds)

    def count_outcome(self, outcome: Outcome) -> None:
        """Count the work of one canvas of a decision."""
        self.steps.inc(outcome.steps)
        self.forwards.inc(outcome.forwards)
        self.needed.inc(outcome.usage.columns_needed)
        self.computed.inc(outcome.usage.columns_computed)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    @property
    def padding(self) -> float:
        """The share of computed columns that no row needed."""
        needed, computed = self._value(self.needed), self._value(self.computed)
        return 1 - needed / computed if computed else 0.0

    @staticmethod
    def _value(counter: Counter) -> float:
        return next(sample.value for metric in counter.collect() for sample in metric.samples)


class _Gauges(Collector):
    """Reads the worker and the audits at every scrape."""

    def __init__(self, worker: Worker, supervisor: Supervisor | None, metrics: Metrics) -> None:
        self.worker, self.supervisor, self.metrics = worker, supervisor, metrics

    def describe(self) -> list[Metric]:
        return []  # nothing is read before the first scrape

    def collect(self) -> Iterator[Metric]:
        load = self.worker.load
        rows = min(load, self.worker.max_batch)
        yield GaugeMetricFamily("foretell_requests_waiting", "Requests that wait.", load - rows)
        yield GaugeMetricFamily("foretell_rows_running", "Requests that are being decoded.", rows)
        yield GaugeMetricFamily(
            "foretell_padding_share", "Share of computed columns that no row needed.", self.metrics.padding
        )
        state = None if self.supervisor is None else self.supervisor.state
        if state is None:
            return
        alarms = sum(event.kind == "alarm" for event in state.events)
        bound = state.bound(state.losses[state.rung]) if state.rung else 0.0
        yield GaugeMetricFamily("foretell_audits", "Requests that were also decoded in full.", state.audits)
        yield GaugeMetricFamily("foretell_audit_alarms", "Alarms of the audits.", alarms)
        yield GaugeMetricFamily("foretell_audit_rung", "Rung of the ladder in use; 0 is full decoding.", state.rung)
        yield GaugeMetricFamily("foretell_audit_risk_bound", "Upper bound of the risk of the rung in use.", bound)
