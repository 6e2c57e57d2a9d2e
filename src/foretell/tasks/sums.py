"""Plain arithmetic, seven true equations a row: "3 * 4 = 12 . 12 - 5 = 7 . ..." or "3+4=7,9-5=4,...".

The sides of an equation are always given and only its result is ever hidden, so every trained token is arithmetic: the
other tasks need it and show little of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from foretell.tasks.countdown import EQUATION, holds
from foretell.tasks.problem import GIVEN, Piece, Problem, held_out
from foretell.tasks.word import LARGEST, groups

EQUATIONS = 7
WORKED = 2  # the level of a result


@dataclass(frozen=True, slots=True)
class Sums:
    """Implements `Task`."""

    name: str = "sums"
    window: int = 64
    block: int = 64
    suffix: str = ""
    answer_length: int = 64

    @property
    def texts(self) -> tuple[str, ...]:
        return ("3 * 4 = 12 . 12 - 5 = 7 . 1 + 2 = 3", "3+4=7,9-5=4")

    def sample(self, rng: Generator) -> Problem:
        spaced = bool(rng.random() < 0.6)
        facts = [fact(rng, products=spaced) for _ in range(EQUATIONS)]  # Countdown's bare equations have none
        pieces: list[Piece] = []
        for a, operator, b, result in facts:
            joint = "" if not pieces else " . " if spaced else ","
            sides = f"{a} {operator} {b} = " if spaced else f"{a}{operator}{b}="
            pieces += [Piece(joint + sides, GIVEN), Piece(str(result), WORKED)]
        core = ";".join(f"{a}{operator}{b}" for a, operator, b, _ in facts)
        return Problem(core, "", tuple(pieces), "", "", 0)

    def check(self, problem: Problem, text: str) -> bool:
        """As many equations as were asked for, and all of them true."""
        equations = text.replace(" ", "").replace(".", ",").split(",")
        found = [EQUATION.fullmatch(equation) for equation in equations]
        true = [f is not None and holds(int(f[1]), f[2], int(f[3]), int(f[4])) for f in found]
        return len(true) == problem.core.count(";") + 1 and all(true)


def fact(rng: Generator, *, products: bool) -> tuple[int, str, int, int]:
    """One equation within 0..99, never one that is held out as a word problem of a single step."""
    while True:
        kind = rng.random() if products else rng.uniform(0.2, 1.0)
        if kind < 0.2:
            k, m = groups(rng, LARGEST)
            a, operator, b = (k, "*", m) if rng.random() < 0.6 else (m, "*", k)
            result = a * b
        elif kind < 0.6:
            a = int(rng.integers(1, LARGEST))
            b = int(rng.integers(1, LARGEST - a + 1))
            operator, result = "+", a + b
        else:
            a = int(rng.integers(1, LARGEST + 1))
            b = int(rng.integers(1, a + 1))
            operator, result = "-", a - b
        if not held_out(f"{a}{operator}{b}"):
            return a, operator, b, result
