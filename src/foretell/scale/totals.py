"""Add up the metrics of all replicas. Counters and histograms never fall; gauges are the current ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

Labels = tuple[tuple[str, str], ...]
OWN = ("foretell_requests", "foretell_request_seconds")  # the front counts these for all replicas
SHARE = "foretell_padding_share"
NEEDED, COMPUTED = "foretell_columns_needed_total", "foretell_columns_computed_total"


class Totals(Collector):
    """The metrics of replicas by name. A replica that has gone keeps its part of the counters."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}  # name, kind and help of each, without samples
        self._latest: dict[str, dict[tuple[str, str, Labels], float]] = {}
        self._gone: dict[tuple[str, str, Labels], float] = {}

    def describe(self) -> list[Metric]:
        return []  # nothing is read before the first scrape

    def update(self, texts: Mapping[str, str]) -> None:
        """Replace what is known by the texts of all replicas that are there now."""
        for name in self._latest.keys() - texts.keys():
            for key, value in self._latest.pop(name).items():
                if self._families[key[0]].type != "gauge":
                    self._gone[key] = self._gone.get(key, 0.0) + value
        for name, text in texts.items():
            self._latest[name] = dict(self._read(text))

    def _read(self, text: str) -> Iterator[tuple[tuple[str, str, Labels], float]]:
        for family in text_string_to_metric_families(text):
            if family.name in OWN or family.name.endswith("_created"):
                continue
            self._families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                yield (family.name, sample.name, tuple(sorted(sample.labels.items()))), sample.value

    def collect(self) -> Iterator[Metric]:
        """Yield every family with the sum of its samples."""
        sums = dict(self._gone)
        for samples in self._latest.values():
            for key, value in samples.items():
                sums[key] = sums.get(key, 0.0) + value
        made = {
            name: Metric(name, one.documentation, one.type) for name, one in self._families.items() if name != SHARE
        }
        for (family, sample, labels), value in sums.items():
            if family != SHARE:
                made[family].add_sample(sample, dict(labels), value)
        yield from made.values()
        needed, computed = (sum(value for key, value in sums.items() if key[1] == name) for name in (NEEDED, COMPUTED))
        if computed:
            yield GaugeMetricFamily(SHARE, "Share of computed columns that no row needed.", 1 - needed / computed)
