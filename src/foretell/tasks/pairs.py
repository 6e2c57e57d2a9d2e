"""A task from a JSONL file: one object per line with a "prompt" and a "response"."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from numpy.random import Generator

from foretell.errors import RecipeError
from foretell.storage import parse_json, read_text
from foretell.tasks.problem import Piece, Problem, is_held_out


@dataclass(frozen=True, slots=True)
class Pairs:
    """Implements `Task`. A response is right if it equals the one in the file."""

    name: str
    window: int
    block: int
    problems: tuple[Problem, ...]
    suffix: str = ""

    @classmethod
    def read(cls, file: Path, name: str, window: int, block: int) -> Pairs:
        lines = enumerate(
            read_text(file, f"file of the task {name!r},", RecipeError).split("\n"), 1
        )  # not splitlines: see `parse_prompts`
        problems = tuple(_parse_problem(line, f"{file}, line {number}") for number, line in lines if line.strip())
        count = sum(is_held_out(problem.core) for problem in problems)
        if not 0 < count < len(problems):
            raise RecipeError(
                f"{file} has {len(problems)} pairs, of which {count} are held out by a hash of their prompt; training "
                "needs pairs of both kinds, so give a few dozen different prompts"
            )
        return cls(name, window, block, problems)

    @property
    def answer_length(self) -> int:
        return self.window

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(text for problem in self.problems for text in (problem.prompt, problem.response))

    def sample(self, rng: Generator) -> Problem:
        return self.problems[rng.integers(len(self.problems))]

    def check(self, problem: Problem, text: str) -> bool:
        return text.strip() == problem.response.strip()


def _parse_problem(line: str, where: str) -> Problem:
    pair = parse_json(line, where, RecipeError)
    valid = isinstance(pair, dict) and all(isinstance(pair.get(key), str) for key in ("prompt", "response"))
    if not valid:
        raise RecipeError(f'{where}: needs an object with the texts "prompt" and "response", got {line[:60]}')
    return Problem(pair["prompt"], pair["prompt"], (Piece(pair["response"], 2),), "", "", 0)
