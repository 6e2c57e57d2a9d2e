"""The benchmarks on the public files: the number of rows, and every gold answer is graded as right."""

from __future__ import annotations

import os

import pytest

from foretell.evaluation.benchmarks import find
from foretell.evaluation.benchmarks.code import Code
from foretell.evaluation.benchmarks.source import VARIABLE, data_folder
from foretell.evaluation.sandbox.sandbox import LEVELS, why_unavailable
from tests.evaluation.test_benchmarks import parse_prompts

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(data_folder() is None, reason=f"the variable {VARIABLE} names no folder with benchmark files"),
]
COUNTS = {
    "mmlu": 14042,
    "arc_challenge": 1172,
    "hellaswag": 10042,
    "truthfulqa": 817,
    "winogrande": 1267,
    "piqa": 1838,
    "gsm8k": 1319,
    "countdown": 992,
    "sudoku4x4": 100,
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_gold_answer_is_right(name: str) -> None:
    benchmark = find(name)
    examples = benchmark.examples(None, None, 0)
    assert len({example.id for example in examples}) == len(examples) == COUNTS[name]
    wrong = [e.id for e in examples if not benchmark.grade(e, benchmark.extract(parse_prompts(name, e)))]
    assert wrong == []


def test_a_part_of_a_countdown_file_is_accepted() -> None:
    benchmark = find("countdown_cd3")
    examples = benchmark.examples(None, None, 0)
    assert len(examples) in {192, 992}
    assert all(benchmark.grade(e, benchmark.extract(parse_prompts("countdown", e))) for e in examples)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("name", "count"), [("humaneval", 164), ("mbpp", 500)])
def test_every_gold_program_passes(name: str, count: int, level: str) -> None:
    if problem := why_unavailable(level):
        pytest.skip(f"{level}: {problem}")
    benchmark = find(name, allow_execution=True, sandbox=level)
    assert isinstance(benchmark, Code)
    examples = benchmark.examples(None, None, 0)
    answers = [benchmark.extract(parse_prompts(benchmark.name, example)) for example in examples]
    verdicts = benchmark.verdicts(examples, answers, jobs=os.cpu_count() or 1)
    assert len(verdicts) == count
    assert {e.id: v.reason for e, v in zip(examples, verdicts, strict=True) if not v.passed} == {}
