"""Countdown: reach the last number from the others with + - * /, each used once. 992 of 1000 rows are examples.

{"input": "86,28,13,31,96", "output": "86+28=114,31-13=18,114-18=96"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.engine.engine import Completion
from foretell.errors import RequestError, within
from foretell.evaluation import answers
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.shots import build_examples
from foretell.evaluation.benchmarks.source import Source, pick
from foretell.policies.stop.schedules import Staged
from foretell.tasks.countdown import is_solution

TASK = (
    "Each input lists some numbers and, last, a target. Write equations that reach the target: use every number "
    "exactly once and only + - * /, where the result of an equation may be used in a later one. Write them on one "
    "line, separated by commas."
)
# 32 / 32 / 32, as in the paper (one token per digit or sign). With five numbers, four equations need more.
WINDOWS = {3: 32, 4: 32, 5: 48}


@dataclass(frozen=True, slots=True)
class Countdown:
    """Implements `Benchmark`. The answer region is the whole window: the equations and the end of the text."""

    name: str = "countdown"
    numbers: int = 4  # cd3, cd4 or cd5
    thresholds: Staged = Staged()

    def __post_init__(self) -> None:
        within("countdown's numbers", self.numbers, min(WINDOWS), max(WINDOWS), RequestError)

    @property
    def source(self) -> Source:
        stem = f"cd{self.numbers}_test"
        return Source("countdown", (f"{stem}.jsonl", f"{stem}.first200.jsonl"))

    @property
    def options(self) -> Mapping[str, Any]:
        window = WINDOWS[self.numbers]
        return {
            "max_new_tokens": window,
            "steps": window,
            "block_length": window,
            "suffix": "",
            "answer_start": 0,
            "answer_length": window,
        }

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        return pick(build_examples(self.name, self.source, source, TASK, self.is_solved), limit, seed)

    def is_solved(self, puzzle: str, solution: str) -> bool:
        """Whether every equation is true, every number is used once and the last result is the target."""
        if re.fullmatch(rf"\d{{1,9}}(,\d{{1,9}}){{{self.numbers}}}", puzzle) is None:
            return False
        *numbers, target = map(int, puzzle.split(","))
        return is_solution(numbers, target, solution)

    def extract(self, completion: Completion) -> str | None:
        return answers.find_equations(completion.text)

    def grade(self, example: Example, answer: str | None) -> bool:
        return answer is not None and self.is_solved(example.data["puzzle"], answer)
