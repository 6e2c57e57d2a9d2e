"""The server under load: 200 clients at the same time, on loopback, in a process of their own.

    python runs/serve_load.py                                  # about half an hour on two idle cores
    python runs/serve_load.py --requests 40 --rounds 1 --soak 1 --clients 40      # a look

First a soak: mixed recipes, half of the clients stream, and a fifth leaves early. Every answer is compared with
`Engine.generate` of the request alone; afterwards nothing may be left in the server. Then speed: the same requests by
`Engine.generate` on the whole list, by the server, and by a server that decodes one at a time; all take turns.
"""

from __future__ import annotations

import argparse
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
from results_page import RESULTS
from serve_clients import Ask, Load, Server, mix, run_load, start_server
from serve_page import GENERATE, NAIVE, SERVER, figure, markdown
from shared import BUNDLED_MODEL, SEED, TASKS, run_script
from text_page import publish

TASK = "word"  # of the comparison of speed
RECIPES = ("full", "swift stop=never", "swift")
MIXED = (*RECIPES, "prophet stop.reduce=min", "prophet")  # what the server offers for this model
BATCH = 8
LEAVING = 0.2  # share of the clients that leave early
SOAK_PROMPTS = 10  # per task
NAIVE_SCRIPT = Path(__file__).parent / "serve_naive.py"


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
    return {"rounds": rounds, "metrics": {k: v for k, v in server.metrics().items() if "requests_total" in k}}


def make_ways(engine: Engine, server: Server, naive: Server, prompts: Sequence[str], options: argparse.Namespace) -> (
    dict[str, Callable[[str], Turn]]
):  # fmt: skip
    """Return the three ways to answer the requests, by name."""

    def generate(recipe: str) -> Turn:
        start = time.perf_counter()
        done: list[Completion] = engine.generate(list(prompts), recipe=recipe, layout=TASK, batch_size=BATCH)
        return Turn(time.perf_counter() - start, [one.text for one in done])

    def ask(address: str) -> Callable[[str], Turn]:
        def send(recipe: str) -> Turn:
            load = run_load(address, [Ask(prompt, TASK, recipe) for prompt in prompts], options.clients)
            return Turn(load.seconds, [one.text for one in load.answers], load)

        return send

    return {GENERATE: generate, SERVER: ask(server.url), NAIVE: ask(naive.url)}


def accuracy(examples: Sequence[Example], texts: Sequence[str | None], like: Completion) -> float:
    """Return the share of right answers; `like` is any completion, whose text is replaced."""
    task = BUNDLED[TASK]
    right = [
        task.grade(one, task.extract(replace(like, text=text or ""))) for one, text in zip(examples, texts, strict=True)
    ]
    return sum(right) / len(right)


def compare(engine: Engine, server: Server, naive: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Time the three ways under each recipe, in turns."""
    examples = BUNDLED[TASK].examples(None, options.requests, SEED)
    prompts = [str(one.prompt) for one in examples]
    ways = make_ways(engine, server, naive, prompts, options)
    for send in ways.values():
        send(RECIPES[-1])  # warms up
    turns: dict[tuple[str, str], list[Turn]] = {(recipe, way): [] for recipe in RECIPES for way in ways}
    for turn in range(options.rounds):
        for (recipe, way), made_before in turns.items():
            made = ways[way](recipe)
            made_before.append(made)
            print(f"  {turn + 1}: {recipe}, {way}: {len(prompts) / made.seconds:.1f} requests/s", flush=True)
    like = engine.generate(prompts[0], recipe=RECIPES[-1], layout=TASK)
    return {
        recipe: {
            way: describe(turns[recipe, way], turns[recipe, GENERATE][0].texts)
            | {"accuracy": accuracy(examples, turns[recipe, way][0].texts, like)}
            for way in ways
        }
        for recipe in RECIPES
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
    parser.add_argument("--requests", type=int, default=400, help="of the comparison of speed (default: 400)")
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison of speed (default: 3)")
    parser.add_argument("--soak", type=int, default=6, help="rounds of mixed requests, one per client (default: 6)")
    parser.add_argument("--no-packed", dest="packed", action="store_false", help="matrices as they are stored")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.model, options.own = BUNDLED_MODEL, True
    if min(options.clients, options.requests, options.rounds, options.soak) < 1:
        raise RequestError("--clients, --requests, --rounds and --soak must be at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "foretell"  # makes the SVG file reproducible
    engine = foretell.load(BUNDLED_MODEL, packed=options.packed)
    engine.use_threads()
    with serve(options) as server, start_server(str(NAIVE_SCRIPT), BUNDLED_MODEL, *packing(options)) as naive:
        soaked = soak(engine, server, options)
        speed = compare(engine, server, naive, options)
        server.wait_until_idle()
    names = ("clients", "requests", "rounds", "packed")
    numbers = {name: getattr(options, name) for name in names} | {"batch": BATCH, "soak": soaked, "speed": speed}
    publish("serve", markdown(numbers), numbers, options, figure(numbers))


if __name__ == "__main__":
    run_script(main)
