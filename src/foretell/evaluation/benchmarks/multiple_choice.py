"""Questions with lettered options: how they are asked, where the letter goes and how it is read."""

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
from foretell.evaluation.benchmarks.source import DataRow, Source, distinct, fingerprint, pick
from foretell.policies.stop.schedules import Staged

SUFFIX = " The answer is"
# 64 / 64 / 16, as in the paper. It does not say where the letter stands; we leave three positions behind it for a full
# stop and the end of the turn. The letter is one token, with the blank before it (" B"), as in LLaDA's and Dream's
# vocabularies; SUFFIX is three tokens there.
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
    id: str = ""  # the data set's own; without one it is made from the text


@dataclass(frozen=True, slots=True)
class MultipleChoice:
    """Implements `Benchmark`."""

    name: str
    source: Source
    question: Callable[[DataRow], Question]
    task: str = "Answer the following multiple choice question."
    letters: str = "ABCD"
    shuffled: bool = False  # where the file always has the right option in one place
    options: Mapping[str, Any] = field(default_factory=lambda: SHORT)
    thresholds: Staged = Staged()
    strict: bool = False  # not a letter that nothing states

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        """See `Benchmark`. The order of shuffled options depends on the seed and the example, on nothing else."""
        return pick(distinct([self.example(row, seed) for row in self.source.rows(source)]), limit, seed)

    def example(self, row: DataRow, seed: int) -> Example:
        asked = self.question(row)
        count = len(asked.options)
        if not 2 <= count <= len(self.letters):
            raise row.error(f"there must be 2 to {len(self.letters)} options, got {count}")
        if asked.right >= count:
            raise row.error(f"the right option is number {asked.right + 1} of {count}")
        name = f"{self.name}/{asked.id or fingerprint(asked.stem, *asked.options)}"
        order = list(range(count))
        if self.shuffled:
            random.Random(f"{seed}:{name}").shuffle(order)  # noqa: S311 - an order, not a secret
        options = tuple(asked.options[place] for place in order)
        gold = self.letters[order.index(asked.right)]
        return Example(name, self.prompt(asked.stem, options), gold, {"letters": self.letters[:count]})

    def prompt(self, stem: str, options: Sequence[str]) -> str:
        letters = self.letters[: len(options)]
        listed = "\n".join(f"{letter}) {option.strip()}" for letter, option in zip(letters, options, strict=True))
        return (
            f"{self.task} Reason step by step in a few words, then end with a line of the form "
            f"'The answer is X', where X is one of {', '.join(letters)}.\n\n{stem.strip()}\n\n{listed}"
        )

    def extract(self, completion: Completion) -> str | None:
        """The letter in the answer region; where something else stands there, the one that the text states."""
        if completion.answer is not None:
            found = answers.lone_letter(completion.answer, self.letters)
            if found is not None:
                return found
        return answers.letter(completion.text, self.letters, strict=self.strict)

    def grade(self, example: Example, answer: str | None) -> bool:
        return answer == example.gold


def letters(count: int) -> str:
    return ascii_uppercase[:count]
