"""A benchmark without its suffix prompt: nothing is pinned, so the model chooses the position of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.engine.engine import Completion
from foretell.evaluation.benchmark import Benchmark, Example, make_strict
from foretell.policies.stop.schedules import Staged

ANNOUNCEMENT = "The answer is"
KEPT = ("max_new_tokens", "steps", "block_length")


@dataclass(frozen=True, slots=True)
class WithoutSuffix:
    """Implements `Benchmark`, with the questions and the window of `inner`."""

    inner: Benchmark
    strict: bool = False

    @property
    def name(self) -> str:
        return f"{self.inner.name}-free"

    @property
    def options(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.inner.options.items() if name in KEPT}

    @property
    def thresholds(self) -> Staged:
        return self.inner.thresholds

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        return self.inner.examples(source, limit, seed)

    def extract(self, completion: Completion) -> str | None:
        return (make_strict(self.inner) if self.strict else self.inner).extract(completion)

    def grade(self, example: Example, answer: str | None) -> bool:
        return self.inner.grade(example, answer)


def has_suffix(benchmark: Benchmark) -> bool:
    """Whether a suffix prompt is pinned before the answer."""
    options = benchmark.options
    return any(ANNOUNCEMENT in str(text) for text in (options.get("suffix"), *options.get("pins", {}).values()))
