"""Problems: which are held out, which answers are right, and that all numbers stay in range."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import RecipeError
from foretell.tasks import TRAINED, Problem, draw, is_held_out
from foretell.tasks.countdown import is_solution, make_problem
from foretell.tasks.pairs import Pairs
from foretell.tasks.sudoku import Sudoku, solutions
from foretell.tasks.word import Word

EVERY = TRAINED
NAMES = sorted(EVERY)


def problems(name: str, count: int = 400, seed: int = 0, *, test: bool = False) -> list[Problem]:
    return draw(EVERY[name], np.random.default_rng(seed), count, test=test)


@pytest.mark.parametrize("name", NAMES)
def test_the_worked_response_is_right(name: str) -> None:
    assert all(EVERY[name].check(p, p.response) for p in problems(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_last_token_is_wrong(name: str) -> None:
    for problem in problems(name, 100):
        last = problem.response[-1]
        other = {"A": "B", "B": "C", "C": "D", "D": "A"}.get(last) or str((int(last) + 1) % 10)
        assert not EVERY[name].check(problem, problem.response[:-1] + other)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", "The answer is", "1+", "1=1", "\n\n\n", "1+1=2,2", "The answer is x"])
def test_a_broken_response_is_wrong_and_no_error(name: str, text: str) -> None:
    assert not EVERY[name].check(problems(name, 1)[0], text)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_problems(name: str) -> None:
    assert problems(name, 50) == problems(name, 50) != problems(name, 50, seed=1)


@pytest.mark.parametrize("name", NAMES)
def test_trained_and_held_out_cores_are_disjoint(name: str) -> None:
    trained = {p.core for p in problems(name, 1000)}
    tested = {p.core for p in problems(name, 300, test=True)}
    assert trained.isdisjoint(tested)


def test_the_split_is_a_fixed_tenth() -> None:
    cores = [f"{a}+{b}" for a in range(100) for b in range(100)]
    assert sum(map(is_held_out, cores)) / len(cores) == pytest.approx(0.1, abs=0.01)
    assert [n for n in range(40) if is_held_out(str(n))] == [1, 2, 7, 30]


def test_a_core_is_free_of_names_and_wording() -> None:
    for problem in problems("word") + problems("choice"):
        assert re.fullmatch(r"\d+[-+*]\d+(;\d+[-+*]\d+)*", problem.core)


def test_word_problems_have_one_to_five_true_steps_within_two_digits() -> None:
    lengths = set()
    for problem in problems("word", 1000):
        *lines, last = problem.response.split(" . ")
        for line in lines:
            a, operator, b, _, result = line.split()
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator] == int(result)
        assert all(int(number) <= 99 for number in re.findall(r"\d+", problem.response))
        assert last == f"The answer is {lines[-1].split()[-1]}"
        lengths.add(len(lines))
    assert lengths == {1, 2, 3, 4, 5}


def test_longer_chains_are_more_frequent() -> None:
    steps = [problem.core.count(";") + 1 for problem in problems("word", 1000)]
    assert np.mean(steps) > 3.3


def test_chain_lengths_follow_the_weights() -> None:
    short = Word(lengths=(1.0,))
    assert all(";" not in p.core for p in draw(short, np.random.default_rng(0), 50, test=False))


def test_letters_are_about_equally_frequent() -> None:
    letters = [problem.answer.strip() for problem in problems("choice", 1000)]
    assert all(letters.count(letter) > 150 for letter in "ABCD")


def test_options_cover_every_number_once() -> None:
    for problem in problems("choice", 200):
        bounds = [(int(a), int(b)) for a, b in re.findall(r"[A-D]\) (\d+) to (\d+)", problem.prompt)]
        assert [n for low, high in bounds for n in range(low, high + 1)] == list(range(100))


def test_there_are_288_grids() -> None:
    assert solutions()[0].shape == (288, 16)


def test_puzzles_have_four_to_twelve_givens_and_one_solution() -> None:
    grids = solutions()[0]
    seen = set()
    for problem in problems("sudoku", 300):
        cells = np.array([int(c) for c in problem.prompt.replace("\n", "")])
        fitting = ((cells == 0) | (grids == cells)).all(axis=1)
        assert fitting.sum() == 1
        seen.add(int((cells > 0).sum()))
    assert seen == set(range(4, 13))


def test_a_filled_grid_that_drops_a_given_is_wrong() -> None:
    problem = problems("sudoku", 1)[0]
    swapped = problem.response.translate(str.maketrans("1234", "2341"))
    assert not Sudoku().check(problem, swapped)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("44-15=29,79-29=50", True),
        ("79-44=35,35+15=50", True),
        ("15+79=94,94-44=50", True),
        ("44-15=29,79-29=51", False),
        ("44-15=29", False),
        ("79-29=50", False),
        ("44-15=29,79-29=50,50-50=0", False),
        ("15+44=59,59-9=50", False),
        ("15+44=59;79-29=50", False),
    ],
)
def test_countdown_accepts_any_correct_solution(text: str, right: bool) -> None:
    assert is_solution([15, 44, 79], 50, text) is right


def test_countdown_trains_one_answer_per_prompt() -> None:
    assert make_problem([15, 44, 79], 50).response == "15+79=94,94-44=50"
    assert make_problem([79, 44, 15], 50).core == make_problem([15, 44, 79], 50).core


def test_countdown_has_more_than_twenty_thousand_problems() -> None:
    cores = {problem.core for problem in problems("countdown", 25_000)}
    assert len(cores) > 20_000


def test_sums_never_show_a_held_out_equation() -> None:
    for problem in problems("sums", 200):
        assert not any(is_held_out(fact) for fact in problem.core.split(";"))


def test_pairs_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}", "response": f"{n + 1}"}) + "\n" for n in range(30)))
    task = Pairs.read(file, "next", window=4, block=4)
    problem = draw(task, np.random.default_rng(0), 1, test=False)[0]
    assert task.check(problem, problem.response)
    assert not task.check(problem, "99")
    file.write_text('{"prompt": "1"}\n')
    with pytest.raises(RecipeError, match="line 1: needs an object"):
        Pairs.read(file, "next", window=4, block=4)


@pytest.mark.data
def test_public_puzzles_are_read_as_problems() -> None:
    folder = os.environ.get("FORETELL_DATA")
    if folder is None:
        pytest.skip("FORETELL_DATA names no folder")
    lines = (Path(folder) / "sudoku4x4" / "sudoku_4x4_10.jsonl").read_text().splitlines()
    for line in lines[8:108]:
        pair = json.loads(line)
        assert Sudoku().check(Problem(pair["input"], pair["input"], (), "", "", 0), pair["output"])
