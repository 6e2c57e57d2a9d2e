"""Speed: our loop and three plain ones, the loop's share of a step, queues, memory, scaling, and faster matrices.

    python runs/bench.py                     # all parts, about twenty minutes on two idle cores
    python runs/bench.py --parts a d         # some parts; the others keep their last numbers

Reports ratios of median times; runs take turns in one process, on the same weights. Each part is written when it is
finished: after an interruption, name the missing parts.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch

from bench_loops import compare_with_loops
from bench_page import draw, view
from bench_queue import measure_int8, serve_queues
from bench_sizes import Size, compare_flags, measure_memory, measure_scaling, measure_shares
from page import publish
from results_page import RESULTS
from shared import BUNDLED_MODEL, run_script

BIG = Size()  # (a), (b): LLaDA's vocabulary
THIN = Size(width=64, layers=1)  # (d): only memory outside the network is measured
SMALL = Size(width=256, layers=4, vocabulary=32_768)  # (e)
WINDOWS = (64, 128, 256, 512)
QUEUES = 2  # rounds of (c)
VARIED = {"rows": (1, 2, 4, 8), "window": (64, 128, 256, 512), "vocabulary": (8192, 16_384, 32_768, 65_536, 131_072)}

__all__ = ["draw", "view"]  # of the page


def print_time(name: str, turn: int, seconds: float) -> None:
    print(f"  {name}: {seconds:.2f} s{'' if turn else ' (warming up)'}", flush=True)


def measure_queues(options: argparse.Namespace) -> dict[str, Any]:
    return serve_queues(options.requests, options.batch_size, QUEUES, options.out, print_time)


def measure_all_scaling(options: argparse.Namespace) -> dict[str, Any]:
    found = {name: measure_scaling(SMALL, name, values, options.rounds) for name, values in VARIED.items()}
    return {"size": {"width": SMALL.width, "layers": SMALL.layers}, **found}


def measure_faster_models(options: argparse.Namespace) -> dict[str, Any]:
    return compare_flags(BIG, 4, options.rounds, print_time) | {
        "bundled": measure_int8(options.requests, options.batch_size)
    }


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "a": lambda options: compare_with_loops(BIG, options.steps, options.rounds, print_time),
    "b": lambda options: measure_shares(BIG, options.steps),
    "c": measure_queues,
    "d": lambda _: measure_memory(THIN, WINDOWS),
    "e": measure_all_scaling,
    "f": measure_faster_models,
}


def read_parts(folder: Path) -> dict[str, Any]:
    """Return the parts that were measured before."""
    path = folder / "bench.json"
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
    return {name: part for name, part in found.items() if name in PARTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5, help="timed runs; (c) always has 2 (default: 5)")
    parser.add_argument("--steps", type=int, default=16, help="number of steps of (a) and (b) (default: 16)")
    parser.add_argument("--requests", type=int, default=64, help="number of requests of (c) (default: 64)")
    parser.add_argument("--batch-size", type=int, default=16, help="batch size of (c) (default: 16)")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="torch threads (always 1 for the bundled model)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.model, options.own = BUNDLED_MODEL, True
    options.out.mkdir(parents=True, exist_ok=True)
    mpl.use("Agg")
    for name in options.parts:
        torch.set_num_threads(options.threads)  # the bundled model sets its own
        print(f"({name})", flush=True)
        part = PARTS[name](options) | {"threads": torch.get_num_threads()}
        numbers = read_parts(options.out) | {name: part}
        numbers = {each: numbers[each] for each in PARTS if each in numbers}
        publish("bench", numbers, options)


if __name__ == "__main__":
    run_script(main)
