"""Prompts and questions that the bundled model can read: it knows little more than a hundred words."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from foretell.engine.engine import Engine
from foretell.engine.folder import decision_templates
from foretell.serve.offers import is_bundled
from foretell.tasks import TASKS, draw

QUESTION = "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?"
SEED = 2025
PER_TASK = 3
LETTER = re.compile(r" [A-D]\) ")  # before each option of a choice
DECISIONS = (
    "one of four ranges",
    "a level on a scale, from low to high",
    "one of four ranges; the draft changes during decoding",
)
UNSURE = "Emma has 56 pens. She throws away 25. How many pens are left? A) 0 to 4 B) 5 to 15 C) 16 to 21 D) 22 to 99"
QUARTERS = ["0 to 24", "25 to 49", "50 to 74", "75 to 99"]

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


class DecisionExample(NamedTuple):
    about: str
    input: str
    questions: tuple[dict[str, Any], ...]  # as `/v1/decisions` takes them


def find_decision_examples(engine: Engine) -> tuple[DecisionExample, ...]:
    """Return decisions that work with a model; none unless it is bundled and has a template for choices."""
    drawn = [split_choice(one.prompt) for one in find_examples(engine) if one.task == "choice"]
    if not drawn or "choice" not in decision_templates(engine.layouts):
        return ()
    asks = (_ask_choice, _ask_score, _ask_choice)
    single = (
        DecisionExample(about, story, (ask(question, ranges),))
        for about, ask, (story, question, ranges) in zip(DECISIONS, asks, drawn, strict=True)
    )
    story, question, ranges = split_choice(UNSURE)
    both = _ask_choice(question, QUARTERS), _ask_choice(question, ranges)
    return (*single, DecisionExample("it is sure of one, and not of the other", story, both))


def split_choice(prompt: str) -> tuple[str, str, list[str]]:
    """Return the story, the question and the options of a multiple choice problem."""
    asked, *options = LETTER.split(prompt)
    story, _, question = asked.rpartition(". ")
    return f"{story}.", question, options


def _ask_choice(question: str, options: list[str]) -> dict[str, Any]:
    return {"type": "choice", "instructions": question, "choices": [{"value": one} for one in options]}


def _ask_score(question: str, options: list[str]) -> dict[str, Any]:
    return {"type": "score", "instructions": question, "levels": [{"label": one} for one in options]}


def describe_examples(engine: Engine) -> str:
    """Return a sentence with one working prompt per task; empty for models that read any text."""
    first = {one.task: one for one in reversed(find_examples(engine))}
    if not first:
        return ""
    shown = "; ".join(f'{{"layout": "{one.layout}"}} {one.prompt!r}' for one in reversed(first.values()))
    return f". This model was trained on four tasks only. Prompts that work: {shown}"
