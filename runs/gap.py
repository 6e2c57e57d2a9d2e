"""The gap: how it grows for right and for wrong final answers, and how reliable the gap at the exit is.

    python runs/gap.py                       # 1000 held-out problems per task; decodings are shared with other scripts
    python runs/gap.py --model LLaDA-8B-Instruct --tasks gsm8k mmlu --device cuda

Curves are read from the traces of full decodings; Prophet's exits are replayed on the same traces.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

from scipy import stats
from torch import Tensor

from foretell.certify.replay import Case, Study
from foretell.evaluation.intervals import wilson
from foretell.plots.gaps import GapPanel, bin_exits, plot_gaps, quantile_band
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Staged
from page import Numbers, percent, publish, spread
from shared import load_study, make_parser, parse_options, run_script

REDUCTIONS = ("mean", "min")
POINTS = (0.0, 0.25, 0.5, 0.75)  # shares of the budget shown in the table
ENDS = ("right", "wrong")


def measured_gap(case: Case, rule: Prophet) -> Tensor:
    """Return the gap that the rule measures at every step. [T]"""
    value = rule(case.trace, case.trace.states()).value
    assert value is not None
    return value


def exits(one: Study, rule: Prophet) -> list[tuple[float, bool]]:
    """Return, per decoding that the rule stops, the gap at the stop and whether the answer is full decoding's."""
    pairs = zip(one.records, one.replay("", rule), strict=True)
    return [(early.value, early.answer == full.answer) for full, early in pairs if early.value is not None]


def make_panel(task: str, options: argparse.Namespace) -> GapPanel:
    one = load_study(task, options)
    tau = one.bench.benchmark.thresholds
    budget = one.cases[0].trace.request.budget
    ends = {end: [case for case in one.cases if case.record.correct is (end == "right")] for end in ENDS}
    curves, bins, intervals = {}, {}, {}
    for reduction in REDUCTIONS:
        rule = Prophet(tau, reduce="min" if reduction == "min" else "mean")
        curves[reduction] = {end: [measured_gap(case, rule) for case in cases] for end, cases in ends.items()}
        bins[reduction] = bin_exits(exits(one, rule))
        intervals[reduction] = [wilson(b.agreed, b.n) if b.n else None for b in bins[reduction]]
    title = f"{task}: {len(ends['right'])} right, {len(ends['wrong'])} wrong"
    return GapPanel(title, budget, tau, curves, bins, intervals)


def growth(one: GapPanel) -> list[tuple[str, str, int, list[list[float]]]]:
    """Return rows of (reduction, end, n, quantiles at each of the points)."""
    made = []
    for reduction, by_end in one.curves.items():
        for end, curves in by_end.items():
            if curves:
                found = quantile_band(curves)
                steps = [min(found.shape[1] - 1, int(point * one.budget)) for point in POINTS]
                made.append((reduction, end, len(curves), found[:, steps].T.tolist()))
    return made


def compare_ends(one: GapPanel, reduction: str) -> dict[str, Any]:
    """Test whether the gap at the middle of the budget differs between right and wrong final answers."""
    middle = one.budget // 2
    right, wrong = ([float(curve[middle]) for curve in one.curves[reduction][end]] for end in ENDS)
    if not right or not wrong:
        return {"counts": [len(right), len(wrong)]}
    p = float(stats.mannwhitneyu(right, wrong).pvalue)
    return {"counts": [len(right), len(wrong)], "medians": [median(right), median(wrong)], "p": p}


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the rows of both tables, and a line per task and reduction."""
    tasks = numbers["tasks"]
    return {
        "growth_headings": " | ".join(["task | gap | answers that end | n", *(f"at {at:.0%}" for at in POINTS)]),
        "growth_rows": [
            [
                task,
                row["gap"],
                row["ends"],
                str(row["n"]),
                *(f"{mid:.1f} ({low:.1f} to {high:.1f})" for low, mid, high in row["quantiles"]),
            ]
            for task, one in tasks.items()
            for row in one["growth"]
        ],
        "exit_rows": [
            [
                task,
                reduction,
                _edge(one),
                str(one["n"]),
                percent(one["agreed"] / one["n"]),
                spread(wilson(one["agreed"], one["n"])),
            ]
            for task, found in tasks.items()
            for reduction, bins in found["reliability"].items()
            for one in bins
            if one["n"]
        ],
        "lines": [_describe(task, reduction, found) for task, found in tasks.items() for reduction in REDUCTIONS],
    }


def _edge(one: Mapping[str, Any]) -> str:
    return f"{one['low']:g} and more" if one["high"] is None else f"{one['low']:g} to {one['high']:g}"


def _describe(task: str, reduction: str, found: Mapping[str, Any]) -> dict[str, Any]:
    n, agreed = (sum(one[name] for one in found["reliability"][reduction]) for name in ("n", "agreed"))
    kept = {"share": agreed / n, "interval": wilson(agreed, n)} if n else {}
    return {"task": task, "reduction": reduction, "n": n, **kept, **found["ends"][reduction]}


def thresholds(tau: Staged) -> str:
    return f"{tau.high:g}, {tau.mid:g} and {tau.low:g}"


def main() -> None:
    options = parse_options(make_parser(__doc__))
    found = {task: make_panel(task, options) for task in options.tasks}
    numbers: dict[str, Any] = {"limit": options.limit, "points": POINTS, "tasks": {}}
    numbers["thresholds"] = list(dict.fromkeys(thresholds(one.tau) for one in found.values()))
    for task, one in found.items():
        kept = [dict(zip(("gap", "ends", "n", "quantiles"), row, strict=True)) for row in growth(one)]
        bins = {name: [asdict(each) | {"high": _finite(each.high)} for each in bins] for name, bins in one.bins.items()}
        ends = {reduction: compare_ends(one, reduction) for reduction in REDUCTIONS}
        numbers["tasks"][task] = {"growth": kept, "reliability": bins, "ends": ends}
    publish("gap", numbers, options, plot_gaps(list(found.values())))


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


if __name__ == "__main__":
    run_script(main)
