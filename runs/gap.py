"""The gap: how it grows for right and for wrong final answers, and how reliable the gap at the exit is.

    python runs/gap.py                       # 1000 held-out problems per task; decodings are shared with other scripts
    python runs/gap.py --model LLaDA-8B-Instruct --tasks gsm8k mmlu --device cuda

Curves are read from the traces of full decodings; Prophet's exits are replayed on the same traces.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from statistics import median
from typing import Any

from scipy import stats
from torch import Tensor

from foretell.certify.replay import Case, Study
from foretell.evaluation.intervals import wilson
from foretell.plots.gaps import Bin, GapPanel, bin_exits, plot_gaps, quantile_band
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Staged
from page import command, percent, problems, prose, publish, spread, subject, table
from shared import SEED, load_study, make_parser, parse_options, run_script

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


def growth_rows(found: dict[str, GapPanel]) -> list[list[str]]:
    return [
        [task, reduction, end, str(n), *(f"{middle:.1f} ({low:.1f} to {high:.1f})" for low, middle, high in at)]
        for task, one in found.items()
        for reduction, end, n, at in growth(one)
    ]


def _edge(one: Bin) -> str:
    return f"{one.low:g} to {one.high:g}" if one.high < float("inf") else f"{one.low:g} and more"


def reliability_rows(found: dict[str, GapPanel]) -> list[list[str]]:
    rows = []
    for task, one in found.items():
        for reduction, bins in one.bins.items():
            for each, interval in zip(bins, one.intervals[reduction], strict=True):
                if interval is not None:
                    shares = [percent(each.share), spread(*interval)]
                    rows.append([task, reduction, _edge(each), str(each.n), *shares])
    return rows


def verdict(found: dict[str, GapPanel]) -> list[str]:
    lines = [
        "## What this says",
        prose(
            "No number of the paper stands beside these. What its rule needs is that a gap above the threshold means",
            "that full decoding would answer the same; the exits say how often that holds here. Whether the gap also",
            "tells right answers from wrong ones is tested at the middle of the budget (Mann-Whitney, two-sided,",
            "at 5%).",
        ),
        "",
    ]
    for task, one in found.items():
        for reduction in REDUCTIONS:
            n, agreed = (sum(getattr(b, name) for b in one.bins[reduction]) for name in ("n", "agreed"))
            kept = f"{percent(agreed / n)}% of {n} exits agree ({spread(*wilson(agreed, n))})" if n else "no exits"
            lines.append(f"- {task}, {reduction}: {kept}; {compare_ends(one, reduction)}.")
    return lines


def compare_ends(one: GapPanel, reduction: str) -> str:
    """Test whether the gap at the middle of the budget differs between right and wrong final answers."""
    middle = one.budget // 2
    right, wrong = ([float(curve[middle]) for curve in one.curves[reduction][end]] for end in ENDS)
    if not right or not wrong:
        return f"{len(right)} right and {len(wrong)} wrong answers, nothing to compare"
    p = float(stats.mannwhitneyu(right, wrong).pvalue)
    larger = median(right) > median(wrong)
    state = (
        "not decided at this n" if p >= 0.05 else "larger for right answers" if larger else "smaller for right answers"
    )
    return f"median gap {median(right):.1f} for right and {median(wrong):.1f} for wrong answers (p = {p:.2g}): {state}"


def thresholds(tau: Staged) -> str:
    return f"{tau.high:g}, {tau.mid:g} and {tau.low:g}"


def markdown(found: dict[str, GapPanel], options: argparse.Namespace) -> list[str]:
    when = [f"at {point:.0%}" for point in POINTS]
    bars = dict.fromkeys(thresholds(one.tau) for one in found.values())
    return [
        f"# The gap, {subject(options)}",
        "",
        prose(
            f"{problems(options)} (seed {SEED}), decoded in full with low-confidence remasking; the gap is read",
            "from the",
            "traces and the exits are replayed on them. The gap of the answer region, over all its positions, filled",
            f"ones included, as the paper's rule has it. {command('gap', options)}",
        ),
        "",
        "## Growth: median (10% to 90%) at shares of the budget",
        *table(("task", "gap", "answers that end", "n", *when), growth_rows(found), words=3),
        "## Reliability: the gap at the exit, and agreement with full decoding",
        prose(
            f"The thresholds are {' or '.join(bars)}; what exits below the first does so in a later stage. Wilson's",
            "intervals.",
        ),
        *table(("task", "gap", "at the exit", "n", "agrees, %", "95%"), reliability_rows(found), words=3),
        *verdict(found),
    ]


def main() -> None:
    options = parse_options(make_parser(__doc__))
    found = {task: make_panel(task, options) for task in options.tasks}
    numbers: dict[str, Any] = {"limit": options.limit, "points": POINTS}
    for task, one in found.items():
        kept = [dict(zip(("gap", "ends", "n", "quantiles"), row, strict=True)) for row in growth(one)]
        bins = {name: [asdict(each) | {"high": _finite(each.high)} for each in bins] for name, bins in one.bins.items()}
        numbers[task] = {"growth": kept, "reliability": bins}
    publish("gap", markdown(found, options), numbers, options, plot_gaps(list(found.values())))


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


if __name__ == "__main__":
    run_script(main)
