"""Programming benchmarks (HumanEval, MBPP): the code fences are pinned, and grading runs the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.engine.engine import Completion
from foretell.evaluation import answers
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.source import DataRow, Source, pick
from foretell.evaluation.sandbox.sandbox import Candidate, Limits, Verdict, run_tests
from foretell.policies.stop.schedules import Staged

WINDOW, FENCE = 512, 4
# 512 / 512 / 32, as in the paper. Each fence has four positions: depending on the vocabulary, the first takes two to
# four tokens, and the turn ends after the second one. The answer region is the body between them.
OPTIONS: Mapping[str, Any] = {
    "max_new_tokens": WINDOW,
    "steps": WINDOW,
    "block_length": 32,
    "suffix": "",
    "pins": {0: "```python\n", WINDOW - FENCE: "```"},
    "answer_start": FENCE,
    "answer_length": WINDOW - 2 * FENCE,
}


@dataclass(frozen=True, slots=True)
class Code:
    """Implements `Benchmark`. Grading runs code that the model wrote, so `allow_execution` must be set."""

    name: str
    source: Source
    example: Callable[[DataRow], Example]  # the example's `data` contains the "tests", and "names" to define
    program: Callable[[Example, str], str]  # returns the program to test, given the answer
    allow_execution: bool = False
    sandbox: str | None = None  # level; default: the strongest that works here, but not "limits"
    thresholds: Staged = Staged(7.5, 5.0, 4.5)
    strict: bool = False  # ignore code outside of fences

    @property
    def options(self) -> Mapping[str, Any]:
        return dict(OPTIONS)

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        return pick([self.example(row) for row in self.source.rows(source)], limit, seed)

    def extract(self, completion: Completion) -> str | None:
        return answers.find_code(completion.text, strict=self.strict)

    def grade(self, example: Example, answer: str | None) -> bool:
        return self.verdicts([example], [answer])[0].passed

    def verdicts(self, examples: Sequence[Example], answers: Sequence[str | None], jobs: int = 1) -> list[Verdict]:
        """Test each answer, `jobs` at a time, and return the verdicts. A missing answer fails."""
        candidates = [
            Candidate(
                "raise LookupError('no code was found')" if answer is None else self.program(example, answer),
                example.data["tests"],
                tuple(example.data["names"]),
            )
            for example, answer in zip(examples, answers, strict=True)
        ]
        return run_tests(
            candidates, allow_execution=self.allow_execution, level=self.sandbox, jobs=jobs, limits=Limits()
        )
