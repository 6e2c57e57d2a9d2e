"""What a training task is made of: a problem, its response in pieces, and the hash that holds problems out."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from numpy.random import Generator

GIVEN = -1  # the level of what is never hidden
HELD_OUT_IN = 10  # one core in ten is never trained on


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the response, and how late a decoder can know it.

    Level 0 is fixed form, 1 is read off the prompt, 2 and more must be worked out, one after the other.
    """

    text: str
    level: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its worked answer."""

    core: str  # the operations with their numbers, free of names and wording; what is held out is held out by this
    prompt: str
    pieces: tuple[Piece, ...]  # all that stands before the suffix
    suffix: str  # announces the answer; empty where the whole response is the answer
    answer: str
    level: int  # of the answer

    @property
    def response(self) -> str:
        return "".join(piece.text for piece in self.pieces) + self.suffix + self.answer


class Task(Protocol):
    """A seeded, endless source of problems, and the layout that they are decoded in."""

    @property
    def name(self) -> str: ...

    @property
    def window(self) -> int: ...

    @property
    def block(self) -> int: ...

    @property
    def suffix(self) -> str:
        """Text that a decoder pins so that the answer stands at the window's end; empty for none."""

    @property
    def answer_length(self) -> int:
        """Tokens of the answer."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts that between them hold every word the task can say."""

    def sample(self, rng: Generator) -> Problem: ...

    def check(self, problem: Problem, text: str) -> bool: ...


def held_out(core: str) -> bool:
    """Whether problems of this core are kept for tests. A function of the core alone, so it never drifts."""
    return int.from_bytes(blake2b(core.encode(), digest_size=8).digest(), "big") % HELD_OUT_IN == 0


def draw(task: Task, rng: Generator, count: int, *, test: bool) -> list[Problem]:
    """`count` problems from one side of the split."""
    problems: list[Problem] = []
    while len(problems) < count:
        problem = task.sample(rng)
        if held_out(problem.core) is test:
            problems.append(problem)
    return problems
