"""Speed: our loop beside a plain one, its own share of a step, queues, memory, scaling, int8 weights and torch.compile.

    python runs/bench.py                     # all parts, about twenty minutes on two idle cores
    python runs/bench.py --parts a d         # some of them; the others keep their last numbers

Ratios of medians of runs that take turns in one process, on the same weights. A finished part is written at once, so an
interrupted run loses one part: name those that are missing.
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

from bench_page import figure, markdown
from bench_queue import rounded, served
from bench_sizes import Size, against, beside_plain, flags, memory, shares
from page import publish
from results_page import RESULTS
from shared import BUNDLED_MODEL, go

BIG = Size()  # (a), (b): LLaDA's vocabulary
THIN = Size(width=64, layers=1)  # (d): what the network itself takes is not asked
SMALL = Size(width=256, layers=4, vocabulary=32_768)  # (e)
WINDOWS = (64, 128, 256, 512)
QUEUES = 2  # rounds of (c)
VARIED = {"rows": (1, 2, 4, 8), "window": (64, 128, 256, 512), "vocabulary": (8192, 16_384, 32_768, 65_536, 131_072)}


def said(name: str, turn: int, seconds: float) -> None:
    print(f"  {name}: {seconds:.2f} s{'' if turn else ' (warming up)'}", flush=True)


def queued(options: argparse.Namespace) -> dict[str, Any]:
    return served(options.requests, options.batch_size, QUEUES, options.out, said)


def scaled(options: argparse.Namespace) -> dict[str, Any]:
    found = {name: against(SMALL, name, values, options.rounds) for name, values in VARIED.items()}
    return {"size": {"width": SMALL.width, "layers": SMALL.layers}, **found}


def faster(options: argparse.Namespace) -> dict[str, Any]:
    return flags(BIG, 4, options.rounds, said) | {"bundled": rounded(options.requests, options.batch_size)}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "a": lambda options: beside_plain(BIG, options.steps, options.rounds, said),
    "b": lambda options: shares(BIG, options.steps),
    "c": queued,
    "d": lambda _: memory(THIN, WINDOWS),
    "e": scaled,
    "f": faster,
}


def kept(folder: Path) -> dict[str, Any]:
    """Parts that were measured before."""
    path = folder / "bench.json"
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
    return {name: part for name, part in found.items() if name in PARTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way that count, but 2 of (c) (default: 5)")
    parser.add_argument("--steps", type=int, default=16, help="of (a) and (b) (default: 16)")
    parser.add_argument("--requests", type=int, default=64, help="of (c) (default: 64)")
    parser.add_argument("--batch-size", type=int, default=16, help="of (c) (default: 16)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch, but 1 for the bundled model")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.model, options.own = BUNDLED_MODEL, True
    options.out.mkdir(parents=True, exist_ok=True)
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "foretell"  # the same picture is the same file
    for name in options.parts:
        torch.set_num_threads(options.threads)  # the bundled model sets its own
        print(f"({name})", flush=True)
        part = PARTS[name](options) | {"threads": torch.get_num_threads()}
        numbers = kept(options.out) | {name: part}
        numbers = {each: numbers[each] for each in PARTS if each in numbers}
        publish("bench", markdown(numbers), numbers, options, figure(numbers))


if __name__ == "__main__":
    go(main)
