"""Find the solutions of puzzles: the equations of Countdown and the grids of Sudoku."""

from __future__ import annotations

import re

from foretell.evaluation.answers.statements import clean

EQUATION = re.compile(r"([0-9]{1,9})\s*+([-+*/×÷])\s*+([0-9]{1,9})\s*+=\s*+([0-9]{1,9})")
GRID_NOISE = re.compile(r"[ \t,|\[\]]")


def find_equations(text: str) -> str | None:
    """Return the equations of the last line that has any, such as "44-15=29,79-29=50"."""
    for line in reversed(clean(text).splitlines()):
        found = [(match[1], match[2], match[3], match[4]) for match in EQUATION.finditer(line)]
        if found:
            signs = {"×": "*", "÷": "/"}
            return ",".join(f"{a}{signs.get(sign, sign)}{b}={result}" for a, sign, b, result in found)
    return None


def find_grid(text: str, side: int = 4) -> str | None:
    """Return the first `side` consecutive lines of `side` digits each, without separators."""
    rows: list[str] = []
    for line in clean(text).splitlines():
        digits = GRID_NOISE.sub("", line)
        rows = [*rows, digits] if re.fullmatch(rf"[0-9]{{{side}}}", digits) else []
        if len(rows) == side:
            return "\n".join(rows)
    return None
