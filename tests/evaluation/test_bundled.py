"""The bundled model's tasks as benchmarks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.engine.engine import Completion
from foretell.errors import RequestError
from foretell.evaluation.benchmark import make_independent
from foretell.evaluation.benchmarks import BENCHMARKS, bundled
from foretell.evaluation.benchmarks.bundled import BUNDLED, Bundled
from foretell.evaluation.benchmarks.prompts import Prompts
from foretell.evaluation.catalogue import CATALOGUE, benchmark_named
from foretell.tasks import TASKS, draw, is_held_out

BLANK = Completion("", None, (), 0, 0, 1, 1, 1, "complete", 0.0)


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_held_out_problems_each_once(name: str) -> None:
    examples = BUNDLED[name].examples(None, 30, seed=5)
    assert len({one.id for one in examples}) == 30
    assert all(is_held_out(one.data["problem"].core) for one in examples)
    assert [one.id for one in BUNDLED[name].examples(None, 10, 5)] == [one.id for one in examples[:10]]
    assert [one.id for one in BUNDLED[name].examples(None, 10, 6)] != [one.id for one in examples[:10]]


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_the_worked_answer_is_right_and_others_are_not(name: str) -> None:
    benchmark = BUNDLED[name]
    for example in benchmark.examples(None, 20, seed=1):
        problem = example.data["problem"]
        said = benchmark.extract(replace(BLANK, text=problem.response, answer=problem.answer))
        assert said == example.gold
        assert benchmark.grade(example, said)
        assert not benchmark.grade(example, benchmark.extract(BLANK))
        assert not benchmark.grade(example, benchmark.extract(replace(BLANK, text="The answer is E")))


def test_layouts_with_and_without_the_suffix() -> None:
    assert BUNDLED["word"].options["suffix"] == "The answer is"
    assert set(BUNDLED["word-free"].options) == {"max_new_tokens", "block_length"}
    assert BUNDLED["sudoku"].options["answer_start"] == 0
    longer = BUNDLED["word_96"].options
    assert (longer["max_new_tokens"], longer["answer_start"], longer["answer_length"]) == (96, 62, 2)
    junk = replace(BLANK, text="1 + 2 = 3 . The answer is 03 8 8", answer=" 3")
    assert BUNDLED["word_96"].extract(junk) == "3"
    assert "sudoku-free" not in BUNDLED


def test_an_exhausted_supply_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "MAX_REPEATS", 5)
    small = replace(TASKS["choice"], lengths=(1.0,))  # type: ignore[type-var]
    with pytest.raises(RequestError, match="no more than about"):
        Bundled(small).examples(None, 100_000, 0)
    with pytest.raises(RequestError, match="reads no file"):
        BUNDLED["word"].examples(Path("somewhere"), 1, 0)


def test_the_catalogue_has_them() -> None:
    assert set(BUNDLED) <= set(CATALOGUE)
    assert set(BENCHMARKS) <= set(CATALOGUE)
    assert len(set(CATALOGUE)) == len(CATALOGUE)
    assert benchmark_named("countdown") is BUNDLED["countdown"]
    assert benchmark_named("countdown_cd4") is BENCHMARKS["countdown"]
    with pytest.raises(RequestError, match="did you mean 'sudoku'"):
        benchmark_named("sudoko")


def test_independent_draws_repeat_and_do_not_depend_on_the_limit() -> None:
    """Without repeats the easy problems, of which there are few, run out; independent draws keep their share."""
    benchmark = make_independent(BUNDLED["choice"])
    many = benchmark.examples(None, 300, 0)
    assert benchmark.examples(None, 50, 0) == many[:50]
    problems = [one.data["problem"] for one in many]
    assert len({problem.core for problem in problems}) < len(problems) == len({one.id for one in many})
    drawn = draw(TASKS["choice"], np.random.default_rng(0), 300, test=True)
    assert [problem.core for problem in problems] == [problem.core for problem in drawn]
    free = make_independent(BUNDLED["choice-free"])
    assert [one.prompt for one in free.examples(None, 300, 0)] == [one.prompt for one in many]


def test_benchmarks_from_files_have_no_independent_draws() -> None:
    prompts = Prompts()
    assert make_independent(prompts) is prompts
