"""The last step at which the answer changed, for right and for wrong answers, on every task.

    python runs/last_change.py               # 1000 held-out problems per task; decodings are shared with other scripts
    python runs/last_change.py --model LLaDA-8B-Instruct --tasks gsm8k mmlu --device cuda

Read from the traces of full decodings.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from foretell.certify.replay import Case
from foretell.evaluation.intervals import wilson
from foretell.plots.histograms import HistogramPanel, plot_histograms, progress, share_after
from page import OPEN, Numbers, percent, publish, spread, state_of
from shared import load_study, make_parser, parse_options, run_script

LATE = 80  # percent of the steps after which a change is late


@dataclass(frozen=True, slots=True)
class Found:
    """Progress of the last change, in percent of the steps taken."""

    task: str
    right: list[float]
    wrong: list[float]
    silent: int  # decodings whose text states no answer

    def late(self, end: str) -> tuple[float, float]:
        values = self.right if end == "right" else self.wrong
        count = round((share_after(values, LATE) or 0.0) * len(values))
        return wilson(count, len(values)) if values else (0.0, 1.0)


def measure(task: str, options: argparse.Namespace) -> Found:
    one = load_study(task, options)
    ends = [[case for case in one.cases if case.record.correct is right] for right in (True, False)]
    right, wrong = ([value for case in cases for value in _progress(case)] for cases in ends)
    return Found(task, right, wrong, len(one.cases) - len(right) - len(wrong))


def _progress(case: Case) -> list[float]:
    return [] if case.last_change is None else progress([case.last_change], len(case.trace))


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the table's rows, and what the paper says beside them."""
    found = [Found(**one) for one in numbers["tasks"]]
    return {
        "rows": [row for one in found for row in _rows(one)],
        "silent": ", ".join(f"{one.silent} of {one.task}" for one in found if one.silent) or "none",
        "beside": [_compare(one) for one in found],
    }


def _rows(one: Found) -> list[list[str]]:
    made = []
    for end, values in (("right", one.right), ("wrong", one.wrong)):
        middle = f"{median(values):.1f}" if values else "-"
        late = [percent(share_after(values, LATE)), spread(one.late(end)) if values else "-"]
        made.append([one.task, end, str(len(values)), middle, *late])
    return made


def _compare(one: Found) -> dict[str, Any]:
    """Say whether wrong answers change later than right ones, as in the paper."""
    if not one.wrong or not one.right:
        return {"state": OPEN, "task": one.task, "counts": (len(one.right), len(one.wrong)), "late": None}
    right, wrong = one.late("right"), one.late("wrong")
    late, early = wrong[0] > max(right[1], 1 - LATE / 100), wrong[1] < max(right[0], 1 - LATE / 100)
    return {
        "state": state_of(late, early),
        "task": one.task,
        "late": [share_after(values, LATE) for values in (one.wrong, one.right)],
        "medians": [median(values) for values in (one.wrong, one.right)],
    }


def draw(numbers: Numbers) -> Figure:
    panels = [
        HistogramPanel(
            f"{one.task}\n{len(one.right)} right, {len(one.wrong)} wrong",
            {"answers that end right": one.right, "answers that end wrong": one.wrong},
        )
        for one in (Found(**each) for each in numbers["tasks"])
    ]
    return plot_histograms(panels, 4, "last change, % of the steps (numbers: the share up to the line)", (LATE,))


def main() -> None:
    options = parse_options(make_parser(__doc__))
    found = [measure(task, options) for task in options.tasks]
    publish("last_change", {"limit": options.limit, "tasks": [asdict(one) for one in found]}, options)


if __name__ == "__main__":
    run_script(main)
