r"""Sudoku 4x4: fill the blanks (0) of a grid; 100 of 108 rows with ten givens are examples.

{"input": "1003\n0300\n3210\n4132", "output": "1423\n2341\n3214\n4132"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.engine.engine import Completion
from foretell.evaluation import answers
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.shots import build_examples
from foretell.evaluation.benchmarks.source import Source, pick
from foretell.policies.stop.schedules import Staged
from foretell.tasks.problem import Problem
from foretell.tasks.sudoku import Sudoku

SOURCE = Source("sudoku4x4", ("sudoku_4x4_10.jsonl",))
TASK = (
    "Each input is a 4x4 Sudoku grid in which 0 is a blank. Fill the blanks so that every row, every column and every "
    "2x2 box holds 1, 2, 3 and 4. Write the full grid, one row a line."
)
# 24 / 24 / 24, as in the paper. Each of the sixteen digits and three line ends is one token.
OPTIONS: Mapping[str, Any] = {
    "max_new_tokens": 24,
    "steps": 24,
    "block_length": 24,
    "suffix": "",
    "answer_start": 0,
    "answer_length": 19,
}


@dataclass(frozen=True, slots=True)
class Sudoku4x4:
    """Implements `Benchmark`. Any valid grid is correct, even if the puzzle has several."""

    name: str = "sudoku4x4"
    thresholds: Staged = Staged()

    @property
    def source(self) -> Source:
        return SOURCE

    @property
    def options(self) -> Mapping[str, Any]:
        return dict(OPTIONS)

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        return pick(build_examples(self.name, SOURCE, source, TASK, is_solved), limit, seed)

    def extract(self, completion: Completion) -> str | None:
        return answers.find_grid(completion.text)

    def grade(self, example: Example, answer: str | None) -> bool:
        return answer is not None and is_solved(example.data["puzzle"], answer)


def is_solved(puzzle: str, grid: str) -> bool:
    """Whether a grid keeps the givens and obeys the rules, as the bundled task checks it."""
    if re.fullmatch(r"[0-4]{4}(\n[0-4]{4}){3}", puzzle) is None:
        return False
    return Sudoku().check(Problem(puzzle, puzzle, (), "", "", 0), grid)
