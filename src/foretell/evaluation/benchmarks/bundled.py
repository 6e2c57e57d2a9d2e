"""The bundled model's own tasks as benchmarks: held-out problems without end, drawn by a seed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from foretell.engine.engine import Completion
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Benchmark, Example
from foretell.evaluation.benchmarks.without_suffix import Free, announced
from foretell.policies.stop.schedules import Staged
from foretell.tasks import TASKS, Problem, Task, draw

STANDARD = 1000  # problems unless a limit is given: there is no "all"
PATIENCE = 20_000  # draws in a row without a new problem before the supply counts as used up
SAID = re.compile(r"The answer is (\S+)\s*$")


@dataclass(frozen=True, slots=True)
class Bundled:
    """Implements `Benchmark`. `behind` leaves positions free behind the answer, as the paper's layout does.

    The suffix stays where the model was trained to meet it.
    """

    task: Task
    behind: int = 0

    @property
    def name(self) -> str:
        return f"{self.task.name}_{self.task.window + self.behind}" if self.behind else self.task.name

    @property
    def options(self) -> Mapping[str, Any]:
        task = self.task
        window: dict[str, Any] = {"max_new_tokens": task.window, "block_length": task.block}
        if self.behind:
            window["max_new_tokens"] += self.behind
            window["answer_start"] = task.window - task.answer_length
        if task.suffix:
            return window | {"suffix": task.suffix, "answer_length": task.answer_length}
        return window | {"answer_start": 0, "answer_length": task.answer_length}

    @property
    def thresholds(self) -> Staged:
        return Staged()

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        """`limit` problems (default: 1000) of distinct cores; a smaller limit gives the first of a larger one's."""
        if source is not None:
            raise RequestError(f"{self.name} draws its own problems and reads no file, but was given {source}")
        count = STANDARD if limit is None else limit
        return [self._example(problem) for problem in islice(distinct(self.task, np.random.default_rng(seed)), count)]

    def _example(self, problem: Problem) -> Example:
        key = blake2b(problem.core.encode(), digest_size=6).hexdigest()
        gold = (problem.answer or problem.response).strip()
        return Example(f"{self.task.name}-{key}", problem.prompt, gold, {"problem": problem})

    def extract(self, completion: Completion) -> str | None:
        """What stands behind the last "The answer is"; the whole text where the whole text is the answer.

        What follows the answer's place is no part of it.
        """
        if self.behind:
            return (completion.answer or "").strip() or None
        text = completion.text.strip()
        if not self.task.suffix:
            return text or None
        said = SAID.search(text)
        return said[1] if said else None

    def grade(self, example: Example, answer: str | None) -> bool:
        if answer is None:
            return False
        text = f"The answer is {answer}" if self.task.suffix else answer
        return self.task.check(example.data["problem"], text)


def distinct(task: Task, rng: Generator) -> Iterator[Problem]:
    """Held-out problems, each core once; an error when no new one turns up for long."""
    seen: set[str] = set()
    missed = 0
    while missed < PATIENCE:
        (problem,) = draw(task, rng, 1, test=True)
        if problem.core in seen:
            missed += 1
            continue
        seen.add(problem.core)
        missed = 0
        yield problem
    raise RequestError(f"{task.name} has no more than about {len(seen)} held-out problems; ask for fewer")


_ALL: tuple[Benchmark, ...] = tuple(Bundled(task) for task in TASKS.values())
_LONGER = Bundled(TASKS["word"], behind=32)
BUNDLED: dict[str, Benchmark] = {
    one.name: one for one in (*_ALL, *(Free(one) for one in _ALL if announced(one)), _LONGER)
}
