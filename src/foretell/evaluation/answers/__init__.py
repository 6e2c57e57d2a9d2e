"""Answers out of what models write: numbers, letters, code, equations and grids, as pure functions of text.

The rule for several answers, everywhere: the last explicit statement wins ("the answer is ...", "Answer: ...",
"#### ...", "\\boxed{...}"); without one, the weaker forms that each function names, unless it is `strict`; None when
nothing is found. Every function takes time proportional to the length of its text, whatever the text is: repeats in
regular expressions are bounded, or possessive after a character that they cannot match, so none is tried twice.
"""

from __future__ import annotations

from foretell.evaluation.answers.letters import letter, lone_letter
from foretell.evaluation.answers.numbers import SCALES, number, plain_number, stated_number
from foretell.evaluation.answers.programs import code
from foretell.evaluation.answers.puzzles import equations, grid
from foretell.evaluation.answers.statements import clean

__all__ = [
    "SCALES",
    "clean",
    "code",
    "equations",
    "grid",
    "letter",
    "lone_letter",
    "number",
    "plain_number",
    "stated_number",
]
