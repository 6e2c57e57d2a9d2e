"""Countdown with three numbers: "15,44,79,50" asks for equations that reach 50, "15+79=94,94-44=50"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from numpy.random import Generator

from foretell.tasks.problem import Piece, Problem

LARGEST = 99
# (first, second, third, operator, operator): every signed sum of three numbers once; the running result always comes
# first. Trained answers use the first plan that works, so that each token is a function of the prompt.
PLANS = (
    (0, 1, 2, "+", "+"),
    (0, 1, 2, "+", "-"),
    (0, 2, 1, "+", "-"),
    (1, 2, 0, "+", "-"),
    (0, 1, 2, "-", "-"),
    (1, 0, 2, "-", "-"),
    (2, 0, 1, "-", "-"),
)
EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")


@dataclass(frozen=True, slots=True)
class Countdown:
    """Implements `Task`."""

    name: str = "countdown"
    window: int = 32
    block: int = 32
    suffix: str = ""
    answer_length: int = 17

    @property
    def texts(self) -> tuple[str, ...]:
        return ("15,44,79,50", "44-15=29,79-29=50", "15+44=59")

    def sample(self, rng: Generator) -> Problem:
        while True:
            numbers = [int(n) for n in rng.integers(1, LARGEST + 1, size=3)]
            reached = [plan for plan in PLANS if apply_plan(numbers, plan)]
            if reached:
                target = apply_plan(numbers, reached[rng.integers(len(reached))])[1]
                return make_problem(numbers, target)

    def check(self, problem: Problem, text: str) -> bool:
        numbers = [int(n) for n in problem.prompt.split(",")]
        return is_solution(numbers[:-1], numbers[-1], text.strip())


def apply_plan(numbers: list[int], plan: tuple[int, int, int, str, str]) -> tuple[int, ...]:
    """Return the two results of a plan, or () if one of them is not in 1..99."""
    first, second, third, one, two = plan
    middle = numbers[first] + numbers[second] * (1 if one == "+" else -1)
    end = middle + numbers[third] * (1 if two == "+" else -1)
    return (middle, end) if 1 <= middle <= LARGEST and 1 <= end <= LARGEST else ()


def make_problem(numbers: list[int], target: int) -> Problem:
    plan, middle = next((p, r[0]) for p in PLANS if (r := apply_plan(numbers, p)) and r[1] == target)
    first, second, third, one, two = plan
    pieces = (
        Piece(str(numbers[first]), 2),
        Piece(one, 2),
        Piece(str(numbers[second]), 2),
        Piece("="),
        Piece(str(middle), 3),
        Piece(","),
        Piece(str(middle), 3),
        Piece(two, 2),
        Piece(str(numbers[third]), 2),
        Piece("="),
        Piece(str(target)),
    )
    core = ",".join(map(str, [*sorted(numbers), target]))
    return Problem(core, ",".join(map(str, [*numbers, target])), pieces, "", "", 0)


def is_solution(numbers: list[int], target: int, text: str) -> bool:
    """Whether every equation is true, each number is used once, and the last result is the target."""
    left = list(numbers)
    result = None
    for equation in text.split(","):
        found = EQUATION.fullmatch(equation.strip())
        if found is None:
            return False
        a, b, result = int(found[1]), int(found[3]), int(found[4])
        for operand in (a, b):
            if operand not in left:
                return False
            left.remove(operand)
        if not is_true(a, found[2], b, result):
            return False
        left.append(result)
    return left == [target] and result == target


def is_true(a: int, operator: str, b: int, result: int) -> bool:
    if operator == "/":
        return b != 0 and b * result == a
    return {"+": a + b, "-": a - b, "*": a * b}[operator] == result
