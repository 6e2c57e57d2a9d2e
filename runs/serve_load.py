"""The server under load: 200 clients at the same time, on loopback, in a process of their own.

    python runs/serve_load.py                                  # about 25 minutes on two idle cores
    python runs/serve_load.py --requests 40 --rounds 1 --soak 1 --clients 40      # a look
    python runs/serve_load.py --only speed                     # 15 minutes; the page keeps its other numbers

A note on the conditions can also be added later: write it to "note" in serve.json, and run runs/pages.py serve.

First a soak: mixed recipes, half of the clients stream, and a fifth leaves early. Every answer is compared with
`Engine.generate` of the request alone; afterwards nothing may be left in the server. Then accuracy: how many problems
of every task the server solves under each recipe. Then speed: the same requests by `Engine.generate` on the whole
list, by the server, and by a server that decodes one at a time; all take turns. Only the speed needs an idle machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

import foretell
from foretell.engine.engine import Completion, Engine
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.bundled import BUNDLED
from page import publish
from results_page import RESULTS
from serve_clients import Ask, Load, Server, mix, run_load, start_server
from serve_page import BEST, FULL, GENERATE, NAIVE, NEVER, SERVER, draw, view
from shared import BUNDLED_MODEL, SEED, TASKS, run_script

TASK = "word"  # of the comparison of speed
RECIPES = (FULL, NEVER, BEST)
MIXED = (*RECIPES, "prophet stop.reduce=min", "prophet")  # what the server offers for this model
BATCH = 8
LEAVING = 0.2  # share of the clients that leave early
SOAK_PROMPTS = 5  # per task
PARTS = ("soak", "accuracy", "speed")
NAIVE_SCRIPT = Path(__file__).parent / "serve_naive.py"

__all__ = ["draw", "view"]  # of the page


@dataclass(frozen=True, slots=True)
class Turn:
    """One way to answer all requests, once."""

    seconds: float
    texts: list[str | None]
    load: Load | None = None  # of a server


def packing(options: argparse.Namespace) -> list[str]:
    return ["--packed"] if options.packed else []


@contextmanager
def serve(options: argparse.Namespace) -> Iterator[Server]:
    asked = ["--port", "0", "--max-batch", str(BATCH), *packing(options)]
    with start_server("-m", "foretell", "serve", BUNDLED_MODEL, *asked) as server:
        yield server


def soak(engine: Engine, server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Send mixed requests in several rounds, and compare what comes back with single requests."""
    drawn = [(one.prompt, task) for task in TASKS for one in BUNDLED[task].examples(None, SOAK_PROMPTS, SEED)]
    prompts = [(prompt, task) for prompt, task in drawn if isinstance(prompt, str)]
    alone: dict[tuple[str, str, str], str] = {}
    rounds: list[dict[str, Any]] = []
    for turn in range(options.soak):
        asks = mix(prompts, MIXED, options.clients, LEAVING, SEED + turn)
        load = run_load(server.url, asks, options.clients)
        waited = server.wait_until_idle()
        different = left = 0
        for ask, answer in zip(asks, load.answers, strict=True):
            left += answer.text is None
            key = ask.prompt, ask.layout, ask.recipe
            if answer.text is not None and key not in alone:
                alone[key] = engine.generate(ask.prompt, recipe=ask.recipe, layout=ask.layout).text
            different += answer.text is not None and answer.text != alone[key]
        done = len(asks) - left
        rounds.append(
            {
                "requests": len(asks),
                "streams": sum(one.stream for one in asks),
                "with_drafts": sum(one.drafts for one in asks),
                "answered": done,
                "left": left,
                "different": different,
                "refusals": sum(one.refusals for one in load.answers),
                "p50": load.latency(0.5),
                "p99": load.latency(0.99),
                "seconds_until_idle": waited,
                "memory": server.memory,
            }
        )
        print(
            f"  soak {turn + 1}: {done} answered, {different} differ, {left} left, {server.memory >> 20} MB", flush=True
        )
    return {
        "clients": options.clients,
        "rounds": rounds,
        "metrics": {k: v for k, v in server.metrics().items() if "requests_total" in k},
    }


Way = Callable[[str, Sequence[str]], Turn]  # answers prompts under a recipe


def make_ways(engine: Engine, server: Server, naive: Server, options: argparse.Namespace) -> dict[str, Way]:
    """Return the three ways to answer requests, by name."""

    def generate(recipe: str, prompts: Sequence[str]) -> Turn:
        start = time.perf_counter()
        done: list[Completion] = engine.generate(list(prompts), recipe=recipe, layout=TASK, batch_size=BATCH)
        return Turn(time.perf_counter() - start, [one.text for one in done])

    def ask(address: str) -> Way:
        def send(recipe: str, prompts: Sequence[str]) -> Turn:
            load = run_load(address, [Ask(prompt, TASK, recipe) for prompt in prompts], options.clients)
            return Turn(load.seconds, [one.text for one in load.answers], load)

        return send

    return {GENERATE: generate, SERVER: ask(server.url), NAIVE: ask(naive.url)}


def count_right(engine: Engine, server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Return how many problems of every task the server solves under each recipe, and how they differ from `full`."""
    found: dict[str, Any] = {}
    for task in TASKS:
        examples = BUNDLED[task].examples(None, options.problems, SEED)
        like = engine.generate(str(examples[0].prompt), recipe=BEST, layout=task)
        right = {}
        for recipe in RECIPES:
            load = run_load(server.url, [Ask(str(one.prompt), task, recipe) for one in examples], options.clients)
            right[recipe] = grade(task, examples, [one.text for one in load.answers], like)
            print(f"  {task}, {recipe}: {sum(right[recipe])} of {len(examples)} are right", flush=True)
        found[task] = {
            recipe: {
                "right": sum(mine),
                "lost": sum(full and not one for full, one in zip(right[FULL], mine, strict=True)),
                "won": sum(one and not full for full, one in zip(right[FULL], mine, strict=True)),
            }
            for recipe, mine in right.items()
        }
    return {"problems": options.problems, "tasks": found}


def grade(task: str, examples: Sequence[Example], texts: Sequence[str | None], like: Completion) -> list[bool]:
    """Return which answers are right; `like` is any completion, whose text is replaced."""
    benchmark = BUNDLED[task]
    return [
        benchmark.grade(one, benchmark.extract(replace(like, text=text or "")))
        for one, text in zip(examples, texts, strict=True)
    ]


def compare(engine: Engine, server: Server, naive: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Time the three ways under each recipe, in turns; `full`, which takes longest, in the first round only."""
    prompts = [str(one.prompt) for one in BUNDLED[TASK].examples(None, options.requests, SEED)]
    ways = make_ways(engine, server, naive, options)
    for send in ways.values():
        send(BEST, prompts[: 2 * BATCH])  # warms up
    turns: dict[tuple[str, str], list[Turn]] = {(recipe, way): [] for recipe in RECIPES for way in ways}
    for turn in range(options.rounds):
        for (recipe, way), made_before in turns.items():
            if recipe == FULL and made_before:
                continue
            made = ways[way](recipe, prompts)
            made_before.append(made)
            print(f"  {turn + 1}: {recipe}, {way}: {len(prompts) / made.seconds:.1f} requests/s", flush=True)
    names = ("clients", "requests", "rounds")
    return {name: getattr(options, name) for name in names} | {
        "recipes": {
            recipe: {way: describe(turns[recipe, way], turns[recipe, GENERATE][0].texts) for way in ways}
            for recipe in RECIPES
        }
    }


def describe(turns: Sequence[Turn], expected: Sequence[str | None]) -> dict[str, Any]:
    """Return the numbers of one way under one recipe."""
    count = len(expected)
    same = sum(text == other for turn in turns for text, other in zip(turn.texts, expected, strict=True))
    loads = [turn.load for turn in turns if turn.load is not None]
    return {
        "rate": count / median(turn.seconds for turn in turns),
        "seconds": [turn.seconds for turn in turns],
        "p50": median(load.latency(0.5) for load in loads) if loads else None,
        "p99": median(load.latency(0.99) for load in loads) if loads else None,
        "same": same / (count * len(turns)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200, help="at the same time (default: 200)")
    parser.add_argument("--requests", type=int, default=200, help="of the comparison of speed (default: 200)")
    parser.add_argument("--problems", type=int, default=500, help="per task, of the accuracy (default: 500)")
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison of speed (default: 3)")
    parser.add_argument("--soak", type=int, default=6, help="rounds of mixed requests, one per client (default: 6)")
    parser.add_argument("--only", choices=PARTS, help="measure this part, and keep the published numbers of the others")
    parser.add_argument("--note", help="what a reader has to know about the conditions of a measurement")
    parser.add_argument("--no-packed", dest="packed", action="store_false", help="matrices as they are stored")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.model, options.own = BUNDLED_MODEL, True
    if min(options.clients, options.requests, options.problems, options.rounds, options.soak) < 1:
        raise RequestError("--clients, --requests, --problems, --rounds and --soak must be at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    mpl.use("Agg")
    parts = (read_parts(options.out) if options.only else {}) | measure(options)
    if options.note:
        parts["note"] = options.note
    publish("serve", {"packed": options.packed, "batch": BATCH, **parts}, options)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers of the parts that are asked for."""
    engine = foretell.load(BUNDLED_MODEL, packed=options.packed)
    engine.use_threads()
    parts: dict[str, Any] = {}
    with serve(options) as server, start_server(str(NAIVE_SCRIPT), BUNDLED_MODEL, *packing(options)) as naive:
        ways: dict[str, Callable[[], dict[str, Any]]] = {
            "soak": lambda: soak(engine, server, options),
            "accuracy": lambda: count_right(engine, server, options),
            "speed": lambda: compare(engine, server, naive, options),
        }
        for part in (options.only,) if options.only else PARTS:
            parts[part] = ways[part]()
        server.wait_until_idle()
    return parts


def read_parts(folder: Path) -> dict[str, Any]:
    """Return the numbers of the parts that are published in a folder, and the note on them."""
    file = folder / "serve.json"
    found = json.loads(file.read_text(encoding="utf8")) if file.exists() else {}
    return {name: found[name] for name in (*PARTS, "note") if name in found}


if __name__ == "__main__":
    run_script(main)
