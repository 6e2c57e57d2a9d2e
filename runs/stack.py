"""Search for the best stack of methods for each bundled task, on problems that no result page uses.

    python runs/stack.py                     # 200 problems per task

Tries a grid of caches, selections, windows and stopping rules; of those that lose at most half a point of accuracy, it
picks the one that computes the fewest columns. runs/methods.py measures the accuracy on other problems.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

from foretell.evaluation.report import ReportRow, compare
from foretell.evaluation.run import evaluate
from methods import LOST, PARALLEL
from page import Numbers, percent, publish, times
from shared import evaluation, make_parser, parse_options, run_script

OTHER = 77  # the seed of these problems
SELECT = ("threshold", "threshold(0.7)", "factor", "frechet", "frechet(0.1)", "entropy_bound", "entropy_bound(0.5)")
CACHES = ("off", "dual", "dual(window=near(16))")
STOPS = ("", PARALLEL, "stop=sure")
CAUTIOUS = ("threshold(0.97)", "threshold(0.995)", "entropy_bound(0.01)")


def grid() -> list[str]:
    bold, cautious = product(SELECT, CACHES, STOPS), product(CAUTIOUS, ("off", "prefix", "dual"), ("", PARALLEL))
    return ["full", *(make_recipe(*parts) for parts in (*bold, *cautious))]


def make_recipe(transfer: str, cache: str, stop: str) -> str:
    return f"full transfer={transfer} cache={cache} stop_at_eos=true {stop}".strip()


def search(task: str, options: argparse.Namespace) -> list[ReportRow]:
    wanted = grid()
    print(f"{task}: {len(wanted)} stacks on {options.limit} problems", flush=True)
    what = evaluation("stack", task, ("all",), options, workers=1)
    return list(compare(evaluate(replace(what, recipes=tuple(wanted), seed=OTHER)), wanted))


def pick(rows: list[ReportRow]) -> ReportRow:
    return min((row for row in rows if row.difference >= -LOST), key=lambda row: row.columns)


def main() -> None:
    options = parse_options(make_parser(__doc__, limit=200))
    with ProcessPoolExecutor(max_workers=options.workers) as pool:
        jobs = {task: pool.submit(search, task, options) for task in options.tasks}
        found = {task: job.result() for task, job in jobs.items()}
    best = {}
    for task, rows in found.items():
        row = pick(rows)
        saved = rows[0].columns / row.columns
        best[task] = {"recipe": row.recipe, "accuracy": row.accuracy, "full": rows[0].accuracy, "columns saved": saved}
    publish("stack", {"seed": OTHER, "limit": options.limit, "stacks": len(grid()), "best": best}, options)


def view(numbers: Numbers) -> dict[str, Any]:
    return {
        "stacks": numbers.get("stacks", len(grid())),
        "rows": [
            [task, f"`{one['recipe']}`", percent(one["full"]), percent(one["accuracy"]), times(one["columns saved"])]
            for task, one in numbers["best"].items()
        ],
    }


if __name__ == "__main__":
    run_script(main)
