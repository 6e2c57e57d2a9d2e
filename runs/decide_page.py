"""The page of runs/decide.py: what each way to read a slot gives, in numbers, tables and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from foretell.decide.calibration import calibration_error, find_quantile, fit
from foretell.evaluation.intervals import Interval, exact, paired_difference, wilson
from foretell.plots.colours import colours_of
from text_page import percent, points, prose, spread, table

COVERAGE = 0.95  # of conformal sets
GOALS = {"choice": 3.0, "word": 5.0}  # forward passes
SPLITS = 200
LOSS, ERROR, FASTER = 0.005, 0.02, 3.0  # largest loss of accuracy, largest calibration error, least speedup of the head


@dataclass(frozen=True, slots=True)
class Row:
    """One way on one task."""

    task: str
    way: str
    recipe: str
    problems: int
    questions: int
    accuracy: float
    interval: Interval
    difference: float  # to full decoding
    difference_interval: Interval
    changed: float  # answers that differ from full decoding's
    forwards: float  # per problem
    mass: float  # smallest label mass
    error: float  # expected calibration error
    temperature: float | None = None
    error_after: float | None = None  # with this temperature
    covered: float | None = None  # share of conformal sets with the right label
    covered_interval: Interval | None = None
    size: float | None = None  # labels per conformal set
    mean_covered: float | None = None  # over random splits of both sets of problems


def summarise(
    task: str,
    way: str,
    about: tuple[str, Mapping[str, int]],
    tested: Sequence[Mapping[str, Any]],
    full: Sequence[Mapping[str, Any]],
    learned: Sequence[Mapping[str, Any]],
) -> Row:
    """Return what one way gives on the problems `tested`, with a calibration on those `learned`."""
    items, whole = ([item for row in rows for item in row["items"]] for rows in (tested, full))
    hits, full_hits = (np.array([_best(item) == item["right"] for item in each]) for each in (items, whole))
    changed = np.mean([_best(one) != _best(other) for one, other in zip(items, whole, strict=True)])
    lost, won = int((full_hits & ~hits).sum()), int((hits & ~full_hits).sum())
    more: dict[str, Any] = {}
    if learned:
        rows = [item for row in learned for item in row["items"]]
        made = fit([np.array(item["p"]) for item in rows], [item["right"] for item in rows], COVERAGE)
        softened = [made.soften(np.maximum(item["p"], 1e-12)) for item in items]
        sets = [made.select(np.array(item["p"])) for item in items]
        covered = sum(item["right"] in chosen for item, chosen in zip(items, sets, strict=True))
        more = {
            "temperature": made.temperature,
            "error_after": calibration_error([float(p.max()) for p in softened], hits.tolist()),
            "covered": covered / len(items),
            "covered_interval": exact(covered, len(items)),
            "size": float(np.mean([len(chosen) for chosen in sets])),
            "mean_covered": mean_coverage([*tested, *learned], len(learned)),
        }
    recipe, options = about
    return Row(
        task=task,
        way=way,
        recipe=" ".join([recipe, *(f"{name}={value}" for name, value in options.items())]),
        problems=len(tested),
        questions=len(items),
        accuracy=float(hits.mean()),
        interval=wilson(int(hits.sum()), len(hits)),
        difference=(won - lost) / len(hits),
        difference_interval=paired_difference(lost, won, len(hits)),
        changed=float(changed),
        forwards=float(np.mean([row["forwards"] for row in tested])),
        mass=min(item["mass"] for item in items),
        error=calibration_error([max(item["p"]) for item in items], hits.tolist()),
        **more,
    )


def mean_coverage(rows: Sequence[Mapping[str, Any]], calibration: int) -> float:
    """Return the coverage of conformal sets, averaged over random splits of the problems."""
    rng = np.random.default_rng(0)
    scores = [[1 - item["p"][item["right"]] for item in row["items"]] for row in rows]
    shares = []
    for _ in range(SPLITS):
        mixed = [scores[at] for at in rng.permutation(len(scores))]
        bound = find_quantile([score for part in mixed[:calibration] for score in part], COVERAGE)
        shares.append(np.mean([score <= bound + 1e-12 for part in mixed[calibration:] for score in part]))
    return float(np.mean(shares))


def _best(item: Mapping[str, Any]) -> int:
    return int(np.argmax(item["p"]))


def describe(
    rows: Sequence[Row],
    clocks: Mapping[str, Mapping[str, float]],
    heads: Sequence[Mapping[str, float]],
    calibration: int,
) -> list[str]:
    """Return the lines of the page."""
    lines = ["# Typed decisions: how many readings a label needs", ""]
    lines.append(
        prose(
            "`engine.decide` on the bundled model and its tasks, held-out problems, independent draws: `choice` (four",
            "letters), `yes_no` (is the right range one of the first two?), `word` (integers from 0 to 99),",
            "`sudoku` (every blank cell is a choice of 1 to 4, all cells on one canvas; its intervals treat cells as",
            "independent, which those of one puzzle are not).",
            f"Temperature and conformal quantile ({COVERAGE:.0%}) were learned from {calibration} other problems,",
            "decoded in the same way; the interval of the coverage is that of the test problems, and does not count",
            f"that the quantile is random too, so it is also averaged over {SPLITS} random splits. A conformal set can",
            "be empty. The clock counts times faster than full decoding on the same problems, in one",
            "process. Recipes were chosen on other problems. Decisions on natural language were measured on no model.",
            "Made by `python runs/decide.py`.",
        )
    )
    lines += ["", "## Goals", "", *_goals(rows, heads)]
    for task in dict.fromkeys(row.task for row in rows):
        lines += _describe_task([row for row in rows if row.task == task], clocks[task])
    lines += ["", "## The head", ""]
    lines.append(
        prose(
            "Logits of all tokens against those of 26 labels, random weights with LLaDA's shape (126,464 tokens, 4096",
            "wide, float32), one thread, the fastest of seven calls.",
        )
    )
    lines += table(
        ("positions", "all tokens (ms)", "labels (ms)", "times less"),
        [
            (
                str(int(one["positions"])),
                f"{one['all']:.1f}",
                f"{one['labels']:.2f}",
                f"{one['all'] / one['labels']:.0f}",
            )
            for one in heads
        ],
        words=0,
    )
    return lines


def _goals(rows: Sequence[Row], heads: Sequence[Mapping[str, float]]) -> list[str]:
    """Return one line per goal: met or not, and by which row."""
    lines = []
    for task, most in GOALS.items():
        mine = [row for row in rows if row.task == task and row.forwards <= most]
        if mine:
            best = max(mine, key=lambda row: row.difference)
            met = "met" if best.difference >= -LOSS else "not met"
            lines.append(
                f"- {task}, within 0.5 points of full decoding at {most:g} forwards or fewer: {met}; `{best.way}` "
                f"{100 * best.difference:+.1f} points at {best.forwards:.2f} forwards."
            )
    early = [row for row in rows if row.way == "default" and row.error_after is not None]
    for row in early:
        met = "met" if (row.error_after or 0) <= ERROR else "not met"
        lines.append(
            f"- {row.task}, calibration error at most {ERROR} after temperature (`default`): {met}; {row.error:.3f} "
            f"before, {row.error_after:.3f} after."
        )
        low, high = row.covered_interval or (0.0, 0.0)
        lines.append(
            f"- {row.task}, coverage of {COVERAGE:.0%} within its binomial interval (`default`): "
            f"{'met' if low <= COVERAGE <= high else 'not met'}; {percent(row.covered)} ({spread(low, high)}), and "
            f"{percent(row.mean_covered)} on average over {SPLITS} random splits."
        )
    least = min(one["all"] / one["labels"] for one in heads)
    lines.append(f"- Head at least {FASTER:g}x less: {'met' if least >= FASTER else 'not met'}; {least:.0f}x at least.")
    return lines


def _describe_task(rows: Sequence[Row], clock: Mapping[str, float]) -> list[str]:
    first = rows[0]
    answers = "" if first.questions == first.problems else f", {first.questions} questions"
    lines = ["", f"## {first.task} ({first.problems} problems{answers})"]
    headings = (
        "way", "right %", "95% interval", "against full (points)", "changed %", "forwards", "clock", "ECE", "T",
        "ECE after", "covered %", "interval", "over splits %", "set size",
    )  # fmt: skip
    body = [
        (
            row.way, percent(row.accuracy), spread(*row.interval),
            f"{100 * row.difference:+.1f} ({points(*row.difference_interval)})", percent(row.changed),
            f"{row.forwards:.2f}", f"{clock['full'] / clock[row.way]:.1f}x", f"{row.error:.3f}",
            "-" if row.temperature is None else f"{row.temperature:.2f}",
            "-" if row.error_after is None else f"{row.error_after:.3f}",
            percent(row.covered), "-" if row.covered_interval is None else spread(*row.covered_interval),
            percent(row.mean_covered),
            "-" if row.size is None else f"{row.size:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    lines += table(headings, body, words=1)
    lines += [f"- `{row.way}`: `{row.recipe}`" for row in rows]
    return lines


def plot(rows: Sequence[Row]) -> Figure:
    """Draw accuracy against forward passes, one panel per task."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    figure: Figure = plt.figure(figsize=(3.2 * len(tasks), 3.6), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, task, colour in zip(panels, tasks, colours_of(tasks).values(), strict=False):
        mine = [row for row in rows if row.task == task]
        axes.axhline(100 * mine[-1].accuracy, color="0.7", linewidth=0.8)
        for row in mine:
            axes.plot(row.forwards, 100 * row.accuracy, "o", color=colour, markersize=4)
            axes.annotate(row.way, (row.forwards, 100 * row.accuracy), fontsize=6, rotation=30, color="0.3")
        axes.set(xscale="log", xlabel="forward passes per problem", title=task)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("right answers (%)")
    return figure
