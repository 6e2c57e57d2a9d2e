"""Every method to save compute, alone and with Prophet, on every bundled task: accuracy, forwards, columns, time.

    python runs/stack.py                     # first: search for the best stack of each task on other problems
    python runs/methods.py                   # 500 held-out problems per task, all decoded live

Two tasks run at a time, each in a process with one thread in which the recipes take turns, so that their times can be
compared. Then the cost of a long canvas is measured on a network with random weights. Safe to interrupt: run the same
command again to resume.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from matplotlib.figure import Figure

from foretell.engine.engine import BUNDLED
from foretell.evaluation.records import Record
from foretell.evaluation.report import ReportRow, compare
from foretell.evaluation.run import evaluate
from foretell.plots.frontier import Spot, plot_frontier
from foretell.reproduce.paper import BEST_SPEEDUP
from foretell.tasks import TASKS as PROBLEMS
from long_canvas import measure_long_canvas
from page import Numbers, change, number, percent, points, publish, read_row, spread, times
from shared import evaluation, make_parser, parse_options, run_script

LOST = 0.005  # largest loss of accuracy that counts as equal
SELECT = {"threshold": "threshold", "factor": "factor", "frechet": "frechet"}
STUDENT = "tiny-sdtt"
WORTH = 1.05  # least ratio of columns that Prophet alone must save for a comparison
CHECKED = "dual + threshold + prophet"
SHOWN = ("full", "full + prophet", "dual cache + prophet", "threshold", "dual + threshold", "swift", "best stack")

SEQUENTIAL = "stop=prophet(reduce=min)"
PARALLEL = "stop=prophet(reduce=min,clock=tokens)"  # if many masks are filled per step, progress is counted in tokens


RECHECKED = {  # decoded after the others, so without comparable times
    "full + prophet + recheck": f"full {SEQUENTIAL} verify=recheck",
    "prophet, mean gap + recheck": "prophet verify=recheck",
}


def recipes() -> dict[str, str]:
    """Return recipes by row name; "X + prophet" is X with Prophet's minimum gap."""
    made = {
        "full": "full",
        "full + prophet": f"full {SEQUENTIAL}",
        "prophet, mean gap": "prophet",
        "sched": "sched",
        "stable and confident": "stable",
    }
    for cache in ("prefix", "dual"):
        made[f"{cache} cache"] = f"full cache={cache}"
        made[f"{cache} cache + prophet"] = f"full cache={cache} {SEQUENTIAL}"
        for name, preset in SELECT.items():
            made[f"{cache} + {name}"] = f"{preset} cache={cache}"
            made[f"{cache} + {name} + prophet"] = f"{preset} cache={cache} {PARALLEL}"
    made |= {f"{cache} cache": f"full cache={cache}" for cache in ("delayed", "drift")}
    for name, text in {
        "threshold": "threshold",
        "entropy bound": "entropy-bound",
        "streaming": "threshold transfer.relax=0.3 cache=dual(window=near(16)) stop_at_eos=true",
    }.items():
        made[name] = text
        made[f"{name} + prophet"] = f"{text} {PARALLEL}"
    made["swift"] = f"full transfer=threshold(0.995) stop_at_eos=true {PARALLEL}"
    made[f"{CHECKED} + recheck"] = f"threshold cache=dual {PARALLEL} verify=recheck"
    return made


def students(task: str) -> dict[str, str]:
    """Return the recipes of the distilled model, with half of its teacher's steps."""
    half = f"full steps={PROBLEMS[task].window // 2}"
    return {"SDTT, half the steps": half, "SDTT, half the steps + prophet": f"{half} {SEQUENTIAL}"}


def best_stacks(options: argparse.Namespace) -> dict[str, str]:
    """Return the recipe that runs/stack.py chose for each task, if it was run."""
    path = options.out / "stack.json"
    best = json.loads(path.read_text(encoding="utf8"))["best"] if path.exists() else {}
    return {task: best[task]["recipe"] for task in options.tasks if task in best}


def measure(task: str, options: argparse.Namespace) -> list[ReportRow]:
    """Decode all rows of one task in one process; the distilled model is compared with its teacher in full."""
    stacks = best_stacks(options)
    wanted = recipes() | ({"best stack": stacks[task]} if task in stacks else {})
    print(f"{task}: decoding what is missing of {options.limit} problems under {len(wanted)} recipes", flush=True)
    named = _decode(task, "all", wanted, options) + _decode(task, "recheck", RECHECKED, options)
    if (BUNDLED / STUDENT).exists() and options.own:
        named += _decode(task, STUDENT, students(task), options, model=STUDENT)
    return list(compare(named, tuple(dict.fromkeys(one.recipe for one in named))))


def _decode(
    task: str, folder: str, wanted: dict[str, str], options: argparse.Namespace, **changes: str
) -> list[Record]:
    """Decode recipes that take turns; return their records under the names in `wanted`."""
    what = evaluation("methods", task, (folder,), options, workers=1)
    found = evaluate(replace(what, recipes=tuple(dict.fromkeys(wanted.values())), **changes))  # type: ignore[arg-type]
    return [replace(one, recipe=name) for name, text in wanted.items() for one in found if one.recipe == text]


def is_timed(row: ReportRow) -> bool:
    """Return whether a row took turns with full decoding, so that their times can be compared."""
    return row.recipe not in RECHECKED and not row.recipe.startswith("SDTT")


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the rows of all tables, and what they say about combinations."""
    found = read_rows(numbers)
    return {
        "rows": [_cells(task, rows[0], row) for task, rows in found.items() for row in rows],
        "goals": [_find_fastest(task, rows) for task, rows in found.items()],
        "best_speedup": BEST_SPEEDUP,
        "lost": LOST,
        "combinations": {task: _combine(rows) for task, rows in found.items()},
        "rechecks": [one for task, rows in found.items() for one in _recheck(task, rows)],
        "stacks": numbers.get("stacks", {}),
        "far_rows": numbers["long canvas"],
    }


def read_rows(numbers: Numbers) -> dict[str, list[ReportRow]]:
    return {task: [read_row(row) for row in numbers[task]] for task in PROBLEMS if task in numbers}


def _cells(task: str, base: ReportRow, row: ReportRow) -> list[str]:
    first = row is base
    delta = f"{change(row.difference)} ({points((row.difference_low, row.difference_high))})"
    return [
        task,
        row.recipe,
        percent(row.accuracy),
        spread((row.accuracy_low, row.accuracy_high)),
        "" if first else delta,
        "" if first else percent(row.agreement),
        number(row.forwards),
        times(base.forwards / row.forwards),
        times(base.columns / row.columns),
        number(row.tokens_per_forward, 2),
        times(row.clock_speedup) if is_timed(row) else "",
        "" if row.penalised_speedup is None else number(row.penalised_speedup, 2),
    ]


def _find_fastest(task: str, rows: list[ReportRow]) -> dict[str, Any]:
    """Return the fastest row that loses no accuracy."""
    even = [row for row in rows if row.difference >= -LOST and is_timed(row)]
    best = max(even, key=lambda row: row.clock_speedup)
    base = rows[0]
    saved = {"forwards": base.forwards / best.forwards, "columns": base.columns / best.columns}
    return {"task": task, "row": best, **saved, "reached": best.clock_speedup >= BEST_SPEEDUP}


def _combine(rows: list[ReportRow]) -> dict[str, Any]:
    """Compare what Prophet adds to each method with what it saves alone: do the two multiply?"""
    at = {row.recipe: row for row in rows}
    alone = at["full"].columns / at["full + prophet"].columns
    lines = []
    for name, row in at.items():
        with_it = at.get(f"{name} + prophet")
        if with_it is not None and name != "full" and alone >= WORTH:
            gain, lost = row.columns / with_it.columns, row.accuracy - with_it.accuracy
            word = "multiplies" if gain >= 0.9 * alone else "adds less" if gain > 1.02 else "adds nothing"
            lines.append({"name": name, "gain": gain, "word": word, "lost": lost if lost > LOST else None})
    return {"alone": alone, "lines": lines}


def _recheck(task: str, rows: list[ReportRow]) -> list[dict[str, Any]]:
    """Return the accuracy that `verify=recheck` gains and the forwards that it costs."""
    at = {row.recipe: row for row in rows}
    names = (CHECKED, *(one.removesuffix(" + recheck") for one in RECHECKED))
    return [{"task": task, "name": name, "without": at[name], "checked": at[f"{name} + recheck"]} for name in names]


def draw(numbers: Numbers) -> Figure:
    groups = {
        task: [Spot(row.recipe, rows[0].columns / row.columns, row.accuracy, row.settled > 0) for row in rows]
        for task, rows in read_rows(numbers).items()
    }
    return plot_frontier(groups, "columns", LOST, SHOWN)


def main() -> None:
    options = parse_options(make_parser(__doc__, limit=500))
    with ProcessPoolExecutor(max_workers=options.workers) as pool:
        jobs = {task: pool.submit(measure, task, options) for task in options.tasks}
        found = {task: job.result() for task, job in jobs.items()}
    numbers: dict[str, Any] = {"limit": options.limit, "recipes": recipes(), "stacks": best_stacks(options)}
    numbers |= {"long canvas": measure_long_canvas()}
    publish("methods", numbers | {task: [asdict(row) for row in rows] for task, rows in found.items()}, options)


if __name__ == "__main__":
    run_script(main)
