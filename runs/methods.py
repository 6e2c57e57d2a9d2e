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

from foretell.engine.engine import BUNDLED
from foretell.evaluation.records import Record
from foretell.evaluation.report import ReportRow, compare
from foretell.evaluation.run import evaluate
from foretell.plots.frontier import Spot, plot_frontier
from foretell.reproduce.paper import BEST_SPEEDUP
from foretell.tasks import TASKS as PROBLEMS
from long_canvas import measure_long_canvas
from page import percent, points, publish, spread, table
from shared import SEED, evaluation, make_parser, parse_options, run_script

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


def cells(task: str, base: ReportRow, row: ReportRow) -> list[str]:
    first = row is base
    change = "" if first else f"{100 * row.difference:+.1f} ({points(row.difference_low, row.difference_high)})"
    return [
        task,
        row.recipe,
        percent(row.accuracy),
        spread(row.accuracy_low, row.accuracy_high),
        change,
        "" if first else percent(row.agreement),
        f"{row.forwards:.1f}",
        f"{base.forwards / row.forwards:.2f}x",
        f"{base.columns / row.columns:.2f}x",
        f"{row.tokens_per_forward:.2f}",
        f"{row.clock_speedup:.2f}x" if is_timed(row) else "",
        "" if row.penalised_speedup is None else f"{row.penalised_speedup:.2f}",
    ]


def describe_combinations(rows: list[ReportRow]) -> list[str]:
    """Compare what Prophet adds to each method with what it saves alone: do the two multiply?"""
    at = {row.recipe: row for row in rows}
    alone = at["full"].columns / at["full + prophet"].columns
    if alone < WORTH:
        return [f"- Prophet alone saves {alone:.2f}x here: there is nothing to multiply."]
    lines = []
    for name, row in at.items():
        with_it = at.get(f"{name} + prophet")
        if with_it is None or name == "full":
            continue
        gain, lost = row.columns / with_it.columns, row.accuracy - with_it.accuracy
        word = "multiplies" if gain >= 0.9 * alone else "adds less" if gain > 1.02 else "adds nothing"
        cost = f", and loses {100 * lost:.1f} points more" if lost > LOST else ""
        lines.append(f"- {name}: {gain:.2f}x on top of it, {alone:.2f}x alone: {word}{cost}.")
    return lines


def describe_recheck(found: dict[str, list[ReportRow]]) -> list[str]:
    """Describe the accuracy that `verify=recheck` gains and the forwards that it costs."""
    lines = []
    for task, rows in found.items():
        at = {row.recipe: row for row in rows}
        for name in (CHECKED, *(one.removesuffix(" + recheck") for one in RECHECKED)):
            without, checked = at[name], at[f"{name} + recheck"]
            paid = checked.forwards - without.forwards
            lines.append(
                f"- {task}, {name}: {percent(without.accuracy)}% becomes {percent(checked.accuracy)}% for {paid:.1f} "
                f"more forwards on {without.forwards:.1f}."
            )
    return lines


def describe_goal(found: dict[str, list[ReportRow]]) -> list[str]:
    lines = []
    for task, rows in found.items():
        even = [row for row in rows if row.difference >= -LOST and is_timed(row)]
        best = max(even, key=lambda row: row.clock_speedup)
        said = "reached" if best.clock_speedup >= BEST_SPEEDUP else "not reached"
        lines.append(
            f"- {task}: the fastest within {100 * LOST:.1f} points is `{best.recipe}`: {best.clock_speedup:.2f}x by "
            f"the clock, {rows[0].forwards / best.forwards:.2f}x fewer forwards, "
            f"{rows[0].columns / best.columns:.2f}x fewer columns, {100 * best.difference:+.1f} points "
            f"({points(best.difference_low, best.difference_high)}), {percent(best.agreement)}% equal answers. "
            f"The paper's {BEST_SPEEDUP}x: {said}."
        )
    return lines


def markdown(
    found: dict[str, list[ReportRow]], far: list[list[str]], stacks: dict[str, str], options: argparse.Namespace
) -> list[str]:
    headings = (
        "task", "method", "accuracy, %", "95%", "delta (95%)", "agrees, %", "forwards", "fewer forwards",
        "fewer columns", "tokens per forward", "clock", "penalised speedup",
    )  # fmt: skip
    lines = [
        "# Every way to spend less, alone and with Prophet",
        "",
        f"Bundled model, {options.limit} held-out problems a task (seed {SEED}), all decoded live. Accuracy with",
        "Wilson's interval; delta to full decoding in points, paired, with Tango's 95% interval. Agrees: answers",
        "equal to full decoding's; a method can change answers and keep the accuracy. Columns: what all",
        "forward passes computed, which is what a cache or a window saves. Clock: full's wall-clock time over the",
        "method's, one thread, the methods taking turns in one run; none where a row was",
        "decoded later. Penalised speedup = step speedup x (accuracy / full's)^4.",
        "Prophet is with the minimum gap and the paper's thresholds, on a clock of filled tokens where many masks are",
        "filled a step, unless it says mean.",
        "`python runs/stack.py && python runs/methods.py`",
        *table(headings, [cells(task, rows[0], row) for task, rows in found.items() for row in rows]),
        "## The goal",
        "The fastest row is named after looking at these problems; `swift` and the best stacks were chosen on others.",
        "",
        *describe_goal(found),
        "",
    ]
    for task, rows in found.items():
        lines += [f"## With Prophet on top: {task}", *describe_combinations(rows), ""]
    lines += ["## Looking over a commit: what recheck buys", *describe_recheck(found), ""]
    searched = [f"- {task}: `{text}`" for task, text in stacks.items()]
    lines += ["## The best stacks", *(searched or ["Not searched (`python runs/stack.py`)."]), ""]
    return [
        *lines,
        "## A long canvas",
        "The bundled model was not trained for long windows, so this is cost alone: a network with random weights, a",
        "window of 512 in blocks of 32, a prompt of 64, 64 steps, one row; texts mean nothing.",
        *table(("recipe", "forwards", "fewer columns", "clock"), far, words=1),
    ]


def main() -> None:
    options = parse_options(make_parser(__doc__, limit=500))
    with ProcessPoolExecutor(max_workers=options.workers) as pool:
        jobs = {task: pool.submit(measure, task, options) for task in options.tasks}
        found = {task: job.result() for task, job in jobs.items()}
    far = measure_long_canvas()
    numbers: dict[str, Any] = {"seed": SEED, "limit": options.limit, "recipes": recipes(), "long canvas": far}
    numbers |= {task: [asdict(row) for row in rows] for task, rows in found.items()}
    groups = {
        task: [Spot(row.recipe, rows[0].columns / row.columns, row.accuracy, row.settled > 0) for row in rows]
        for task, rows in found.items()
    }
    publish(
        "methods",
        markdown(found, far, best_stacks(options), options),
        numbers,
        options,
        plot_frontier(groups, "columns", LOST, SHOWN),
    )


if __name__ == "__main__":
    run_script(main)
