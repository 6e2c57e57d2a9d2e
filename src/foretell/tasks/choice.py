"""Multiple choice: a short word problem and four ranges, "A) 0 to 19 B) 20 to 34 ..."; the answer is one letter."""

from __future__ import annotations

import re
from dataclasses import dataclass

from numpy.random import Generator

from foretell.tasks.problem import Problem
from foretell.tasks.word import LARGEST, draw_question, draw_story, write_chain

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
    clear: int = 4  # minimum distance of the result from the nearest border

    @property
    def texts(self) -> tuple[str, ...]:
        return ("A) 0 to 19 B) 20 to 34 C) 35 to 60 D) 61 to 99",)

    def sample(self, rng: Generator) -> Problem:
        count = 1 + int(rng.choice(len(self.lengths), p=self.lengths))
        story = draw_story(rng, count)
        result = story.steps[-1].result
        starts = draw_starts(rng, result, self.clear)
        prompt = " ".join((*story.sentences, draw_question(rng, story), format_options(starts)))
        answer = f" {letter_of(starts, result)}"
        return Problem(story.core, prompt, write_chain(story), f" {self.suffix}", answer, len(story.steps) + 2)

    def check(self, problem: Problem, text: str) -> bool:
        found = ANSWER.search(text.strip())
        return found is not None and found[1] == problem.answer.strip()


def draw_starts(rng: Generator, value: int, clear: int = 0) -> list[int]:
    """Draw the starts of four ranges over 0..99; the value lies about equally often in each of them."""
    wanted = int(rng.integers(len(LETTERS)))
    for attempt in range(1000):
        starts = [0, *sorted(int(n) for n in rng.integers(NARROWEST, LARGEST - NARROWEST + 1, size=3))]
        wide = all(end - start >= NARROWEST for start, end in spans(starts))
        wide &= all(not start - clear <= value < start + clear for start in starts[1:])
        if wide and (letter_of(starts, value) == LETTERS[wanted] or attempt > 20):
            return starts
    raise AssertionError("no wide enough ranges in 1000 draws, although most draws have them")


def spans(starts: list[int]) -> list[tuple[int, int]]:
    return list(zip(starts, [start - 1 for start in starts[1:]] + [LARGEST], strict=True))


def letter_of(starts: list[int], value: int) -> str:
    return LETTERS[max(i for i, start in enumerate(starts) if start <= value)]


def format_options(starts: list[int]) -> str:
    return " ".join(f"{letter}) {low} to {high}" for letter, (low, high) in zip(LETTERS, spans(starts), strict=True))
