"""The main table: full decoding, Prophet by the mean and by the minimum gap, and half the budget, on every task.

    python runs/main_table.py                # 1000 held-out problems a task, all decoded live

Nothing is replayed here, so the clock counts too; run it on an idle machine. Can be interrupted and started again.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from foretell.lab.bundled import BUNDLED
from foretell.lab.evaluate import evaluate
from foretell.lab.report import Row, compare
from foretell.lab.statistics import wilson
from foretell.plots.ablations import Point, comparison
from shared import SEED, TASKS, evaluation, options_of, percent, publish, spread, table

PAPER = {  # LLaDA-8B: full, Prophet, step speedup
    "MMLU": (54.1, 54.0, 2.34), "ARC-C": (83.2, 83.5, 1.88), "HellaSwag": (68.7, 70.9, 2.14),
    "TruthfulQA": (34.4, 46.1, 2.31), "WinoGrande": (73.8, 70.5, 1.71), "PIQA": (80.9, 81.9, 1.98),
    "GSM8K": (77.1, 77.9, 1.63), "GPQA": (25.2, 25.7, 1.82), "HumanEval": (30.5, 30.5, 1.20),
    "MBPP": (37.6, 37.4, 1.35), "Countdown": (15.3, 15.3, 2.67), "Sudoku": (35.0, 38.0, 2.46),
}  # fmt: skip
NAMES = ("full", "prophet, mean gap", "prophet, min gap", "half the budget")
WORST = min(after - before for before, after, _ in PAPER.values()) / 100  # the paper's largest loss
SPEEDUPS = tuple(sorted(speedup for _, _, speedup in PAPER.values()))


def recipes(task: str) -> tuple[str, ...]:
    half = BUNDLED[task].task.window // 2
    return ("full", "prophet", "prophet stop.reduce=min", f"full steps={half}")


def measured(task: str, options: argparse.Namespace) -> list[Row]:
    wanted = recipes(task)
    print(f"{task}: decoding what is missing of {options.limit} problems under {len(wanted)} recipes", flush=True)
    return list(compare(evaluate(evaluation(task, wanted, options)), wanted))


def cells(task: str, name: str, row: Row) -> list[str]:
    first = name == NAMES[0]
    compared = ["", "", ""]
    if not first:
        change = f"{100 * row.difference:+.1f}"
        compared = [change, spread(row.difference_low, row.difference_high), percent(row.agreement)]
    interval = spread(row.accuracy_low, row.accuracy_high)
    speed = [f"{row.steps:.1f}", f"{row.step_speedup:.2f}x", f"{row.wall_speedup:.2f}x"]
    return [task, name, percent(row.accuracy), interval, *speed, *compared]


def loss(base: Row, row: Row) -> str:
    """How a change in accuracy stands to the paper's largest loss."""
    if base.accuracy <= -WORST:
        return "of too few right answers for a loss of that size"
    unseen = wilson(0, row.pairs).high if row.lost == 0 else 0.0  # what n pairs without a loss leave possible
    if min(row.difference_low, -unseen) >= WORST:
        return "within the paper's range"
    return "a larger loss than any in the paper" if row.difference_high < WORST else "not decided at this n"


def pace(row: Row) -> str:
    slowest, fastest = SPEEDUPS[0], SPEEDUPS[-1]
    if row.step_speedup < slowest:
        return "slower than any in the paper"
    return "faster than any in the paper" if row.step_speedup > fastest else "within the paper's range"


def verdict(found: dict[str, list[Row]]) -> list[str]:
    best = max(after - before for before, after, _ in PAPER.values())
    changes, speeds = f"{100 * WORST:+.1f} to {best:+.1f}", f"{SPEEDUPS[0]:.2f}x to {SPEEDUPS[-1]:.2f}x"
    lines = [
        "## Beside the paper",
        f"For LLaDA-8B the paper reports changes of {changes} points at {speeds}. A change here counts as",
        f"within that range if its interval stays above {100 * WORST:+.1f}, as a larger loss if the whole interval",
        "lies below; where no pair was lost, Wilson's interval of a share of 0 stands in for the bootstrap's, which",
        "then knows nothing of n.",
        "",
    ]
    for index in (1, 2):
        for task, rows in found.items():
            row = rows[index]
            change = f"{100 * row.difference:+.1f} points ({spread(row.difference_low, row.difference_high)})"
            lines.append(
                f"- {NAMES[index]}, {task}: {change}, {loss(rows[0], row)}; {row.step_speedup:.2f}x in steps, "
                f"{pace(row)}; it settled {row.settled:.0%} of the decodings."
            )
    return lines


def markdown(found: dict[str, list[Row]], limit: int) -> list[str]:
    headings = ("task", "decoder", "accuracy, %", "95%", "steps", "speedup", "clock", "delta", "95%", "agrees, %")
    rows = [cells(task, name, row) for task, rows in found.items() for name, row in zip(NAMES, rows, strict=True)]
    paper = [[name, f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}", f"{s:.2f}x"] for name, (a, b, s) in PAPER.items()]
    return [
        "# Main table, bundled model",
        "",
        f"{limit} held-out problems a task (seed {SEED}), every row decoded live, nothing replayed. Accuracy with",
        "Wilson's 95% interval; delta to full decoding in points, paired, with a bootstrap interval (0 to 0",
        "if no pair differs). Speedup: full's",
        "mean steps over these; clock: the same of wall-clock time. Agrees: answers equal to full decoding's. Both",
        "Prophets use the thresholds 7.5, 5.0, 2.5; the mean is the paper's. `python runs/main_table.py`",
        *table(headings, rows),
        "The paper's LLaDA-8B, for orientation: another model on other tasks.",
        *table(("benchmark", "full", "Prophet", "delta", "speedup"), paper, words=1),
        *verdict(found),
    ]


def main() -> None:
    options = options_of(__doc__)
    found = {task: measured(task, options) for task in TASKS}
    numbers: dict[str, Any] = {"seed": SEED, "limit": options.limit, "paper": PAPER}
    numbers |= {task: [asdict(row) for row in rows] for task, rows in found.items()}
    groups = {
        task: [
            Point(name, row.steps, row.accuracy, row.accuracy_low, row.accuracy_high)
            for name, row in zip(NAMES, rows, strict=True)
        ]
        for task, rows in found.items()
    }
    figure = comparison(groups, "task; mean steps on the bars")
    publish("main_table", markdown(found, options.limit), numbers, options, figure)


if __name__ == "__main__":
    main()
