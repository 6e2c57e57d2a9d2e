"""All tasks by name: those of the bundled model, the public benchmarks of the paper, and those of your own files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from foretell.errors import RequestError, unknown
from foretell.evaluation.benchmark import Benchmark
from foretell.evaluation.benchmarks import BENCHMARKS, PublicBenchmark, find
from foretell.evaluation.benchmarks.bundled import BUNDLED
from foretell.evaluation.benchmarks.code import Code
from foretell.evaluation.benchmarks.decisions import Decisions
from foretell.evaluation.benchmarks.fill import Fill
from foretell.evaluation.benchmarks.prompts import Prompts
from foretell.evaluation.benchmarks.without_suffix import WithoutSuffix, has_suffix

# The bundled model's tasks keep their names, so a public benchmark of the same name gets another one.
RENAMED = {"countdown_cd4": "countdown"}
PUBLIC: dict[str, str] = {name: name for name in BENCHMARKS if name not in BUNDLED} | RENAMED
FREE: dict[str, str] = {f"{name}-free": known for name, known in PUBLIC.items() if has_suffix(BENCHMARKS[known])}
OWN: dict[str, Benchmark] = {one.name: one for one in (Prompts(), Fill(), Decisions())}  # of the user's file
CATALOGUE: tuple[str, ...] = (*BUNDLED, *PUBLIC, *FREE, *OWN)
ABOUT = {
    "word": "word problems of one to five steps",
    "word_96": "word problems in a window of 96",
    "choice": "word problems with four ranges",
    "sudoku": "Sudoku on 4x4 cells",
    "countdown": "three numbers, one target",
    "mmlu": "questions on 57 subjects",
    "arc_challenge": "science questions",
    "hellaswag": "how a text continues",
    "truthfulqa": "popular falsehoods",
    "winogrande": "what fills a gap in a sentence",
    "piqa": "how to reach an everyday goal",
    "gsm8k": "grade school word problems",
    "gsm8k_128": "gsm8k in a window of 128",
    "gpqa": "questions written by experts",
    "humaneval": "Python functions to complete",
    "mbpp": "short Python tasks",
    "countdown_cd3": "three numbers, one target",
    "countdown_cd4": "four numbers, one target",
    "countdown_cd5": "five numbers, one target",
    "sudoku4x4": "public 4x4 Sudokus",
    Prompts.name: "your own prompts, from a file",
    Fill.name: "your own texts with masks",
    Decisions.name: "your own typed decisions",
}


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """The entry of one task in `foretell tasks`."""

    name: str
    about: str
    kind: str  # "bundled", "benchmark" or "prompts"
    data: str = ""  # for a benchmark: "found", "on the hub" or "missing"
    runs_code: bool = False  # grading runs programs that a model wrote


def benchmark_named(name: str, allow_code_execution: bool = False, sandbox: str | None = None) -> Benchmark:
    """Return the benchmark with this name; `allow_code_execution` lets it run programs that a model wrote.

    They run at the level `sandbox` (default: the strongest that works here, but not "limits").
    """
    if name in OWN:
        return OWN[name]
    if name in BUNDLED:
        return BUNDLED[name]
    if name in PUBLIC:
        return find(PUBLIC[name], allow_execution=allow_code_execution, sandbox=sandbox)
    if name in FREE:
        return WithoutSuffix(find(FREE[name]))
    raise RequestError(unknown("task", name, CATALOGUE))


def list_tasks() -> Iterator[TaskInfo]:
    """Yield every task, with whether its data are available."""
    for name in CATALOGUE:
        if name in OWN:
            yield TaskInfo(name, ABOUT[name], "prompts")
        elif name in BUNDLED:
            yield TaskInfo(name, _describe(name), "bundled")
        else:
            known = BENCHMARKS[PUBLIC.get(name) or FREE[name]]
            yield TaskInfo(name, _describe(name), "benchmark", _find_data(known), isinstance(known, Code))


def _describe(name: str) -> str:
    base = name.removesuffix("-free")
    return ABOUT[name] if base == name else f"{base}, nothing pinned"


def _find_data(benchmark: PublicBenchmark) -> str:
    if benchmark.source.find() is not None:
        return "found"
    return "on the hub" if benchmark.source.hub is not None and find_spec("datasets") is not None else "missing"
