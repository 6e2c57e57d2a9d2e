"""What HumanEval and MBPP share: a window with the code fences in place, and grading by running the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretell.lab.benchmark import Example
from foretell.lab.sandbox import Candidate, Limits, Verdict, run_tests

WINDOW, FENCE = 512, 4
# 512 / 512 / 32, as in the paper. Four positions are kept for each fence: a vocabulary may spell the first one with two
# to four tokens, and behind the second one the turn ends. The region is the body between them.
OPTIONS: Mapping[str, Any] = {
    "max_new_tokens": WINDOW,
    "steps": WINDOW,
    "block_length": 32,
    "suffix": "",
    "pins": {0: "```python\n", WINDOW - FENCE: "```"},
    "answer_start": FENCE,
    "answer_length": WINDOW - 2 * FENCE,
}


def judged(
    examples: Sequence[Example], programs: Sequence[str | None], *, allow_execution: bool, jobs: int = 1
) -> list[Verdict]:
    """A verdict on every program, which has to pass its example's tests; no program fails."""
    candidates = [
        Candidate("raise SystemExit('no code was found')" if program is None else program, example.data["tests"])
        for example, program in zip(examples, programs, strict=True)
    ]
    return run_tests(candidates, allow_execution=allow_execution, jobs=jobs, limits=Limits())
