"""Few-shot prompts for puzzles: the first eight rows of the file are shown with solutions, the others are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.source import DataRow, Source, fingerprint, number_duplicates

SHOTS = 8


def build_examples(
    name: str, source: Source, path: Path | None, task: str, is_solved: Callable[[str, str], bool]
) -> Sequence[Example]:
    """Return the examples, each after the same eight shots. Raises RequestError if the output of a row is wrong."""
    rows = source.rows(path)
    if len(rows) <= SHOTS:
        raise RequestError(f"{name} needs {SHOTS} rows to show and at least one to ask, got {len(rows)}")
    pairs = [_pair(row, is_solved) for row in rows]
    shots = "\n\n".join(f"Input:\n{puzzle}\nOutput:\n{solution}" for puzzle, solution in pairs[:SHOTS])
    return number_duplicates(
        [
            Example(
                f"{name}/{fingerprint(puzzle)}",
                f"{task}\n\n{shots}\n\nInput:\n{puzzle}\nOutput:\n",
                solution,
                {"puzzle": puzzle},
            )
            for puzzle, solution in pairs[SHOTS:]
        ]
    )


def _pair(row: DataRow, is_solved: Callable[[str, str], bool]) -> tuple[str, str]:
    puzzle, solution = row.text("input").strip(), row.text("output").strip()
    if not is_solved(puzzle, solution):
        raise row.error(f"the output {solution!r:.80} does not solve the input {puzzle!r:.80}")
    return puzzle, solution
