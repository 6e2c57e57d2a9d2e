"""Find answers in the text of models: numbers, letters, code, equations and grids.

If a text has several answers, the last explicit statement counts ("the answer is ...", "Answer: ...", "#### ...",
"\\boxed{...}"). Without a statement, each function tries the weaker forms that its docstring lists, unless `strict` is
set. The result is None if nothing is found. Every function takes time proportional to the length of its text, because
every repeat in a regular expression is bounded, or is possessive and follows a character that it cannot match.
"""

from __future__ import annotations

from foretell.evaluation.answers.letters import find_letter, read_letter
from foretell.evaluation.answers.numbers import SCALES, find_number, find_stated_number, normalise_number
from foretell.evaluation.answers.programs import find_code
from foretell.evaluation.answers.puzzles import find_equations, find_grid
from foretell.evaluation.answers.statements import clean

__all__ = [
    "SCALES",
    "clean",
    "find_code",
    "find_equations",
    "find_grid",
    "find_letter",
    "find_number",
    "find_stated_number",
    "normalise_number",
    "read_letter",
]
