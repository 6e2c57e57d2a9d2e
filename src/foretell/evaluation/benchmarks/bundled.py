"""The bundled model's tasks as benchmarks: an unlimited supply of held-out problems, drawn with a seed."""

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
from foretell.evaluation.benchmarks.source import number_duplicates
from foretell.evaluation.benchmarks.without_suffix import WithoutSuffix, has_suffix
from foretell.policies.stop.schedules import Staged
from foretell.tasks import TASKS, Problem, Task, draw

DEFAULT_COUNT = 1000  # number of problems if no limit is given
MAX_REPEATS = 20_000  # draws in a row without a new problem, after which the supply counts as exhausted
ANSWER = re.compile(r"The answer is (\S+)\s*$")


@dataclass(frozen=True, slots=True)
class Bundled:
    """Implements `Benchmark`. `trailing` positions after the answer stay free, as in the paper's layout.

    The suffix stays at the position that it had in training. If not `distinct`, problems are independent draws and may
    repeat, so any number of them comes from the same distribution; without repeats, later ones are harder.
    """

    task: Task
    trailing: int = 0
    distinct: bool = True

    @property
    def name(self) -> str:
        return f"{self.task.name}_{self.task.window + self.trailing}" if self.trailing else self.task.name

    @property
    def options(self) -> Mapping[str, Any]:
        task = self.task
        window: dict[str, Any] = {"max_new_tokens": task.window, "block_length": task.block}
        if self.trailing:
            window["max_new_tokens"] += self.trailing
            window["answer_start"] = task.window - task.answer_length
        if task.suffix:
            return window | {"suffix": task.suffix, "answer_length": task.answer_length}
        return window | {"answer_start": 0, "answer_length": task.answer_length}

    @property
    def thresholds(self) -> Staged:
        return Staged()

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        """Return `limit` problems (default: 1000); a smaller limit returns a prefix of these."""
        if source is not None:
            raise RequestError(f"{self.name} generates its problems and reads no file, but {source} was given")
        count = DEFAULT_COUNT if limit is None else limit
        rng = np.random.default_rng(seed)
        if not self.distinct:
            return number_duplicates([self._example(one) for one in draw(self.task, rng, count, test=True)])
        return [self._example(one) for one in islice(draw_distinct(self.task, rng), count)]

    def _example(self, problem: Problem) -> Example:
        key = blake2b(problem.core.encode(), digest_size=6).hexdigest()
        gold = (problem.answer or problem.response).strip()
        return Example(f"{self.task.name}-{key}", problem.prompt, gold, {"problem": problem})

    def extract(self, completion: Completion) -> str | None:
        """Return what follows the last "The answer is", or the whole text if the task has no suffix.

        With `trailing` positions, return the text of the answer region.
        """
        if self.trailing:
            return (completion.answer or "").strip() or None
        text = completion.text.strip()
        if not self.task.suffix:
            return text or None
        stated = ANSWER.search(text)
        return stated[1] if stated else None

    def grade(self, example: Example, answer: str | None) -> bool:
        if answer is None:
            return False
        text = f"The answer is {answer}" if self.task.suffix else answer
        return self.task.check(example.data["problem"], text)


def draw_distinct(task: Task, rng: Generator) -> Iterator[Problem]:
    """Yield held-out problems, each core once. Raises RequestError if no new one is found after many draws."""
    seen: set[str] = set()
    repeats = 0
    while repeats < MAX_REPEATS:
        (problem,) = draw(task, rng, 1, test=True)
        if problem.core in seen:
            repeats += 1
            continue
        seen.add(problem.core)
        repeats = 0
        yield problem
    raise RequestError(f"{task.name} has no more than about {len(seen)} held-out problems; ask for fewer")


_ALL: tuple[Benchmark, ...] = tuple(Bundled(task) for task in TASKS.values())
_LONGER = Bundled(TASKS["word"], trailing=32)
BUNDLED: dict[str, Benchmark] = {
    one.name: one for one in (*_ALL, *(WithoutSuffix(one) for one in _ALL if has_suffix(one)), _LONGER)
}
