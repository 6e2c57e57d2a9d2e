"""Every benchmark by name: the public ones of the paper and the bundled model's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foretell.errors import RequestError, unknown
from foretell.lab.benchmark import Benchmark
from foretell.lab.bundled import BUNDLED

CATALOGUE: dict[str, Benchmark] = dict(BUNDLED)


def benchmark_named(name: str, allow_code_execution: bool = False) -> Benchmark:
    """The benchmark of that name; `allow_code_execution` lets it run programs that a model wrote."""
    if name not in CATALOGUE:
        raise RequestError(unknown("task", name, CATALOGUE))
    found: Any = CATALOGUE[name]
    if allow_code_execution and hasattr(found, "allow_code_execution"):
        found = replace(found, allow_code_execution=True)
    chosen: Benchmark = found
    return chosen
