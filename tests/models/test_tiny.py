"""The bundled model: small, in LLaDA's format, and able to do what its card says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open

import foretell
from foretell.errors import VocabularyError
from foretell.tasks import TASKS, draw
from tests.conftest import TINY

QUESTION = "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?"


@pytest.fixture(scope="module")
def engine() -> foretell.Engine:
    return foretell.load("tiny")


def test_is_a_small_llada_checkpoint() -> None:
    assert sum(path.stat().st_size for path in TINY.iterdir()) < 12_000_000
    config = json.loads((TINY / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("llada", ["LLaDAModelLM"])
    with safe_open(TINY / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert {"model.transformer.wte.weight", "model.transformer.ff_out.weight"} <= names
    assert len(names) == 3 + 9 * config["n_layers"]


def test_the_answer_settles_before_the_reasoning_is_written(engine: foretell.Engine) -> None:
    full = engine.generate(QUESTION, trace=True)
    early = engine.generate(QUESTION, recipe="prophet")
    assert full.text == "3 * 4 = 12 . 12 - 5 = 7 . The answer is 7"
    assert early.text.endswith("The answer is 7")  # the reasoning may be committed before it is right
    assert early.finish == "settled"
    assert early.steps < full.steps / 2
    assert full.trace is not None
    steps_of_reasoning = full.trace.filled_at[: full.trace.request.layout.length // 2]
    assert full.trace.last_change() < int(steps_of_reasoning.max()) / 2


def test_swift_says_the_same_in_few_steps(engine: foretell.Engine) -> None:
    full, swift = engine.generate(QUESTION), engine.generate(QUESTION, recipe="swift")
    assert swift.text == full.text
    assert swift.forwards < full.forwards / 5


def test_the_student_answers_with_half_the_steps() -> None:
    student = foretell.load("tiny-sdtt")
    done = student.generate(QUESTION, steps=32)
    assert done.text == "3 * 4 = 12 . 12 - 5 = 7 . The answer is 7"
    assert done.steps == 32


def test_the_answer_is_found_without_a_suffix(engine: foretell.Engine) -> None:
    """The model writes the marker itself; nothing says where the answer stands or how long it is."""
    recipe = "prophet stop.reduce=min region=delimiter('The answer is')"
    full = engine.generate(QUESTION, suffix="", trace=True)
    early = engine.generate(QUESTION, suffix="", recipe=recipe)
    assert full.text == early.text == "3 * 4 = 12 . 12 - 5 = 7 . The answer is 7"
    assert early.answer == "7"
    assert early.finish == "settled"
    assert early.steps < full.steps / 2
    assert full.trace is not None
    asked = foretell.parse(recipe)
    assert full.trace.replay(asked.stop, asked.region) == early.exit


@pytest.mark.parametrize(("task", "least"), [("sudoku", 15), ("choice", 13), ("countdown", 4)])
def test_solves_held_out_problems(engine: foretell.Engine, task: str, least: int) -> None:
    problems = draw(TASKS[task], np.random.default_rng(7), 16, test=True)
    made = engine.generate([problem.prompt for problem in problems], layout=task, batch_size=16)
    assert sum(TASKS[task].check(problem, one.text) for problem, one in zip(problems, made, strict=True)) >= least


def test_unknown_words_are_errors(engine: foretell.Engine) -> None:
    with pytest.raises(VocabularyError, match=r"(?s)zebras.*foretell vocab"):
        engine.generate("Tom has 3 zebras. How many zebras are left?")
