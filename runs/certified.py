"""Certified stopping: how often certificates hold over random splits, and how fast the certified rules are.

    python runs/certified.py                 # 2000 held-out problems a task, and 500 that teach the judge

Every rule of every family is replayed once on every full decoding; 200 times the problems are split at random, a rule
is chosen on one half and looked at on the other. The same on a decoding that fills many masks a step, whose answers are
compared with full decoding's. Decodings are shared with other scripts and replays are kept, so that it can be
interrupted and started again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from foretell.lab.coverage import Kept, Splits, halves
from foretell.lab.families import FAMILIES, Family
from foretell.lab.judge import Lesson
from foretell.lab.outcomes import Outcomes
from foretell.lab.risk import needed
from foretell.plots.risk import Line, Panel, risk
from page import command, percent, problems, prose, publish, subject, table
from rules import Pool, parser
from shared import SEED, go, options_of

RISKS = (0.005, 0.01, 0.02, 0.05)
CONFIDENCE = 0.95
SPLITS = 200
LOSSES = {
    "consistency": "another answer than full decoding's",
    "success": "a wrong answer where full decoding's is right",
}
PARALLEL = "threshold transfer.value=0.999"  # many masks a step, each of which the model is nearly certain of
JUDGE, BOTH = "judge", "parallel + entropy"
Families = dict[str, tuple[Family, Outcomes]]


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


def replayed(task: str, options: argparse.Namespace) -> Families:
    """Every family on every problem of a task that no judge was taught on."""
    pool = Pool(task, options)
    families = [*FAMILIES.values(), pool.judge(JUDGE, Lesson())]
    found = {family.name: (family, pool.replayed(family)) for family in families}
    fast, entropy = Pool(task, options, PARALLEL), FAMILIES["entropy"]
    return found | {BOTH: (entropy, fast.replayed(entropy, against=pool))}


def rows(task: str, found: Families) -> Iterator[Row]:
    """The same splits for all."""
    count = len(next(iter(found.values()))[1].full)
    sides = halves(count, SPLITS, SEED)
    for name, (family, made) in found.items():
        usual = None if family.published is None or name == BOTH else family.settings.index(family.published)
        for loss in LOSSES:
            splits = Splits.of(made, loss, sides)
            for eps in RISKS:
                fixed = None if usual is None else splits.fixed(usual, eps)
                yield Row(task, name, loss, eps, splits.certified(eps, CONFIDENCE), splits.hoped(eps), fixed)


def by_family(made: list[Row], loss: str) -> dict[tuple[str, str], list[Row]]:
    """In the order of the risks."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in made:
        if row.loss == loss:
            found.setdefault((row.task, row.family), []).append(row)
    return found


def panel(task: str, found: Families, made: list[Row]) -> Panel:
    lines = by_family(made, "consistency")
    shown = {name: _line(family, outcomes, lines[task, name]) for name, (family, outcomes) in found.items()
             if name != BOTH}  # fmt: skip
    return Panel(task, shown)


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
        [task, name, *(f"{row.certified.speedup:.2f}x" for row in mine)]
        for (task, name), mine in by_family(made, loss).items()
    ]


def share_rows(made: list[Row], loss: str, which: str) -> list[list[str]]:
    """Certified / naive / published, in percent of the splits."""

    def cell(row: Row) -> str:
        ways = (row.certified, row.naive, row.published)
        return " / ".join("-" if way is None else f"{100 * getattr(way, which):.0f}" for way in ways)

    return [[task, name, *map(cell, mine)] for (task, name), mine in by_family(made, loss).items()]


def verdict(made: list[Row], ideals: Mapping[str, tuple[float, float]]) -> list[str]:
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
        for task, (first, stays) in ideals.items():
            at_one = [row for row in mine if row.risk == 0.01 and row.task == task]
            best = max((row for row in at_one if row.family != BOTH), key=lambda row: row.certified.speedup)
            both = next(row for row in at_one if row.family == BOTH).certified.speedup
            lines.append(
                f"- {loss}, {task}, at 1% / {CONFIDENCE:.0%}: the fastest family is {best.family}, "
                f"{best.certified.speedup:.2f}x ({_reached(best.certified.speedup)} 2x); who knew the final answer "
                f"would stop at {stays:.2f}x where it stays, at {first:.2f}x where it first appears. "
                f"{BOTH}: {both:.2f}x ({_reached(both)} 2x)."
            )
    return [
        *lines,
        "",
        prose(
            "The fastest family is named after looking; who chooses a family by the same calibration set has to share",
            "delta among the families tried.",
        ),
    ]


def _reached(speedup: float) -> str:
    return "reaches" if speedup >= 2 else "misses"


def markdown(made: list[Row], ideals: Mapping[str, tuple[float, float]], options: argparse.Namespace) -> list[str]:
    half, risks = options.limit // 2, [f"{100 * eps:g}%" for eps in RISKS]
    least = ", ".join(f"{needed(eps, CONFIDENCE)} for {100 * eps:g}%" for eps in RISKS)
    lines = [
        f"# Certified stopping, {subject(options)}",
        "",
        prose(
            f"{problems(options)} (seed {SEED}), decoded in full; every family of rules is replayed on them.",
            f"{SPLITS} random splits: a rule is chosen on {half} problems for a risk eps at confidence {CONFIDENCE:g}",
            f"(delta = {1 - CONFIDENCE:.2g}) and looked at on the other {options.limit - half}. Without a single error",
            f"as many problems are needed as {least}; a split with too few, or whose safest rule fails, never stops",
            f"early (1.00x). `{JUDGE}` was taught on {options.taught} other problems of the task. *Naive* is the",
            "boldest rule whose mean loss on the calibration half is at most eps; *published* are the thresholds of",
            "the family's authors, unchanged.",
            command("certified", options),
        ),
        "",
        prose(
            f"`{BOTH}` is no rule on full decoding but the entropy family on another one, `{PARALLEL}`, which fills",
            "many masks a step; its answers and steps are compared with full decoding's, which is also what a split",
            "without a certificate falls back to. Its 0.999 was picked after a look at 200 problems of this study.",
        ),
        "",
        prose(
            "Delta bounds how often the chosen rule's true risk is above eps. The nearest to a true risk here is the",
            "one over all problems, of which a calibration half is a random draw: the second table of each loss. A",
            "held-out half is a sample itself and has just those errors that the calibration half was spared, so its",
            "share (the third table) may be above delta even where every certificate is right. The splits share their",
            "problems and are not independent.",
        ),
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
    return [*lines, *verdict(made, ideals)]


def main() -> None:
    options = options_of(parser(__doc__))
    made: list[Row] = []
    panels, ideals = [], {}
    for task in options.tasks:
        found = replayed(task, options)
        ideals[task] = Pool(task, options).ideal()
        mine = [*rows(task, found)]
        panels.append(panel(task, found, mine))
        made += mine
    numbers: dict[str, Any] = {"limit": options.limit, "taught": options.taught, "splits": SPLITS}
    numbers |= {"confidence": CONFIDENCE, "parallel": PARALLEL, "ideal": ideals, "rows": [asdict(row) for row in made]}
    publish("certified", markdown(made, ideals, options), numbers, options, risk(panels, RISKS, 1 - CONFIDENCE))


if __name__ == "__main__":
    go(main)
