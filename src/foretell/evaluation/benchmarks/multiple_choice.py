"""Questions with lettered options: their prompt, the position of the letter and how it is extracted."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from foretell.engine.engine import Completion
from foretell.evaluation import answers
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.source import DataRow, Source, fingerprint, number_duplicates, pick
from foretell.policies.stop.schedules import Staged

SUFFIX = " The answer is"
# 64 / 64 / 16, as in the paper, which does not say where the letter is; we leave three positions after it for a full
# stop and the end of the turn. In LLaDA's and Dream's vocabularies, the letter with the blank before it (" B") is one
# token and SUFFIX is three.
SHORT: Mapping[str, Any] = {
    "max_new_tokens": 64,
    "steps": 64,
    "block_length": 16,
    "suffix": SUFFIX,
    "answer_start": 60,
    "answer_length": 1,
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its options in the file's order."""

    stem: str
    options: tuple[str, ...]
    right: int
    id: str = ""  # from the data set; if empty, a hash of the text is used


@dataclass(frozen=True, slots=True)
class MultipleChoice:
    """Implements `Benchmark`."""

    name: str
    source: Source
    question: Callable[[DataRow], Question]
    task: str = "Answer the following multiple choice question."
    letters: str = "ABCD"
    shuffled: bool = False  # for files in which the right option is always in the same place
    options: Mapping[str, Any] = field(default_factory=lambda: SHORT)
    thresholds: Staged = Staged()
    strict: bool = False  # ignore letters that the text does not state as its answer

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        """See `Benchmark`. The order of shuffled options depends only on the seed and the example."""
        return pick(number_duplicates([self.example(row, seed) for row in self.source.rows(source)]), limit, seed)

    def example(self, row: DataRow, seed: int) -> Example:
        question = self.question(row)
        count = len(question.options)
        if not 2 <= count <= len(self.letters):
            raise row.error(f"there must be 2 to {len(self.letters)} options, got {count}")
        if question.right >= count:
            raise row.error(f"the right option is number {question.right + 1} of {count}")
        name = f"{self.name}/{question.id or fingerprint(question.stem, *question.options)}"
        order = list(range(count))
        if self.shuffled:
            random.Random(f"{seed}:{name}").shuffle(order)  # noqa: S311 - an order, not a secret
        options = tuple(question.options[place] for place in order)
        gold = self.letters[order.index(question.right)]
        return Example(name, self.prompt(question.stem, options), gold, {"letters": self.letters[:count]})

    def prompt(self, stem: str, options: Sequence[str]) -> str:
        letters = self.letters[: len(options)]
        listed = "\n".join(f"{letter}) {option.strip()}" for letter, option in zip(letters, options, strict=True))
        return (
            f"{self.task} Reason step by step in a few words, then end with a line of the form "
            f"'The answer is X', where X is one of {', '.join(letters)}.\n\n{stem.strip()}\n\n{listed}"
        )

    def extract(self, completion: Completion) -> str | None:
        """Return the letter in the answer region or, if there is none, the one in the text."""
        if completion.answer is not None:
            found = answers.read_letter(completion.answer, self.letters)
            if found is not None:
                return found
        return answers.find_letter(completion.text, self.letters, strict=self.strict)

    def grade(self, example: Example, answer: str | None) -> bool:
        return answer == example.gold


def first_letters(count: int) -> str:
    return ascii_uppercase[:count]
