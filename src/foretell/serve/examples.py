"""Prompts that the bundled model can read: it knows little more than a hundred words."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from foretell.engine.engine import Engine
from foretell.serve.offers import is_bundled
from foretell.tasks import TASKS, draw

QUESTION = "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?"
SEED = 2025
PER_TASK = 3


ABOUT = {
    "word": "count step by step",
    "choice": "choose the right range",
    "sudoku": "fill the zeros: each row, column and square has 1 to 4",
    "countdown": "make the last number from the others",
}


class Example(NamedTuple):
    task: str
    layout: str
    prompt: str
    about: str


@cache
def _draw_examples() -> tuple[Example, ...]:
    """Return held-out problems of every task."""
    drawn = {
        name: [problem.prompt for problem in draw(task, np.random.default_rng(SEED), PER_TASK, test=True)]
        for name, task in TASKS.items()
    }
    drawn["word"][0] = QUESTION
    return tuple(Example(name, name, prompt, ABOUT[name]) for name, prompts in drawn.items() for prompt in prompts)


def find_examples(engine: Engine) -> tuple[Example, ...]:
    """Return prompts that work with a model; none unless it is bundled."""
    return _draw_examples() if is_bundled(engine) else ()


def describe_examples(engine: Engine) -> str:
    """Return a sentence with one working prompt per task; empty for models that read any text."""
    first = {one.task: one for one in reversed(find_examples(engine))}
    if not first:
        return ""
    shown = "; ".join(f'{{"layout": "{one.layout}"}} {one.prompt!r}' for one in reversed(first.values()))
    return f". This model was trained on four tasks only. Prompts that work: {shown}"
