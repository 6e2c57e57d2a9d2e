r"""GSM8K: 1319 word problems of grade school arithmetic; the answer is a number.

{"question": "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her
 friends every day with four. She sells the remainder at the farmers' market daily for $2 per fresh duck egg. How much
 in dollars does she make every day at the farmers' market?", "answer": "... She makes 9 * 2 = $<<9*2=18>>18 every day
 at the farmer's market.\n#### 18"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.engine.engine import Completion
from foretell.evaluation import answers
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.reasoning import WINDOW, suffix_layout
from foretell.evaluation.benchmarks.source import DataRow, Hub, Source, fingerprint, number_duplicates, pick
from foretell.policies.stop.schedules import Staged

SOURCE = Source("gsm8k", ("test.jsonl", "hf_test.jsonl"), Hub("openai/gsm8k", "main", "test"))


@dataclass(frozen=True, slots=True)
class GSM8K:
    """Implements `Benchmark`."""

    name: str = "gsm8k"
    window: int = WINDOW  # the paper's ablations use 128 as well
    thresholds: Staged = Staged(8.0, 5.0, 3.5)
    strict: bool = False  # ignore numbers that the text does not state as its answer

    @property
    def source(self) -> Source:
        return SOURCE

    @property
    def options(self) -> Mapping[str, Any]:
        """In a window of 256, the suffix is at 200 to 202 and the number at 204 to 208."""
        return suffix_layout(self.window, blank=1, answer_length=5)

    def examples(self, source: Path | None, limit: int | None, seed: int) -> Sequence[Example]:
        return pick(number_duplicates([self.example(row) for row in SOURCE.rows(source)]), limit, seed)

    def example(self, row: DataRow) -> Example:
        problem, worked = row.text("question"), row.text("answer")
        _, mark, after = worked.rpartition("####")
        gold = answers.normalise_number(after)
        if not mark or gold is None:
            raise row.error("'answer' must end with '#### ' and a number")
        prompt = (
            "Solve the following problem step by step. End with a line of the form 'The answer is N', where N is a "
            f"plain number without a unit.\n\n{problem.strip()}"
        )
        return Example(f"gsm8k/{fingerprint(problem)}", prompt, gold)

    def extract(self, completion: Completion) -> str | None:
        """Return the stated number, else the one in the answer region, else (unless strict) the last one in the text.

        The text comes first because a number may be longer than the region.
        """
        text, region = completion.text, answers.find_number(completion.answer or "")
        return answers.find_stated_number(text) or region or answers.find_number(text, strict=self.strict)

    def grade(self, example: Example, answer: str | None) -> bool:
        """Whether the number is right. If the question counts in millions, "4 million" equals 4."""
        question = str(example.prompt).lower()
        scaled = [answers.normalise_number(f"{example.gold} {word}") for word in answers.SCALES if word in question]
        return answer is not None and answer in {example.gold, *scaled}
