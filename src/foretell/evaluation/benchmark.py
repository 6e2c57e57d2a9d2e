"""The interface of a benchmark: its examples, their layout, how to extract an answer and how to grade it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from foretell.engine.engine import Completion
from foretell.engine.masked_text import MaskedText
from foretell.models.chat import Message
from foretell.policies.stop.schedules import Staged


@dataclass(frozen=True, slots=True)
class Example:
    """One question."""

    id: str  # unique in its benchmark, and the same on every machine
    prompt: str | tuple[Message, ...] | MaskedText
    gold: str  # the right answer, in the form that `extract` returns
    data: Mapping[str, Any] = field(default_factory=dict)  # further data for grading
    options: Mapping[str, Any] = field(default_factory=dict)  # options of `generate` for this example, e.g. pins


class Benchmark(Protocol):
    """One benchmark, as the paper runs it."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Options for `Engine.generate`: window, steps, block length, suffix, answer region."""

    @property
    def thresholds(self) -> Staged:
        """The paper's thresholds for Prophet on this benchmark."""

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        """Read the examples from the file or folder `source`, else from FORETELL_DATA, else from the hub.

        Return `limit` examples, chosen and ordered by `seed`; None returns all in the file's order.
        """

    def extract(self, completion: Completion) -> str | None:
        """Return the answer in a completion, normalised, or None if there is none."""

    def grade(self, example: Example, answer: str | None) -> bool: ...


def make_strict(benchmark: Benchmark) -> Benchmark:
    """Return the benchmark in strict mode (only stated answers count). If it has no such mode, it is unchanged."""
    known: Any = benchmark
    return replace(known, strict=True) if hasattr(benchmark, "strict") else benchmark


def make_independent(benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with independent draws, which may repeat, if it generates its examples.

    The examples of a file are a random sample already, so such a benchmark is unchanged.
    """
    known: Any = benchmark
    if hasattr(benchmark, "inner"):
        known = replace(known, inner=make_independent(known.inner))
    made: Benchmark = replace(known, distinct=False) if hasattr(benchmark, "distinct") else known
    return made
