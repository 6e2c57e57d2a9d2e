"""Early answer convergence: the first step at which the right answer is top-1, with and without a suffix prompt.

    python runs/convergence.py               # 500 held-out problems per task, each decoded in full in four ways
    python runs/convergence.py --model LLaDA-8B-Instruct --tasks gsm8k mmlu --device cuda

Everything is read from the traces of full decodings; those of low-confidence remasking are shared with other scripts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure

from foretell.errors import RequestError
from foretell.evaluation.benchmarks.without_suffix import has_suffix
from foretell.evaluation.intervals import wilson
from foretell.plots.histograms import HistogramPanel, plot_histograms, progress, share_by
from foretell.reproduce.paper import CONVERGENCE
from foretell.reproduce.paper import NAMES as PAPER_NAMES
from page import Numbers, percent, publish, spread, state_of
from shared import (
    SIDE,
    benchmark,
    load_study,
    make_parser,
    paper_benchmark,
    parse_options,
    run_script,
)

MARKS = (25, 50, 70)
ORDERS = {"full": "low-confidence", "random": "random"}
ALIKE = ("agrees in direction", "no clear change in either")
EVEN = 1.0  # largest difference, in points, at which the paper's shares count as equal


@dataclass(frozen=True, slots=True)
class Found:
    """One panel: progress of the right answers, in percent of the budget."""

    task: str
    suffix: bool
    order: str
    of: int  # problems decoded
    right: int
    first: list[float]
    stays: list[float]

    @property
    def title(self) -> str:
        return f"{self.task}, {'suffix' if self.suffix else 'no suffix'}, {ORDERS[self.order]}"

    @property
    def paper(self) -> tuple[float, float] | None:
        return CONVERGENCE.get((paper_benchmark(self.task) or "", self.suffix, self.order))

    def interval(self, mark: float) -> tuple[float, float]:
        """Return the interval of the share with a first match by `mark` percent."""
        count = len(self.first)
        return wilson(round((share_by(self.first, mark) or 0.0) * count), count) if count else (0.0, 1.0)


def measure(task: str, suffix: bool, order: str, options: argparse.Namespace) -> Found:
    one = load_study(task if suffix else f"{task}-free", options, order)
    budget = one.cases[0].trace.request.budget
    first = [case.first_match for case in one.right if case.first_match is not None]
    stays = [case.last_change for case in one.right if case.last_change is not None]
    count, right = len(one.cases), len(one.right)
    return Found(task, suffix, order, count, right, progress(first, budget), progress(stays, budget))


def classify_change(rise: float, before: tuple[float, float], after: tuple[float, float]) -> str:
    """Compare the change between two intervals of shares with a rise (or fall) in the paper, in points."""
    up, down = after[0] > before[1], after[1] < before[0]
    if abs(rise) < EVEN:
        return "differs" if up or down else "no clear change in either"
    if up or down:
        return "agrees in direction" if up is (rise > 0) else "differs"
    most = 100 * (after[1] - before[0] if rise > 0 else before[1] - after[0])
    return (
        "differs, less than half of that change here" if most < abs(rise) / 2 else "not decided with this many problems"
    )


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the table's rows, and what the paper says beside them."""
    found = [Found(**one) for one in numbers["panels"]]
    silent = [{"title": one.title, "count": one.right - len(one.first)} for one in found if one.right > len(one.first)]
    tasks = dict.fromkeys(one.task for one in found)
    beside = {PAPER_NAMES[name]: task for task in tasks if (name := paper_benchmark(task)) and task != name}
    return {
        "rows": [_cells(one) for one in found],
        "silent": silent,
        "counterparts": ", ".join(f"{name} for {task}" for name, task in beside.items()),
        "beside": [one for one in map(_compare, *zip(*_pairs(found), strict=True)) if one],
    }


def _cells(one: Found) -> list[str]:
    shares = [percent(share_by(values, mark)) for values in (one.first, one.stays) for mark in MARKS]
    interval = spread(one.interval(50)) if one.first else "-"
    return [one.title, f"{one.right} of {one.of}", *shares, interval, *map(str, one.paper or ("-", "-"))]


def _pairs(found: list[Found]) -> Iterator[tuple[Found, Found, str]]:
    """Yield pairs of decodings that differ in one choice, and what that choice is."""
    at = {(one.task, one.suffix, one.order): one for one in found}
    for task in dict.fromkeys(one.task for one in found):
        for order, name in ORDERS.items():
            yield at[task, False, order], at[task, True, order], f"{task}, {name}, suffix added"
        for suffix, name in ((False, "no suffix"), (True, "suffix")):
            yield (
                at[task, suffix, "full"],
                at[task, suffix, "random"],
                f"{task}, {name}, random instead of low-confidence",
            )


def _compare(low: Found, high: Found, what: str) -> dict[str, Any] | None:
    """Compare the change of the share by 50% of the steps with the paper's, if it has both."""
    if low.paper is None or high.paper is None:
        return None
    said = "nothing to compare"
    if low.first and high.first:
        said = classify_change(high.paper[1] - low.paper[1], low.interval(50), high.interval(50))
    return {
        "state": state_of(said in ALIKE, "differs" in said),
        "what": what,
        "named": PAPER_NAMES[paper_benchmark(low.task) or ""],
        "theirs": [low.paper[1], high.paper[1]],
        "ours": [share_by(one.first, 50) for one in (low, high)],
        "said": said,
    }


def draw(numbers: Numbers) -> Figure:
    found = [Found(**one) for one in numbers["panels"]]
    panels = [
        HistogramPanel(
            f"{one.title}\n{len(one.first)} right", {"first match": one.first, "stays from there on": one.stays}
        )
        for one in found
    ]
    return plot_histograms(panels, 4, "% of the budget (numbers: the share up to a line)", MARKS)


def main() -> None:
    options = parse_options(make_parser(__doc__, SIDE, ("word", "choice"), ("gsm8k", "mmlu")))
    for task in options.tasks:
        if not has_suffix(benchmark(task, options)):
            raise RequestError(f"{task} has no suffix prompt to leave out; choose tasks such as {options.bundled[0]}")
    found = [
        measure(task, suffix, order, options) for task in options.tasks for order in ORDERS for suffix in (False, True)
    ]
    numbers: dict[str, Any] = {"limit": options.limit, "panels": [asdict(one) for one in found]}
    numbers["shares"] = {
        one.title: {kind: [share_by(values, mark) for mark in MARKS] for kind, values in _kinds(one)} for one in found
    }
    publish("convergence", numbers, options)


def _kinds(one: Found) -> list[tuple[str, list[float]]]:
    return [("first", one.first), ("to stay", one.stays)]


if __name__ == "__main__":
    run_script(main)
