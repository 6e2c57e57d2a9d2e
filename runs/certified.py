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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure

from foretell.certify.coverage import Coverage, CoverageResult, Sets
from foretell.certify.outcomes import Outcomes
from foretell.certify.risk import confidence_at, examples_needed
from foretell.certify.train_judge import JudgeConfig
from foretell.plots.risk import RiskPanel, plot_risk
from foretell.policies.stop.families import FAMILIES, JUDGE_SHARE, TWINS, Family, share_delta
from page import Numbers, percent, publish
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
SHOWN = 0.01  # the risk in the picture and in the text
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


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the rows of all tables, and how often the promise is kept."""
    made = read_results(numbers)
    half, delta = numbers["limit"] // 2, 1 - CONFIDENCE
    parts = [examples_needed(0.01, confidence_at(CONFIDENCE, part)) for part in (JUDGE_SHARE, OTHERS_SHARE)]
    return {
        "half": half,
        "rest": numbers["limit"] - half,
        "delta": delta,
        "least": ", ".join(f"{examples_needed(eps, CONFIDENCE)} for {100 * eps:g}%" for eps in RISKS),
        "parts": parts,
        "judge_share": JUDGE_SHARE,
        "twins": TWINS,
        "equal_shares": numbers.get("needed", {}).get("equal_shares"),  # numbers of version 0.1.0
        "error": (0.05 * 0.95 / numbers["draws"]) ** 0.5,
        "headings": " | ".join(["task | family", *(f"{100 * eps:g}%" for eps in RISKS)]),
        "losses": [
            _describe_loss(loss, [row for row in made if row.loss == loss], numbers["ideal"]) for loss in LOSSES
        ],
    }


def read_results(numbers: Numbers) -> list[FamilyResult]:
    ways = ("certified", "naive", "published")
    return [
        FamilyResult(**row | {way: row[way] and CoverageResult(**row[way]) for way in ways}) for row in numbers["rows"]
    ]


def _describe_loss(loss: str, made: list[FamilyResult], ideals: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {
        "name": loss,
        "words": LOSSES[loss],
        "speed_rows": speed_rows(made, loss),
        "draw_rows": share_rows(made, loss, "violations"),
        "split_rows": share_rows(made, loss, "above"),
        "draws": count_kept(made, "violations"),
        "splits": count_kept(made, "above"),
        "tasks": [
            {"task": task, **describe_speeds(made, task), "first": first, "stays": stays}
            for task, (first, stays) in ideals.items()
        ],
    }


def count_kept(made: list[FamilyResult], which: str) -> dict[str, Any]:
    """Return in how many cases at most delta of the draws or splits have a too large risk, and the worst cases."""
    shares = {way: [_share(row, way, which) for row in made] for way in WAYS}
    worst = {way: max(made, key=lambda row, way=way: _share(row, way, which)) for way in WAYS}  # type: ignore[misc]
    return {
        "cases": len(made),
        "stops": sum(row.certified.stops > 0 for row in made),
        "kept": {way: sum(share <= 1 - CONFIDENCE for share in found) for way, found in shares.items()},
        "worst": {
            way: {"share": max(shares[way]), "family": row.family, "task": row.task, "risk": row.risk}
            for way, row in worst.items()
        },
        "mean": sum(shares["naive"]) / len(made),
    }


def _share(row: FamilyResult, way: str, which: str) -> float:
    found: float = getattr(getattr(row, way), which)
    return found


def describe_speeds(made: list[FamilyResult], task: str) -> dict[str, Any]:
    """Return the speedups at 1%; unlike `shared`, the fastest family is chosen after seeing the results."""
    found = {row.family: row.certified for row in made if row.risk == SHOWN and row.task == task}
    best = max((name for name in found if name not in (SHARED, BOTH)), key=lambda name: found[name].speedup)
    return {"families": found, "best": best, "certified": {name: describe_share(one) for name, one in found.items()}}


def describe_share(found: CoverageResult) -> dict[str, Any]:
    """Return whether 2x is reached, and if only some splits certify a rule, what their mean hides."""
    some = None if found.stops in (0, 1) else 1 + (found.speedup - 1) / found.stops
    return {"speedup": found.speedup, "stops": found.stops, "some": some, "reached": found.speedup >= 2}


def draw(numbers: Numbers) -> Figure:
    """Draw what is certified at 1%, and how often rules of the shared choice break their promise."""
    made = [row for row in read_results(numbers) if row.loss == "answer"]
    panels = []
    for task, (_, stays) in numbers["ideal"].items():
        at = {row.family: row.certified.speedup for row in made if row.risk == SHOWN and row.task == task}
        shared = [row for row in made if row.family == SHARED and row.task == task]
        speedups = {
            "Prophet, smallest gap": at[PROPHET],
            "fastest of nine rules": at[SHARED],
            "many masks per step\n+ entropy rule": at[BOTH],
            "a rule that knows\nthe final answer": stays,
        }
        broken = ([getattr(row, way).violations for row in shared] for way in WAYS)
        panels.append(RiskPanel(task, speedups, *broken))
    return plot_risk(panels, RISKS, 1 - CONFIDENCE, SHOWN)


def main() -> None:
    options = parse_options(make_rules_parser(__doc__))
    made: list[FamilyResult] = []
    ideals = {}
    for task in options.tasks:
        found = replay_families(task, options)
        ideals[task] = Pool(task, options).oracle_speedups()
        made += measure(task, found)
    numbers: dict[str, Any] = {"limit": options.limit, "taught": options.taught, "splits": SPLITS, "draws": DRAWS}
    numbers |= {"shared": SHARING, "confidence": CONFIDENCE, "parallel": PARALLEL, "ideal": ideals}
    publish("certified", numbers | {"rows": [asdict(row) for row in made]}, options)


if __name__ == "__main__":
    run_script(main)
