"""The colours of all pictures: one per method, wherever it is drawn."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

GREY, ORANGE, BLUE, GREEN, RED = "#8a8a8a", "#f2a33c", "#3b78b5", "#2e9e4f", "#c0392b"
PURPLE, TEAL, BROWN, OLIVE, PINK, BLACK = "#7b5ea7", "#17a2b8", "#5d4037", "#b89b1e", "#d6569a", "#222222"
LIGHT_BLUE, SKY, PALE, LIGHT_GREY = "#9dbfe0", "#7fb2e5", "#e6e6e6", "#c8c8c8"
LINE = "#777777"  # thresholds, limits and leaders
RIGHT, WRONG = BLUE, RED
FULL, MEAN, MIN, SWIFT = GREY, ORANGE, GREEN, PURPLE
REDUCTIONS = {"mean": MEAN, "min": MIN}
TASKS = {"word": BLUE, "choice": ORANGE, "sudoku": GREEN, "countdown": RED}
METHODS = {  # as recipes, tables and families of stopping rules name them
    **dict.fromkeys(("full", "baseline", "teacher, full"), FULL),
    **dict.fromkeys(("prophet", "mean", "mean gap", "Prophet, mean", "Prophet, mean gap"), MEAN),
    **dict.fromkeys(
        ("prophet stop.reduce=min", "prophet-min", "min", "smallest gap", "Prophet, min", "Prophet, min gap"), MIN
    ),
    **dict.fromkeys(("swift", "tune"), SWIFT),
    **dict.fromkeys(("half the budget", "teacher, half", "static"), BLUE),
    "SDTT, half": PINK, "SDTT + Prophet, mean gap": BROWN, "SDTT + Prophet, min gap": TEAL,
    "linear": OLIVE, "linear-min": TEAL, "log-odds": "#5b8fd6", "stable": BROWN, "entropy": RED, "persistence": PINK,
    "sched": "#a6c34c", "judge": BLACK, "judge, answer only": "#6b6b6b", "judge, logistic": "#b0b0b0",
}  # fmt: skip
OTHERS = (BLUE, PURPLE, TEAL, BROWN, OLIVE, PINK, RED, BLACK, ORANGE, GREEN, GREY)


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name: a method's own, and for any other name one that no other name here has."""
    wanted = list(dict.fromkeys(names))
    known = METHODS | TASKS
    fixed = {name: known[name] for name in wanted if name in known}
    free = cycle([colour for colour in OTHERS if colour not in fixed.values()] or OTHERS)
    return {name: fixed.get(name) or next(free) for name in wanted}
