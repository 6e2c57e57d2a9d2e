"""Multiple choice: a short word problem and four ranges, "A) 0 to 19 B) 20 to 34 ..."; the answer is one letter."""

from __future__ import annotations

import re
from dataclasses import dataclass

from numpy.random import Generator

from foretell.tasks.problem import Problem
from foretell.tasks.word import LARGEST, chain, closing, tell

LETTERS = "ABCD"
NARROWEST = 3
ANSWER = re.compile(r"The answer is ([ABCD])\s*$")


@dataclass(frozen=True, slots=True)
class Choice:
    """Implements `Task`."""

    name: str = "choice"
    window: int = 32
    block: int = 16
    suffix: str = "The answer is"
    answer_length: int = 1
    lengths: tuple[float, ...] = (0.35, 0.65)  # share of chains of one and two steps
    clear: int = 4  # how far the result stands from the nearest border, at least

    @property
    def texts(self) -> tuple[str, ...]:
        return ("A) 0 to 19 B) 20 to 34 C) 35 to 60 D) 61 to 99",)

    def sample(self, rng: Generator) -> Problem:
        count = 1 + int(rng.choice(len(self.lengths), p=self.lengths))
        story = tell(rng, count)
        result = story.steps[-1].result
        starts = starts_around(rng, result, self.clear)
        prompt = " ".join((*story.sentences, closing(rng, story), options(starts)))
        answer = f" {letter_of(starts, result)}"
        return Problem(story.core, prompt, chain(story), f" {self.suffix}", answer, len(story.steps) + 2)

    def check(self, problem: Problem, text: str) -> bool:
        found = ANSWER.search(text.strip())
        return found is not None and found[1] == problem.answer.strip()


def starts_around(rng: Generator, value: int, clear: int = 0) -> list[int]:
    """Where four ranges over 0..99 start, such that the value is about equally often in each of them."""
    wanted = int(rng.integers(len(LETTERS)))
    for attempt in range(1000):
        starts = [0, *sorted(int(n) for n in rng.integers(NARROWEST, LARGEST - NARROWEST + 1, size=3))]
        wide = all(end - start >= NARROWEST for start, end in spans(starts))
        wide &= all(not start - clear <= value < start + clear for start in starts[1:])
        if wide and (letter_of(starts, value) == LETTERS[wanted] or attempt > 20):
            return starts
    raise AssertionError("three starts drawn at random leave wide enough ranges far more often than that")


def spans(starts: list[int]) -> list[tuple[int, int]]:
    return list(zip(starts, [start - 1 for start in starts[1:]] + [LARGEST], strict=True))


def letter_of(starts: list[int], value: int) -> str:
    return LETTERS[max(i for i, start in enumerate(starts) if start <= value)]


def options(starts: list[int]) -> str:
    return " ".join(f"{letter}) {low} to {high}" for letter, (low, high) in zip(LETTERS, spans(starts), strict=True))
