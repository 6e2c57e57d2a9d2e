"""Plain arithmetic, seven true equations per row: "3 * 4 = 12 . 12 - 5 = 7 . ..." or "3+4=7,9-5=4,...".

The left side of an equation is always given and only its result is masked, so every trained token is arithmetic, which
the other tasks need but rarely show.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from foretell.tasks.countdown import EQUATION, is_true
from foretell.tasks.problem import GIVEN, Piece, Problem, is_held_out
from foretell.tasks.word import LARGEST, draw_groups

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
        # Bare equations, as in Countdown, have no products.
        equations = [draw_equation(rng, products=spaced) for _ in range(EQUATIONS)]
        pieces: list[Piece] = []
        for a, operator, b, result in equations:
            joint = "" if not pieces else " . " if spaced else ","
            sides = f"{a} {operator} {b} = " if spaced else f"{a}{operator}{b}="
            pieces += [Piece(joint + sides, GIVEN), Piece(str(result), WORKED)]
        core = ";".join(f"{a}{operator}{b}" for a, operator, b, _ in equations)
        return Problem(core, "", tuple(pieces), "", "", 0)

    def check(self, problem: Problem, text: str) -> bool:
        """Whether the number of equations is right and all of them are true."""
        equations = text.replace(" ", "").replace(".", ",").split(",")
        found = [EQUATION.fullmatch(equation) for equation in equations]
        true = [f is not None and is_true(int(f[1]), f[2], int(f[3]), int(f[4])) for f in found]
        return len(true) == problem.core.count(";") + 1 and all(true)


def draw_equation(rng: Generator, *, products: bool) -> tuple[int, str, int, int]:
    """Draw an equation with numbers in 0..99 that is not held out as a word problem of one step."""
    while True:
        kind = rng.random() if products else rng.uniform(0.2, 1.0)
        if kind < 0.2:
            k, m = draw_groups(rng, LARGEST)
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
        if not is_held_out(f"{a}{operator}{b}"):
            return a, operator, b, result
