"""Every benchmark by name: the public ones of the paper and the bundled model's own."""

from __future__ import annotations

from foretell.errors import RequestError, unknown
from foretell.lab.benchmark import Benchmark
from foretell.lab.benchmarks import BENCHMARKS, find
from foretell.lab.bundled import BUNDLED
from foretell.lab.free import Free, announced
from foretell.lab.prompts import Prompts

# The bundled model's tasks keep their names; a public benchmark of the same name goes by another here.
RENAMED = {"countdown_cd4": "countdown"}
PUBLIC: dict[str, str] = {name: name for name in BENCHMARKS if name not in BUNDLED} | RENAMED
FREE: dict[str, str] = {f"{name}-free": known for name, known in PUBLIC.items() if announced(BENCHMARKS[known])}
CATALOGUE: tuple[str, ...] = (*BUNDLED, *PUBLIC, *FREE)


def benchmark_named(name: str, allow_code_execution: bool = False) -> Benchmark:
    """The benchmark of that name; `allow_code_execution` lets it run programs that a model wrote."""
    if name == Prompts.name:
        return Prompts()
    if name in BUNDLED:
        return BUNDLED[name]
    if name in PUBLIC:
        return find(PUBLIC[name], allow_execution=allow_code_execution)
    if name in FREE:
        return Free(find(FREE[name]))
    raise RequestError(unknown("task", name, CATALOGUE))
