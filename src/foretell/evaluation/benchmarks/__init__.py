"""The public benchmarks of the paper by name, one file per benchmark."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from foretell.errors import RequestError, unknown
from foretell.evaluation.benchmark import Benchmark
from foretell.evaluation.benchmarks.arc_challenge import ARC_CHALLENGE
from foretell.evaluation.benchmarks.code import Code
from foretell.evaluation.benchmarks.countdown import Countdown
from foretell.evaluation.benchmarks.gpqa import GPQA
from foretell.evaluation.benchmarks.gsm8k import GSM8K
from foretell.evaluation.benchmarks.hellaswag import HELLASWAG
from foretell.evaluation.benchmarks.humaneval import HUMANEVAL
from foretell.evaluation.benchmarks.mbpp import MBPP
from foretell.evaluation.benchmarks.mmlu import MMLU
from foretell.evaluation.benchmarks.piqa import PIQA
from foretell.evaluation.benchmarks.source import Source
from foretell.evaluation.benchmarks.sudoku4x4 import Sudoku4x4
from foretell.evaluation.benchmarks.truthfulqa import TRUTHFULQA
from foretell.evaluation.benchmarks.winogrande import WINOGRANDE


class PublicBenchmark(Benchmark, Protocol):
    """A benchmark whose examples are read from a file."""

    @property
    def source(self) -> Source: ...


_ALL: tuple[PublicBenchmark, ...] = (
    MMLU,
    ARC_CHALLENGE,
    HELLASWAG,
    TRUTHFULQA,
    WINOGRANDE,
    PIQA,
    GSM8K(),
    GSM8K("gsm8k_128", window=128),
    GPQA,
    HUMANEVAL,
    MBPP,
    Countdown(),
    Countdown("countdown_cd3", 3),
    Countdown("countdown_cd5", 5),
    Sudoku4x4(),
)
BENCHMARKS: dict[str, PublicBenchmark] = {benchmark.name: benchmark for benchmark in _ALL}


def find(name: str, *, allow_execution: bool = False, sandbox: str | None = None) -> Benchmark:
    """Return the benchmark with this name; `allow_execution` lets it run code, at this level of the sandbox."""
    if name not in BENCHMARKS:
        raise RequestError(unknown("benchmark", name, BENCHMARKS))
    found = BENCHMARKS[name]
    return replace(found, allow_execution=allow_execution, sandbox=sandbox) if isinstance(found, Code) else found


__all__ = ["BENCHMARKS", "PublicBenchmark", "find"]
