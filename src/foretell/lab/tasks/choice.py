"""Multiple choice: a short word problem and four ranges, "A) 0 to 19 B) 20 to 34 ..."; the answer is one letter."""

from __future__ import annotations

import re
from dataclasses import dataclass

from numpy.random import Generator

from foretell.lab.tasks.problem import Problem
from foretell.lab.tasks.word import LARGEST, chain, closing, tell

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

    @property
    def texts(self) -> tuple[str, ...]:
        return ("A) 0 to 19 B) 20 to 34 C) 35 to 60 D) 61 to 99",)

    def sample(self, rng: Generator) -> Problem:
        count = 1 + int(rng.choice(len(self.lengths), p=self.lengths))
        story = tell(rng, count)
        letter, options = ranges(rng, story.steps[-1].result)
        prompt = " ".join((*story.sentences, closing(rng, story), options))
        return Problem(story.core, prompt, chain(story), f" {self.suffix}", f" {letter}", len(story.steps) + 2)

    def check(self, problem: Problem, text: str) -> bool:
        found = ANSWER.search(text.strip())
        return found is not None and found[1] == problem.answer.strip()


def ranges(rng: Generator, value: int) -> tuple[str, str]:
    """Four ranges that cover 0..99, and the letter of the one with the value; letters are about equally likely."""
    wanted = int(rng.integers(len(LETTERS)))
    for attempt in range(1000):
        starts = [0, *sorted(int(n) for n in rng.integers(NARROWEST, LARGEST - NARROWEST + 1, size=3))]
        ends = [start - 1 for start in starts[1:]] + [LARGEST]
        wide = all(end - start >= NARROWEST for start, end in zip(starts, ends, strict=True))
        index = max(i for i, start in enumerate(starts) if start <= value)
        if wide and (index == wanted or attempt > 20):
            pairs = zip(LETTERS, starts, ends, strict=True)
            return LETTERS[index], " ".join(f"{letter}) {start} to {end}" for letter, start, end in pairs)
    raise AssertionError("three starts drawn at random leave wide enough ranges far more often than that")
