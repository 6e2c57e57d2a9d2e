"""The user's own texts with masks as a benchmark, with or without the original fills, from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from foretell.engine.engine import Completion
from foretell.engine.masked_text import MaskedText
from foretell.engine.prompt_files import FilePrompt, read_prompts
from foretell.errors import RequestError, show
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.prompts import LABELLED, data_of, is_answer
from foretell.evaluation.benchmarks.source import pick
from foretell.policies.stop.schedules import Staged


@dataclass(frozen=True, slots=True)
class Fill:
    """Implements `Benchmark`. An answer is what all masks of a text became, joined.

    The "answer" in the file is one text or a list with one item per run of masks; white space in it does not count.
    Without one, every answer counts as wrong.
    """

    name: ClassVar[str] = "fill"

    @property
    def options(self) -> Mapping[str, Any]:
        """Empty: each text is its own window."""
        return {}

    @property
    def thresholds(self) -> Staged:
        return Staged()

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        if source is None:
            raise RequestError(
                "texts with masks are read from a file, but none was given: use source=... (--data FILE)"
            )
        return pick([example_of(one) for one in read_prompts(source)], limit, seed)

    def extract(self, completion: Completion) -> str | None:
        return "".join(completion.fills) or None

    def grade(self, example: Example, answer: str | None) -> bool:
        return bool(example.data[LABELLED]) and "".join((answer or "").split()) == example.gold


def example_of(one: FilePrompt) -> Example:
    """Return a line of a file as an example. Raises RequestError if its answer cannot be one."""
    if not isinstance(one.prompt, str):
        raise RequestError(f'{one.where}: masks are filled in a "text" or a "prompt", not in "messages"')
    answer = one.answer if isinstance(one.answer, list) else [one.answer]
    if not all(map(is_answer, answer)) or (isinstance(one.answer, list) and None in answer):
        raise RequestError(f'{one.where}: "answer" must be a text or a list of texts, got {show(one.answer)}')
    gold = "" if one.answer is None else "".join("".join(map(str, answer)).split())
    return Example(str(one.id), MaskedText(one.prompt), gold, data_of(one))
