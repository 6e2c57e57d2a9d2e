"""The user's own prompts as a benchmark, with or without reference answers, from a file or a list."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from foretell.engine.engine import Completion
from foretell.engine.prompt_files import FilePrompt, parse_prompts, read_prompts
from foretell.engine.prompt_kinds import WrittenPrompt
from foretell.errors import RequestError, show
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.source import pick
from foretell.policies.stop.schedules import Staged

LABELLED = "labelled"  # key in an example's data: whether the file has an answer for it
LABEL = "label"  # the group that the user put it into, or None
WHERE = "where"  # the file and the line
LIST = "the list of prompts"

Given = WrittenPrompt | Mapping[str, Any]  # anything that a line of a file may hold, or a list of messages


@dataclass(frozen=True, slots=True)
class Prompts:
    """Implements `Benchmark`. A prompt without an "answer" has no right answer, so every answer counts as wrong."""

    name: ClassVar[str] = "prompts"

    @property
    def options(self) -> Mapping[str, Any]:
        """Empty: the caller chooses the length of an answer."""
        return {}

    @property
    def thresholds(self) -> Staged:
        return Staged()

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        if source is None:
            raise RequestError("prompts are read from a file, but none was given: use source=... (--data FILE)")
        return pick([example_of(one) for one in read_prompts(source)], limit, seed)

    def extract(self, completion: Completion) -> str | None:
        """Return the text of the answer region, or the whole text if there is no region."""
        text = completion.text if completion.answer is None else completion.answer
        return text.strip() or None

    def grade(self, example: Example, answer: str | None) -> bool:
        return bool(example.data[LABELLED]) and answer == example.gold


def example_of(one: FilePrompt) -> Example:
    """Return a line of a file as an example. Raises RequestError if its answer cannot be one."""
    right = one.answer
    if not is_answer(right):
        raise RequestError(f'{one.where}: "answer" must be a text or a number, got {show(right)}')
    prompt = one.prompt if isinstance(one.prompt, str) else tuple(one.prompt)
    gold = "" if right is None else str(right).strip()
    return Example(str(one.id), prompt, gold, data_of(one))


def is_answer(value: object) -> bool:
    """Return whether this can be the answer in a line of a file; None is no answer."""
    return isinstance(value, str | int | float | None) and not isinstance(value, bool)


def data_of(one: FilePrompt) -> dict[str, Any]:
    """Return the data of an example that was read from a file."""
    return {LABELLED: one.answer is not None, LABEL: one.label, WHERE: one.where}


def format_prompts(prompts: Iterable[Given]) -> str:
    """Return a list of prompts as the text of a JSONL file. Raises the errors that reading such a file would."""
    if not isinstance(prompts, Iterable) or isinstance(prompts, Mapping | bytes):
        raise RequestError(f"prompts must be a file or a list, got {show(prompts)}")
    text = "".join(_format_line(one, number) for number, one in enumerate(prompts, 1))
    for one in parse_prompts(text, LIST, plain=False):
        example_of(one)
    return text


def _format_line(one: Given, number: int) -> str:
    conversation = isinstance(one, Sequence) and not isinstance(one, str | bytes)
    try:
        return json.dumps({"messages": list(one)} if conversation else one, default=_to_dict) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{LIST}, line {number}: not valid JSON: {error}, got {show(one)}") from error


def _to_dict(value: object) -> object:
    """Convert a mapping to a dict, the only mapping that `json` accepts."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value")
