"""The planning puzzles' protocol: the file's first eight rows are solved in the prompt, the others are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.source import DataRow, Source, distinct, fingerprint

SHOTS = 8


def asked(
    name: str, source: Source, path: Path | None, task: str, solved: Callable[[str, str], bool]
) -> Sequence[Example]:
    """The examples, every one behind the same eight shots. A row whose own output is not right is an error."""
    rows = source.rows(path)
    if len(rows) <= SHOTS:
        raise RequestError(f"{name} needs {SHOTS} rows to show and at least one to ask, got {len(rows)}")
    pairs = [_pair(row, solved) for row in rows]
    shots = "\n\n".join(f"Input:\n{puzzle}\nOutput:\n{solution}" for puzzle, solution in pairs[:SHOTS])
    return distinct(
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


def _pair(row: DataRow, solved: Callable[[str, str], bool]) -> tuple[str, str]:
    puzzle, solution = row.text("input").strip(), row.text("output").strip()
    if not solved(puzzle, solution):
        raise row.error(f"the output {solution!r:.80} does not solve the input {puzzle!r:.80}")
    return puzzle, solution
