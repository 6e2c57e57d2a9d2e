"""Typed decisions about the user's own inputs as a benchmark, with or without right answers, from one file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from foretell.decide.prompts import DecisionPrompt
from foretell.decide.wire import parse_questions
from foretell.engine.engine import Completion
from foretell.engine.prompt_files import FilePrompt, parse_prompts
from foretell.errors import RequestError, show
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.prompts import data_of
from foretell.evaluation.benchmarks.source import pick
from foretell.policies.stop.schedules import Staged
from foretell.storage import load_json

RIGHT = "right"  # key in an example's data: the right value of each question, by name


@dataclass(frozen=True, slots=True)
class Decisions:
    """Implements `Benchmark`. An answer is the texts of all slots, as JSON.

    The file is one JSON object: `questions`, `template` (a name, or null) and `inputs`, which is the text of a file of
    prompts. Right answers are for calibration; how often decisions are right is not graded here.
    """

    name: ClassVar[str] = "decisions"

    @property
    def options(self) -> Mapping[str, Any]:
        return {"block_length": None}

    @property
    def thresholds(self) -> Staged:
        return Staged()

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        if source is None:
            raise RequestError("decisions are read from a file, but none was given: use source=... (--data FILE)")
        content = load_json(source, "file of decisions", RequestError)
        if not isinstance(content, Mapping) or not {"questions", "inputs"} <= content.keys():
            raise RequestError(f"{source} must be an object with questions and inputs")
        parsed = parse_questions(content["questions"])
        later = [name for name, one in parsed.items() if one.depends_on]
        if later:
            raise RequestError(
                f"all questions are asked at once, but {later[0]} depends on another one; leave out depends_on"
            )
        names = list(parsed)
        questions, template = json.dumps(content["questions"]), content.get("template")
        asked = parse_prompts(str(content["inputs"]), "inputs", plain=False)
        return pick([example_of(one, names, questions, template) for one in asked], limit, seed)

    def extract(self, completion: Completion) -> str | None:
        return completion.answer

    def grade(self, example: Example, answer: str | None) -> bool:  # noqa: ARG002  texts are not values
        return False


def example_of(one: FilePrompt, names: Sequence[str], questions: str, template: str | None) -> Example:
    """Return a line of a file as an example. Raises RequestError if its answers are not those of the questions."""
    right = one.answer if isinstance(one.answer, Mapping) else {names[0]: one.answer}
    if one.answer is not None and (set(right) - set(names) or (len(names) > 1 and not isinstance(one.answer, Mapping))):
        raise RequestError(f'{one.where}: "answer" must be an object with {", ".join(names)}, got {show(one.answer)}')
    data = data_of(one) | {RIGHT: {} if one.answer is None else dict(right)}
    return Example(str(one.id), DecisionPrompt(one.prompt, questions, template), "", data)
