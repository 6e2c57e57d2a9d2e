r"""MBPP: 500 short Python tasks, each with three tests.

{"text": "Write a python function to remove first and last occurrence of a given character from the string.",
 "code": "def remove_Occ(s,ch): ...", "task_id": 11, "test_setup_code": "",
 "test_list": ["assert remove_Occ(\"hello\",\"l\") == \"heo\"", "assert remove_Occ(\"abcda\",\"a\") == \"bcd\"",
               "assert remove_Occ(\"PHP\",\"P\") == \"H\""], "challenge_test_list": []}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.engine.engine import Completion
from foretell.lab import extract
from foretell.lab.benchmark import Example
from foretell.lab.benchmarks.code import OPTIONS, judged
from foretell.lab.benchmarks.source import Hub, Row, Source, pick
from foretell.lab.sandbox import Verdict
from foretell.policies.stop.schedules import Staged

SOURCE = Source("mbpp", ("hf_test.jsonl", "test.jsonl"), Hub("google-research-datasets/mbpp", "full", "test"))


@dataclass(frozen=True, slots=True)
class MBPP:
    """Implements `Benchmark`. Grading runs what the model wrote, so it has to be allowed."""

    name: str = "mbpp"
    allow_execution: bool = False
    thresholds: Staged = Staged(7.5, 5.0, 4.5)

    @property
    def options(self) -> Mapping[str, Any]:
        return dict(OPTIONS)

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        return pick([self.example(row) for row in SOURCE.rows(source)], limit, seed)

    def example(self, row: Row) -> Example:
        tests = "\n".join(row.texts("test_list"))
        prompt = (
            f"{row.text('text').strip()} It has to pass these tests:\n\n```python\n{tests}\n```\n\n"
            "Answer with the function in one block of Python code and nothing else."
        )
        gold = extract.code(row.text("code")) or ""
        # The set-up comes behind the code: one task's refers to a class that the code defines.
        setup = row.text("test_setup_code", empty=True).replace("\r\n", "\n")
        return Example(f"{self.name}/{row.whole('task_id', 1, 974)}", prompt, gold, {"tests": f"{setup}\n{tests}\n"})

    def extract(self, completion: Completion) -> str | None:
        return extract.code(completion.text)

    def grade(self, example: Example, answer: str | None) -> bool:
        return self.verdicts([example], [answer])[0].passed

    def verdicts(self, examples: Sequence[Example], answers: Sequence[str | None], jobs: int = 1) -> list[Verdict]:
        """Why each answer is right or wrong; `jobs` of them run at a time."""
        return judged(examples, answers, allow_execution=self.allow_execution, jobs=jobs)
