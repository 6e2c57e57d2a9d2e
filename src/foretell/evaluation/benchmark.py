"""What an evaluation needs to know of a benchmark: its examples, their layout, where the answer is, what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from foretell.engine.engine import Completion
from foretell.models.chat import Message
from foretell.policies.stop.schedules import Staged


@dataclass(frozen=True, slots=True)
class Example:
    """One question."""

    id: str  # unique in its benchmark, and the same on every machine
    prompt: str | tuple[Message, ...]
    gold: str  # the right answer, in the form that `extract` gives
    data: Mapping[str, Any] = field(default_factory=dict)  # what grading needs beyond that
    options: Mapping[str, Any] = field(default_factory=dict)  # what `generate` needs for this example alone, e.g. pins


class Benchmark(Protocol):
    """One benchmark, as the paper runs it."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> Mapping[str, Any]:
        """What `Engine.generate` is asked for: window, steps, block length, suffix, answer region."""

    @property
    def thresholds(self) -> Staged:
        """The paper's thresholds for Prophet on this benchmark."""

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        """The examples, from a file or folder `source`, else from FORETELL_DATA, else from the hub.

        `limit` takes that many, chosen and ordered by `seed`; None takes all, in the file's order.
        """

    def extract(self, completion: Completion) -> str | None:
        """The answer that a completion gives, normalised, or None."""

    def grade(self, example: Example, answer: str | None) -> bool: ...


def strict(benchmark: Benchmark) -> Benchmark:
    """The same benchmark, which reads only answers that are stated; one that never falls back stays as it is."""
    known: Any = benchmark
    return replace(known, strict=True) if hasattr(benchmark, "strict") else benchmark
