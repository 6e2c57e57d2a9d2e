"""What runs/bench.py measures on the bundled model: a queue of word problems decoded one by one, in synchronous and in
continuous batches, with full decoding, Prophet and the best stack; and the effect of int8 weights."""

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
    """Return the recipes to time; the best stack comes from runs/stack.py, if that has been run."""
    found = results / "stack.json"
    stack = json.loads(found.read_text(encoding="utf8"))["best"][TASK]["recipe"] if found.exists() else UNSEARCHED
    return {FULL: "full", PROPHET: "full stop=prophet(reduce=min)", STACK: stack}


def draw_examples(benchmark: Benchmark, count: int) -> list[Example]:
    return list(benchmark.examples(None, count, SEED))


def make_requests(engine: Engine, benchmark: Benchmark, recipe: str, examples: list[Example]) -> Queue:
    way = TaskRecipe.of(recipe, benchmark)
    return [(one.prompt, way.template(engine, one, SEED)) for one in examples]


def accuracy(benchmark: Benchmark, examples: list[Example], served: QueueResult) -> float:
    right = [
        benchmark.grade(one, benchmark.extract(done)) for one, done in zip(examples, served.completions, strict=True)
    ]
    return sum(right) / len(right)


def serve_queues(count: int, batch_size: int, rounds: int, results: Path, tell: Tell | None = None) -> dict[str, Any]:
    """(c) Time every recipe with every kind of batching; all take turns."""
    engine, benchmark = foretell.load(BUNDLED_MODEL), BUNDLED[TASK]
    engine = Engine(engine.model, engine.codec)  # without the model's layouts: the benchmark has its own
    engine.use_threads()
    examples, texts = draw_examples(benchmark, count), recipes(results)
    every = {
        f"{recipe}, {name}": way
        for recipe, text in texts.items()
        for name, way in serving_modes(engine, make_requests(engine, benchmark, text, examples), batch_size).items()
    }
    found = time_in_turns(every, rounds, tell, warm=False)  # each takes tens of seconds
    base = found[f"{FULL}, one by one"]
    lines: dict[str, Any] = {}
    for name, one in found.items():
        recipe, _, _ = name.partition(", ")
        alone = found[f"{recipe}, one by one"].result
        same = sum(a == b for a, b in zip(one.result.tokens, alone.tokens, strict=True)) / count
        # Synchronous batches leave no completions to grade, but equal tokens have equal accuracy.
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


def measure_int8(count: int, batch_size: int) -> dict[str, Any] | None:
    """(f) Compare full decoding with and without int8 weights: equal texts and accuracy; None without torchao."""
    if find_spec("torchao") is None:
        return None
    benchmark = BUNDLED[TASK]
    examples, found = draw_examples(benchmark, count), []
    for kind in (None, "int8"):
        loaded = foretell.load(BUNDLED_MODEL, quantize=kind)
        engine = Engine(loaded.model, loaded.codec)
        engine.use_threads()
        found.append(serve_continuously(engine, make_requests(engine, benchmark, "full", examples), batch_size))
    same = sum(a == b for a, b in zip(found[0].tokens, found[1].tokens, strict=True)) / count
    scores = [accuracy(benchmark, examples, one) for one in found]
    return {"requests": count, "same": same, "accuracy": scores[0], "rounded": scores[1]}
