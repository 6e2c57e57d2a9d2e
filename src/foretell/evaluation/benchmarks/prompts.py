"""Prompts as a benchmark: what is asked in production, with right answers or without, from a file or a list."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from foretell.engine.engine import Completion, Prompt
from foretell.engine.prompt_files import FilePrompt, parse_prompts, read_prompts
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.source import pick
from foretell.policies.stop.schedules import Staged

LABELLED = "labelled"  # key of an example's data: whether the file has its right answer
LIST = "the list of prompts"

Given = Prompt | Mapping[str, Any]  # what a line of a file may be, and a conversation by itself


@dataclass(frozen=True, slots=True)
class Prompts:
    """Implements `Benchmark`. Without an "answer" beside it, a prompt has no right answer and none is graded right."""

    name: ClassVar[str] = "prompts"

    @property
    def options(self) -> Mapping[str, Any]:
        """Nothing: how long an answer may get is for the caller to say."""
        return {}

    @property
    def thresholds(self) -> Staged:
        return Staged()

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        if source is None:
            raise RequestError(
                "prompts are read from a file, and none was given: name it with source=... (--data FILE)"
            )
        return pick([_example(one) for one in read_prompts(source)], limit, seed)

    def extract(self, completion: Completion) -> str | None:
        """What stands in the answer region; the whole text where none is laid out."""
        said = completion.text if completion.answer is None else completion.answer
        return said.strip() or None

    def grade(self, example: Example, answer: str | None) -> bool:
        return bool(example.data[LABELLED]) and answer == example.gold


def _example(one: FilePrompt) -> Example:
    right = one.answer
    if isinstance(right, bool) or not isinstance(right, str | int | float | None):
        raise RequestError(f'{one.where}: "answer" must be a text or a number, got {right!r:.40}')
    prompt = one.prompt if isinstance(one.prompt, str) else tuple(one.prompt)
    gold = "" if right is None else str(right).strip()
    return Example(str(one.id), prompt, gold, {LABELLED: right is not None})


def listed(prompts: Iterable[Given]) -> str:
    """Prompts in Python as the text of a file; what a file could not hold gets a file's errors."""
    if not isinstance(prompts, Iterable) or isinstance(prompts, Mapping | bytes):
        raise RequestError(f"prompts are a file or a list, got {prompts!r:.60}")
    text = "".join(_line(one, number) for number, one in enumerate(prompts, 1))
    for one in parse_prompts(text, LIST, plain=False):
        _example(one)
    return text


def _line(one: Given, number: int) -> str:
    talk = isinstance(one, Sequence) and not isinstance(one, str | bytes)
    try:
        return json.dumps({"messages": list(one)} if talk else one, default=_plain) + "\n"
    except (TypeError, ValueError) as error:
        raise RequestError(f"{LIST}, line {number}: not valid JSON: {error}, got {one!r:.60}") from error


def _plain(value: object) -> object:
    """A mapping that is no dict as one; JSON knows no other."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is no JSON value")
