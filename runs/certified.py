"""Certified stopping: how often certificates hold, and how fast the certified rules are.

    python runs/certified.py                 # 2000 held-out problems per task, and 500 to train the judge

Every rule of every family is replayed once on every full decoding. Rules are then chosen on many calibration sets: on
random halves, with the other half held out, and on draws with replacement, which show how often the chosen rule has a
too large risk over all problems. The same is done for a decoding that fills many masks per step, whose answers are
compared with full decoding's. Decodings are shared with other scripts and replays are stored. Safe to interrupt: run
the same command again to resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from foretell.certify.coverage import Coverage, CoverageResult, Sets
from foretell.certify.outcomes import Outcomes
from foretell.certify.risk import confidence_at, examples_needed
from foretell.certify.train_judge import JudgeConfig
from foretell.plots.risk import Line, RiskPanel, plot_risk
from foretell.policies.stop.families import FAMILIES, JUDGE_SHARE, TWINS, Family, share_delta
from page import command, percent, problems, prose, publish, subject, table
from rules import Pool, make_rules_parser
from shared import SEED, parse_options, run_script

RISKS = (0.005, 0.01, 0.02, 0.05)
CONFIDENCE = 0.95
SPLITS, DRAWS = 200, 1000
LOSSES = {
    "answer": "another answer than full decoding's",
    "success": "a wrong answer where full decoding's is right",
}
PARALLEL = "threshold transfer.value=0.999"  # many masks per step, where the model is nearly certain
ONE_TOKEN = ("choice",)  # tasks whose answers are one token: some families are then equal to others
PROPHET, JUDGE, SHARED, BOTH = "prophet-min", "judge", "shared", "parallel + entropy"
WAYS = ("certified", "naive")
SPEEDS = prose(
    "Certified speedup in steps on held-out problems, mean over splits. In brackets, if not all of them: the share of",
    "the splits that certify a rule. The others decode in full, and count as 1.00x.",
)
SHARING = (
    *(name for name, family in FAMILIES.items() if family.region is None),
    JUDGE,
)  # families on the recipe's own region
OTHERS_SHARE = (1 - JUDGE_SHARE) / (len(SHARING) - 1)
Families = dict[str, tuple[Family, Outcomes]]


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """The coverage of one family on one task, at one risk, under one loss."""

    task: str
    family: str
    loss: str
    risk: float
    certified: CoverageResult
    naive: CoverageResult
    published: CoverageResult | None  # the published thresholds, at any risk


def replay_families(task: str, options: argparse.Namespace) -> Families:
    """Replay every family on the problems of a task that no judge was trained on."""
    pool = Pool(task, options)
    families = [*FAMILIES.values(), pool.train_judge(JUDGE, JudgeConfig())]
    found = {family.name: (family, pool.replay(family)) for family in families}
    fast, entropy = Pool(task, options, PARALLEL), FAMILIES["entropy"]
    return found | {BOTH: (entropy, fast.replay(entropy, against=pool))}


def measure(task: str, found: Families) -> Iterator[FamilyResult]:
    """Yield the result of every family, loss and risk, all on the same calibration sets."""
    sets = Sets.of(len(found[JUDGE][1].full), SPLITS, DRAWS, SEED)
    tried = {name: [made] for name, (_, made) in found.items() if name != BOTH}
    together = [found[name] for name in SHARING if not (task in ONE_TOKEN and name in TWINS)]
    tried |= {SHARED: [made for _, made in together], BOTH: [found[BOTH][1]]}
    shares = share_delta([family for family, _ in together])
    for name, made in tried.items():
        usual = None if name in (SHARED, BOTH) else published_index(found[name][0])
        for loss in LOSSES:
            mine = Coverage.of(sets, loss, *made)
            for eps in RISKS:
                fixed = None if usual is None else mine.evaluate_fixed(usual, eps)
                certified = mine.evaluate_certified(eps, CONFIDENCE, shares if name == SHARED else None)
                naive = mine.evaluate_naive(eps)
                yield FamilyResult(task, name, loss, eps, certified, naive, fixed)


def published_index(family: Family) -> int | None:
    """Return the index of the rule with the published thresholds, if there is one."""
    return None if family.published is None else family.settings.index(family.published)


def by_family(made: list[FamilyResult], loss: str) -> dict[tuple[str, str], list[FamilyResult]]:
    """Group the results under one loss by task and family, in the order of the risks."""
    found: dict[tuple[str, str], list[FamilyResult]] = {}
    for row in made:
        if row.loss == loss:
            found.setdefault((row.task, row.family), []).append(row)
    return found


def make_panel(task: str, found: Families, made: list[FamilyResult]) -> RiskPanel:
    mine = {name: rows for (_, name), rows in by_family(made, "answer").items() if name != BOTH}
    return RiskPanel(task, {name: _make_line(rows, *found.get(name, ())) for name, rows in mine.items()})


def _make_line(mine: list[FamilyResult], family: Family | None = None, found: Outcomes | None = None) -> Line:
    """Return a line of the figure; without a single family it has no curve."""
    risks = [] if found is None else found.losses("answer").mean(axis=1).tolist()
    speedups = [] if found is None else found.speedups().tolist()
    usual = None if family is None else published_index(family)
    return Line(
        speedups=speedups,
        risks=risks,
        certified=[(row.certified.speedup, row.certified.risk) for row in mine],
        published=None if usual is None else (speedups[usual], risks[usual]),
        above=[row.certified.violations for row in mine],
        above_naive=[row.naive.violations for row in mine],
    )


def speed_rows(made: list[FamilyResult], loss: str) -> list[list[str]]:
    """Return table rows of speedups, with the share of the splits that certify a rule where only some do."""

    def cell(found: CoverageResult) -> str:
        return f"{found.speedup:.2f}x" + (f" ({percent(found.stops)}%)" if 0 < found.stops < 1 else "")

    return [
        [task, name, *(cell(row.certified) for row in mine)] for (task, name), mine in by_family(made, loss).items()
    ]


def share_rows(made: list[FamilyResult], loss: str, which: str) -> list[list[str]]:
    """Return table rows: certified / naive / published, in percent of the draws or splits."""

    def cell(row: FamilyResult) -> str:
        ways = (row.certified, row.naive, row.published)
        return " / ".join("-" if way is None else f"{100 * getattr(way, which):.3g}" for way in ways)

    return [[task, name, *map(cell, mine)] for (task, name), mine in by_family(made, loss).items()]


def verdict(made: list[FamilyResult], ideals: Mapping[str, tuple[float, float]]) -> list[str]:
    lines = ["## What this says"]
    for loss, words in LOSSES.items():
        mine = [row for row in made if row.loss == loss]
        lines += [
            f"- {loss} ({words}), over draws: {describe_draws(mine)}",
            f"- {loss}, over splits: {describe_splits(mine)}",
        ]
        for task, ideal in ideals.items():
            at_one = {row.family: row.certified for row in mine if row.risk == 0.01 and row.task == task}
            lines.append(f"- {loss}, {task}, at 1% / {CONFIDENCE:.0%}: {describe_speeds(at_one, *ideal)}")
    return lines


def describe_draws(mine: list[FamilyResult]) -> str:
    """Describe how often the guarantee holds over draws, for which it is stated."""
    held, naive = (sum(_share(row, way, "violations") <= 1 - CONFIDENCE for row in mine) for way in WAYS)
    stops = sum(row.certified.stops > 0 for row in mine)
    mean = sum(row.naive.violations for row in mine) / len(mine)
    return (
        f"certified rules keep delta in {held} of {len(mine)} cases (a task, a family, an eps), {stops} of which stop "
        f"early at all; at worst {_worst(mine, 'certified', 'violations')} have a rule above eps. The naive choice "
        f"keeps it in {naive}; at worst {_worst(mine, 'naive', 'violations')} do, on average {percent(mean)}%."
    )


def describe_splits(mine: list[FamilyResult]) -> str:
    """Describe how often the risk on held-out examples is too large."""
    broken, naive = (sum(_share(row, way, "above") > 1 - CONFIDENCE for row in mine) for way in WAYS)
    return (
        f"certified rules have a held-out risk above eps in more than delta of the splits in {broken} of {len(mine)} "
        f"cases, at worst in {_worst(mine, 'certified', 'above')}; the naive choice in {naive}, at worst in "
        f"{_worst(mine, 'naive', 'above')}. This measure is noisy: a held-out half is a sample itself, and has the "
        "errors that the calibration half was spared."
    )


def _share(row: FamilyResult, way: str, which: str) -> float:
    found: float = getattr(getattr(row, way), which)
    return found


def _worst(mine: list[FamilyResult], way: str, which: str) -> str:
    row = max(mine, key=lambda row: _share(row, way, which))
    sets = "draws" if which == "violations" else "splits"
    return f"{percent(_share(row, way, which))}% of the {sets} ({row.family} on {row.task} at {100 * row.risk:g}%)"


def describe_speeds(found: Mapping[str, CoverageResult], first: float, stays: float) -> str:
    """Describe the speedups at one risk; unlike `shared`, the fastest family is chosen after seeing the results."""
    certified = {name: one.speedup for name, one in found.items()}
    best = max((name for name in certified if name not in (SHARED, BOTH)), key=lambda name: certified[name])
    return (
        f"{PROPHET}, Prophet by its smallest gap, has {certified[PROPHET]:.2f}x; {SHARED} {certified[SHARED]:.2f}x "
        f"({describe_share(found[SHARED])}); {best}, named the fastest after looking, {certified[best]:.2f}x. Who "
        f"knew the final answer would stop at {stays:.2f}x where it stays, at {first:.2f}x where it first appears. "
        f"{BOTH}: {certified[BOTH]:.2f}x ({describe_share(found[BOTH])})."
    )


def describe_share(found: CoverageResult) -> str:
    """Say whether 2x is reached, and if only some splits certify a rule, what their mean hides."""
    if found.stops in (0, 1):
        return f"{_reached(found.speedup)} 2x"
    there = 1 + (found.speedup - 1) / found.stops
    return f"a mean: {percent(found.stops)}% of the splits certify a rule and have {there:.2f}x, the others 1.00x"


def _reached(speedup: float) -> str:
    return "reaches" if speedup >= 2 else "misses"


def markdown(
    made: list[FamilyResult], ideals: Mapping[str, tuple[float, float]], options: argparse.Namespace
) -> list[str]:
    half, risks = options.limit // 2, [f"{100 * eps:g}%" for eps in RISKS]
    least = ", ".join(f"{examples_needed(eps, CONFIDENCE)} for {100 * eps:g}%" for eps in RISKS)
    shared = [examples_needed(0.01, confidence_at(CONFIDENCE, part)) for part in (JUDGE_SHARE, OTHERS_SHARE)]
    lines = [
        f"# Certified stopping, {subject(options)}",
        "",
        prose(
            f"{problems(options)} (seed {SEED}), decoded in full; every family of rules is replayed on them. A rule is",
            f"chosen on {half} problems for a risk eps at confidence {CONFIDENCE:g} (delta = {1 - CONFIDENCE:.2g}).",
            "Without a single error as many problems are needed as",
            f"{least}; with too few, or where the safest rule fails, nothing stops early (1.00x).",
            f"`{JUDGE}` was taught on {options.taught} other problems of the task. *Naive* is the boldest rule whose",
            "mean loss on the calibration set is at most eps; *published* are the thresholds of the family's authors,",
            "unchanged. Both losses are shares of all problems: where full decoding is right on 56% of them, 1% of all",
            "is 1.8% of the right answers.",
            command("certified", options),
        ),
        "",
        prose(
            f"`{SHARED}` is the fastest of {len(SHARING)} families, {', '.join(SHARING)}: the judge is certified at",
            f"{JUDGE_SHARE:g} delta, which takes {shared[0]} problems at 1%, the others share the rest ({shared[1]}",
            f"problems; {' and '.join(TWINS)} are left out where answers are one token), and of what passes the rule",
            "that saves most on the calibration set is taken. That is a promise, choice and all; whoever names the",
            "fastest family after",
            "looking at this page has none.",
        ),
        "",
        prose(
            f"`{BOTH}` is no rule on full decoding but the entropy family on another one, `{PARALLEL}`, which fills",
            "many masks a step; its answers and steps are compared with full decoding's, which is also what a set",
            "without a certificate falls back to. Its 0.999 was picked after a look at 200 problems of this study.",
        ),
        "",
        prose(
            "Delta bounds how often the chosen rule's true risk is above eps, over calibration sets that are drawn",
            "independently from a population. *Draws*: the population is all problems here, so that the true risk of",
            f"every rule is known, and {DRAWS} calibration sets of {half} are drawn from it with replacement (a share",
            f"of 5% has a standard error of {100 * (0.05 * 0.95 / DRAWS) ** 0.5:.1f} points). *Splits*: {SPLITS} times",
            f"the problems are split at random, and the rule is looked at on the {options.limit - half} that are left.",
            "Splits share their problems and are not independent.",
        ),
        "",
    ]
    for loss, words in LOSSES.items():
        lines += [f"## Loss: {loss}, {words}", SPEEDS]
        lines += table(("task", "family", *risks), speed_rows(made, loss))
        legend = "certified / naive / published"
        lines.append(f"Draws whose rule has a risk above eps over all problems, %: {legend}.")
        lines += table(("task", "family", *risks), share_rows(made, loss, "violations"))
        lines.append(f"Splits whose held-out risk is above eps, %: {legend}.")
        lines += table(("task", "family", *risks), share_rows(made, loss, "above"))
    return [*lines, *verdict(made, ideals)]


def main() -> None:
    options = parse_options(make_rules_parser(__doc__))
    made: list[FamilyResult] = []
    panels, ideals = [], {}
    for task in options.tasks:
        found = replay_families(task, options)
        ideals[task] = Pool(task, options).oracle_speedups()
        mine = [*measure(task, found)]
        panels.append(make_panel(task, found, mine))
        made += mine
    numbers: dict[str, Any] = {"limit": options.limit, "taught": options.taught, "splits": SPLITS}
    numbers |= {
        "draws": DRAWS,
        "shared": SHARING,
        "confidence": CONFIDENCE,
        "parallel": PARALLEL,
        "ideal": ideals,
        "rows": [asdict(row) for row in made],
    }
    publish("certified", markdown(made, ideals, options), numbers, options, plot_risk(panels, RISKS, 1 - CONFIDENCE))


if __name__ == "__main__":
    run_script(main)
