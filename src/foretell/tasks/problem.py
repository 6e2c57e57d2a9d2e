"""The parts of a training task: problems, responses in pieces, and the hash that decides which are held out."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from numpy.random import Generator

GIVEN = -1  # the level of text that is never masked
HELD_OUT_IN = 10  # one core in ten is never trained on


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the response and its level: how late a decoder can predict it.

    Level 0 is fixed wording, level 1 is copied from the prompt, and higher levels must be computed one after the other.
    """

    text: str
    level: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its worked answer."""

    core: str  # operations and numbers without names and wording; decides whether it is held out
    prompt: str
    pieces: tuple[Piece, ...]  # everything before the suffix
    suffix: str  # announces the answer; empty if the whole response is the answer
    answer: str
    level: int  # level of the answer

    @property
    def response(self) -> str:
        return "".join(piece.text for piece in self.pieces) + self.suffix + self.answer


class Task(Protocol):
    """A generator of problems, and the layout in which they are decoded."""

    @property
    def name(self) -> str: ...

    @property
    def window(self) -> int: ...

    @property
    def block(self) -> int: ...

    @property
    def suffix(self) -> str:
        """Text that is pinned so that the answer is at the end of the window; empty for none."""

    @property
    def answer_length(self) -> int:
        """The number of tokens of the answer."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts that together contain every word of the task."""

    def sample(self, rng: Generator) -> Problem: ...

    def check(self, problem: Problem, text: str) -> bool: ...


def is_held_out(core: str) -> bool:
    """Whether problems with this core are kept for tests. It depends on the core alone, so the split is stable."""
    return int.from_bytes(blake2b(core.encode(), digest_size=8).digest(), "big") % HELD_OUT_IN == 0


def draw(task: Task, rng: Generator, count: int, *, test: bool) -> list[Problem]:
    """Draw `count` problems from the test set or the training set."""
    problems: list[Problem] = []
    while len(problems) < count:
        problem = task.sample(rng)
        if is_held_out(problem.core) is test:
            problems.append(problem)
    return problems
