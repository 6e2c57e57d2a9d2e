"""A task read from a file: one JSON object a line with a "prompt" and a "response"."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from numpy.random import Generator

from foretell.errors import RecipeError
from foretell.lab.tasks.problem import Piece, Problem


@dataclass(frozen=True, slots=True)
class Pairs:
    """Implements `Task`. A response is right when it is the one of the file."""

    name: str
    window: int
    block: int
    problems: tuple[Problem, ...]
    suffix: str = ""

    @classmethod
    def read(cls, file: Path, name: str, window: int, block: int) -> Pairs:
        problems = []
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            pair = json.loads(line)
            if not {"prompt", "response"} <= pair.keys():
                raise RecipeError(f"{file}, line {number}: needs a prompt and a response, has {', '.join(pair)}")
            problems.append(Problem(pair["prompt"], pair["prompt"], (Piece(pair["response"], 2),), "", "", 0))
        return cls(name, window, block, tuple(problems))

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
