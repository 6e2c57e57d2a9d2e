"""Find the range that contains a number, four times per row: options as in `choice`; only the letters are masked.

A multiple-choice row has one letter among dozens of tokens, and only letters teach the model to compare numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from numpy.random import Generator

from foretell.tasks.choice import draw_starts, format_options, letter_of
from foretell.tasks.problem import GIVEN, Piece, Problem
from foretell.tasks.sums import WORKED, draw_equation

QUESTIONS = 4


@dataclass(frozen=True, slots=True)
class Letters:
    """Implements `Task`."""

    name: str = "letters"
    window: int = 13 * QUESTIONS
    block: int = 13 * QUESTIONS
    suffix: str = ""
    answer_length: int = 13 * QUESTIONS

    @property
    def texts(self) -> tuple[str, ...]:
        return ("A) 0 to 19 B) 20 to 34 C) 35 to 60 D) 61 to 99", "5 * 14 = 70 . The answer is D")

    def sample(self, rng: Generator) -> Problem:
        equations = [draw_equation(rng, products=True) for _ in range(QUESTIONS)]
        starts = draw_starts(rng, equations[0][3])
        pieces: list[Piece] = []
        for a, operator, b, result in equations:
            joint = " " if pieces else ""
            pieces.append(Piece(f"{joint}{a} {operator} {b} = {result} . The answer is", GIVEN))
            pieces.append(Piece(f" {letter_of(starts, result)}", WORKED))
        core = f"{format_options(starts)};" + ";".join(f"{a}{operator}{b}" for a, operator, b, _ in equations)
        return Problem(core, format_options(starts), tuple(pieces), "", "", 0)

    def check(self, problem: Problem, text: str) -> bool:
        return re.findall("is ([A-D])", text) == re.findall("is ([A-D])", problem.response)
