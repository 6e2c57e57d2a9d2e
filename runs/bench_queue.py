"""What runs/bench.py measures on the bundled model: a queue of word problems served one by one, in batches that finish
together, and continuously; under full decoding, Prophet and the best stack; and what int8 weights change."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import foretell
from foretell.bench.queues import Queue, QueueResult, serve_continuously, serving_modes
from foretell.bench.timing import time_in_turns
from foretell.engine.engine import Engine
from foretell.evaluation.benchmark import Benchmark, Example
from foretell.evaluation.benchmarks.bundled import BUNDLED
from foretell.evaluation.task_recipe import TaskRecipe
from shared import BUNDLED_MODEL, SEED

TASK = "word"
FULL, PROPHET, STACK = "full", "prophet", "best stack"
UNSEARCHED = "threshold cache=dual stop=prophet(reduce=min,clock=tokens) stop_at_eos=true"
Tell = Callable[[str, int, float], None]


def recipes(results: Path) -> dict[str, str]:
    """The best stack is the one that runs/stack.py found on other problems, where it has been run."""
    found = results / "stack.json"
    stack = json.loads(found.read_text(encoding="utf8"))["best"][TASK]["recipe"] if found.exists() else UNSEARCHED
    return {FULL: "full", PROPHET: "full stop=prophet(reduce=min)", STACK: stack}


def queue(benchmark: Benchmark, count: int) -> list[Example]:
    return list(benchmark.examples(None, count, SEED))


def orders(engine: Engine, benchmark: Benchmark, recipe: str, examples: list[Example]) -> Queue:
    way = TaskRecipe.of(recipe, benchmark)
    return [(one.prompt, way.template(engine, one, SEED)) for one in examples]


def accuracy(benchmark: Benchmark, examples: list[Example], served: QueueResult) -> float:
    right = [
        benchmark.grade(one, benchmark.extract(done)) for one, done in zip(examples, served.completions, strict=True)
    ]
    return sum(right) / len(right)


def served(count: int, batch_size: int, rounds: int, results: Path, tell: Tell | None = None) -> dict[str, Any]:
    """(c) Every recipe served in every way, all of them taking turns."""
    engine, benchmark = foretell.load(BUNDLED_MODEL), BUNDLED[TASK]
    engine = Engine(engine.model, engine.codec)  # the benchmark lays its windows out
    engine.use_threads()
    examples, texts = queue(benchmark, count), recipes(results)
    every = {
        f"{recipe}, {name}": way
        for recipe, text in texts.items()
        for name, way in serving_modes(engine, orders(engine, benchmark, text, examples), batch_size).items()
    }
    found = time_in_turns(every, rounds, tell, warm=False)  # tens of seconds each
    base = found[f"{FULL}, one by one"]
    lines: dict[str, Any] = {}
    for name, one in found.items():
        recipe, _, _ = name.partition(", ")
        alone = found[f"{recipe}, one by one"].result
        same = sum(a == b for a, b in zip(one.result.tokens, alone.tokens, strict=True)) / count
        # Equal tokens have an equal accuracy; a batch that finishes together leaves no completions to grade.
        graded = one.result if one.result.completions else alone
        lines[name] = {
            "speedup": base.median / one.median,
            "same": same,
            "accuracy": accuracy(benchmark, examples, graded) if one.result.completions or same == 1 else None,
            "columns_needed": one.result.usage.columns_needed,
            "columns_computed": one.result.usage.columns_computed,
            "seconds": list(one.seconds),
        }
    return {"requests": count, "batch": batch_size, "recipes": texts, "ways": lines}


def rounded(count: int, batch_size: int) -> dict[str, Any] | None:
    """(f) Full decoding with int8 weights: texts that are the same, and accuracy; None without torchao."""
    if find_spec("torchao") is None:
        return None
    benchmark = BUNDLED[TASK]
    examples, found = queue(benchmark, count), []
    for kind in (None, "int8"):
        loaded = foretell.load(BUNDLED_MODEL, quantize=kind)
        engine = Engine(loaded.model, loaded.codec)
        engine.use_threads()
        found.append(serve_continuously(engine, orders(engine, benchmark, "full", examples), batch_size))
    same = sum(a == b for a, b in zip(found[0].tokens, found[1].tokens, strict=True)) / count
    scores = [accuracy(benchmark, examples, one) for one in found]
    return {"requests": count, "same": same, "accuracy": scores[0], "rounded": scores[1]}
