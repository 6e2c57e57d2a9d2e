"""Certified stopping: how often certificates hold over random splits, and how fast the certified rules are.

    python runs/certified.py                 # 2000 held-out problems a task; decodings are shared with other scripts

Every rule of every family is replayed once on every full decoding; 200 times the problems are split at random, a rule
is chosen on one half and looked at on the other. Can be interrupted and started again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from foretell.lab.coverage import Kept, Splits, halves
from foretell.lab.families import FAMILIES, Family
from foretell.lab.outcomes import Outcomes, outcomes
from foretell.lab.risk import needed
from foretell.plots.risk import Line, Panel, risk
from page import percent, publish, table
from shared import SEED, TASKS, go, options_of, parser_of, studied

RISKS = (0.005, 0.01, 0.02, 0.05)
CONFIDENCE = 0.95
SPLITS = 200
LOSSES = {
    "consistency": "another answer than full decoding's",
    "success": "a wrong answer where full decoding's is right",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One family on one task, at one risk, under one loss."""

    task: str
    family: str
    loss: str
    risk: float
    certified: Kept
    naive: Kept
    published: Kept | None  # the published thresholds, whatever they risk


def replayed(task: str, options: argparse.Namespace) -> dict[str, Outcomes]:
    """Every family on every problem of a task."""
    cases, found = studied(task, options).cases, {}
    for name, family in FAMILIES.items():
        started = time.perf_counter()
        found[name] = outcomes(cases, family.rules, family.region)
        took = time.perf_counter() - started
        print(f"{task}, {name}: {len(family.rules)} rules on {len(cases)} traces in {took:.1f} s", flush=True)
    return found


def rows(task: str, found: dict[str, Outcomes]) -> Iterator[Row]:
    """The same splits for all."""
    sides = halves(len(next(iter(found.values())).full), SPLITS, SEED)
    for name, family in FAMILIES.items():
        for loss in LOSSES:
            splits = Splits.of(found[name], loss, sides)
            usual = None if family.published is None else family.settings.index(family.published)
            for eps in RISKS:
                fixed = None if usual is None else splits.fixed(usual, eps)
                yield Row(task, name, loss, eps, splits.certified(eps, CONFIDENCE), splits.hoped(eps), fixed)


def picked(made: list[Row], task: str, name: str, loss: str) -> list[Row]:
    """In the order of the risks."""
    return [row for row in made if (row.task, row.family, row.loss) == (task, name, loss)]


def panel(task: str, found: dict[str, Outcomes], made: list[Row]) -> Panel:
    return Panel(task, {name: _line(family, found[name], picked(made, task, name, "consistency"))
                        for name, family in FAMILIES.items()})  # fmt: skip


def _line(family: Family, found: Outcomes, mine: list[Row]) -> Line:
    risks, speedups = found.losses("consistency").mean(axis=1).tolist(), found.speedups().tolist()
    usual = None if family.published is None else family.settings.index(family.published)
    return Line(
        speedups=speedups,
        risks=risks,
        certified=[(row.certified.speedup, row.certified.risk) for row in mine],
        published=None if usual is None else (speedups[usual], risks[usual]),
        above=[row.certified.above_all for row in mine],
        above_naive=[row.naive.above_all for row in mine],
    )


def speed_rows(made: list[Row], loss: str) -> list[list[str]]:
    return [
        [task, name, *(f"{row.certified.speedup:.2f}x" for row in picked(made, task, name, loss))]
        for task in TASKS
        for name in FAMILIES
    ]


def share_rows(made: list[Row], loss: str, which: str) -> list[list[str]]:
    """Certified / naive / published, in percent of the splits."""

    def cell(row: Row) -> str:
        ways = (row.certified, row.naive, row.published)
        return " / ".join("-" if way is None else f"{100 * getattr(way, which):.0f}" for way in ways)

    return [[task, name, *(cell(row) for row in picked(made, task, name, loss))] for task in TASKS for name in FAMILIES]


def verdict(made: list[Row]) -> list[str]:
    lines = ["## What this says"]
    for loss, words in LOSSES.items():
        mine = [row for row in made if row.loss == loss]
        kept = [row for row in mine if row.certified.stops > 0]
        held = sum(row.certified.above_all <= 1 - CONFIDENCE for row in mine)
        hoped = sum(row.naive.above_all <= 1 - CONFIDENCE for row in mine)
        worst = max(row.certified.above_all for row in mine)
        mean = sum(row.naive.above_all for row in mine) / len(mine)
        lines.append(
            f"- {loss} ({words}): certified rules keep delta in {held} of {len(mine)} cases (a task, a family, an "
            f"eps), {len(kept)} of which stop early at all; at worst {percent(worst)}% of the splits are above eps. "
            f"The naive choice keeps it in {hoped}, and is above eps in {percent(mean)}% of the splits on average."
        )
    at_one = [row for row in made if row.loss == "consistency" and row.risk == 0.01]
    for task in TASKS:
        best = max((row for row in at_one if row.task == task), key=lambda row: row.certified.speedup)
        reached = "reaches" if best.certified.speedup >= 2 else "misses"
        lines.append(
            f"- {task}: the fastest family at 1% / {CONFIDENCE:.0%} is {best.family}, {best.certified.speedup:.2f}x "
            f"({reached} 2x)."
        )
    lines += [
        "",
        "The fastest family is named after looking; who chooses a family by the same calibration set has to share",
        "delta among the families tried.",
    ]
    return lines


def markdown(made: list[Row], limit: int) -> list[str]:
    half = limit // 2
    risks = [f"{100 * eps:g}%" for eps in RISKS]
    least = ", ".join(f"{needed(eps, CONFIDENCE)} for {100 * eps:g}%" for eps in RISKS)
    lines = [
        "# Certified stopping, bundled model",
        "",
        f"{limit} held-out problems a task (seed {SEED}), decoded in full; every family of rules is replayed on them.",
        f"{SPLITS} random splits: a rule is chosen on {half} problems for a risk eps at confidence {CONFIDENCE:g}",
        f"(delta = {1 - CONFIDENCE:.2g}) and looked at on the other {limit - half}. Without a single error as many",
        f"problems are needed as {least}; a split with too few, or whose safest rule fails, never stops early (1.00x).",
        "*Naive* is the boldest rule whose mean loss on the calibration half is at most eps; *published* are the",
        "thresholds of the family's authors, unchanged. `python runs/certified.py`",
        "",
        "Delta bounds how often the chosen rule's true risk is above eps. The nearest to a true risk here is the one",
        "over all problems, of which a calibration half is a random draw: the second table of each loss. A held-out",
        "half is a sample itself and has just those errors that the calibration half was spared, so its share (the",
        "third table) may be above delta even where every certificate is right. The splits share their problems and",
        "are not independent.",
        "",
    ]
    for loss, words in LOSSES.items():
        lines += [f"## Loss: {loss}, {words}", "Certified speedup in steps on held-out problems, mean over splits."]
        lines += table(("task", "family", *risks), speed_rows(made, loss))
        legend = "certified / naive / published"
        lines.append(f"Splits whose rule has a risk above eps over all problems, %: {legend}.")
        lines += table(("task", "family", *risks), share_rows(made, loss, "above_all"))
        lines.append(f"Splits whose held-out risk is above eps, %: {legend}.")
        lines += table(("task", "family", *risks), share_rows(made, loss, "above"))
    return [*lines, *verdict(made)]


def main() -> None:
    options = options_of(parser_of(__doc__, limit=2000))
    made: list[Row] = []
    panels = []
    for task in TASKS:
        found = replayed(task, options)
        made += rows(task, found)
        panels.append(panel(task, found, made))
    numbers: dict[str, Any] = {"seed": SEED, "limit": options.limit, "splits": SPLITS, "confidence": CONFIDENCE}
    numbers["rows"] = [asdict(row) for row in made]
    publish("certified", markdown(made, options.limit), numbers, options, risk(panels, RISKS, 1 - CONFIDENCE))


if __name__ == "__main__":
    go(main)
