"""A rule calibrated in float32, used on the same model in bfloat16 or int8, with and without recalibration.

    python runs/numerics.py                  # 400 held-out problems of two tasks in three formats

The same problems are decoded in full in each format, with traces; a loss is an answer that differs from the same
format's full decoding. int8 is `quantize="int8"`: the weights between embedding and head. Rules use the gap, log-odds,
or the gap's rank, whose quantiles are fitted in each format without labels. Safe to interrupt: run the same command
again to resume.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from certified import CONFIDENCE, DRAWS, SPLITS
from foretell.certify.coverage import Coverage, CoverageResult, Sets
from foretell.policies.stop.families import FAMILIES, Family, ranks_family
from foretell.policies.stop.scales import Ranks
from page import command, percent, problems, prose, publish, subject, table
from rules import Pool, make_rules_parser
from shared import SEED, parse_options, run_script

RISK = 0.02
LIMIT, TAUGHT = 400, 100  # bfloat16 is slow on a CPU
TASKS = ("choice", "sudoku")
FORMATS = ("float32", "bfloat16", "int8")
RULES = ("prophet-min", "log-odds", "ranks")


@dataclass(frozen=True, slots=True)
class FormatResult:
    """The coverage of one family on one task, in one format."""

    task: str
    family: str
    format: str
    agrees: float  # share of problems whose full decoding gives float32's answer
    without: CoverageResult  # with the rule certified in float32
    again: CoverageResult  # with the rule certified in this format


def options_for_format(name: str, options: argparse.Namespace) -> argparse.Namespace:
    """Return the options for the model in another format, with a separate folder for its decodings."""
    if name == "float32":
        return options
    changed: dict[str, Any] = {"quantize": name} if name == "int8" else {"dtype": name}
    folder: Path = options.decodings
    return argparse.Namespace(**vars(options) | changed | {"decodings": folder.with_name(f"{folder.name}-{name}")})


def make_families(pool: Pool) -> dict[str, Family]:
    """Return the families of rules; ranks are fitted on the answers' gaps in the first problems of this format."""
    gaps = torch.cat([case.trace.gap[case.trace.answer()] for case in pool.training_cases])
    return {name: ranks_family(Ranks.of(gaps)) if name == "ranks" else FAMILIES[name] for name in RULES}


def measure(task: str, options: argparse.Namespace) -> list[FormatResult]:
    pools = {name: Pool(task, options_for_format(name, options)) for name in FORMATS}
    answers = {name: [record.answer for record in pool.records] for name, pool in pools.items()}
    sets = Sets.of(len(answers["float32"]), SPLITS, DRAWS, SEED)
    found = {
        (name, family): Coverage.of(sets, "answer", pool.replay(one))
        for name, pool in pools.items()
        for family, one in make_families(pool).items()
    }
    rows = []
    for family in RULES:
        usual = found["float32", family].choose_certified(RISK, CONFIDENCE)
        for name in FORMATS:
            mine = found[name, family]
            same = sum(map(str.__eq__, map(str, answers[name]), map(str, answers["float32"]))) / len(answers[name])
            rows.append(
                FormatResult(
                    task,
                    family,
                    name,
                    same,
                    mine.evaluate_choice(usual, RISK),
                    mine.evaluate_certified(RISK, CONFIDENCE),
                )
            )
    return rows


def cells(row: FormatResult) -> list[str]:
    both = (f"{one.speedup:.2f}x, {percent(one.risk)}%, {percent(one.violations)}%" for one in (row.without, row.again))
    return [row.task, row.family, row.format, percent(row.agrees), *both]


def verdict(rows: list[FormatResult]) -> list[str]:
    other = [row for row in rows if row.format != "float32"]
    delta = 1 - CONFIDENCE
    again = [row for row in other if row.again.violations <= delta]
    without = [row for row in other if row.without.violations <= delta]
    worst = max(other, key=lambda row: row.without.violations)
    most = percent(max(row.again.violations for row in other))
    lines = [
        f"Calibrated again, delta is kept in {len(again)} of {len(other)} cases (a task, a rule, a format): at most",
        f"{most}% of the draws have a rule above eps. Without, it is kept in {len(without)} of {len(other)}; the",
        f"worst is {worst.family} on {worst.task} in {worst.format}: {percent(worst.without.violations)}% of the draws",
        "above eps. Nothing promises that: a certificate names its dtype and weights, and says so where they differ.",
    ]
    return ["## What this says", prose(*lines)]


def markdown(rows: list[FormatResult], options: argparse.Namespace) -> list[str]:
    headings = ("task", "rule", "format", "agrees, %", "float32's rule", "calibrated again")
    return [
        f"# Numerics, {subject(options)}",
        "",
        prose(
            f"{problems(options)} (seed {SEED}), decoded in full in each format. A rule is certified for a risk of",
            f"{100 * RISK:g}% at confidence {CONFIDENCE:g}, in float32 or in the format itself, and looked at in the",
            f"format. On {SPLITS} random halves, with the other half held out: speedup in steps, and risk (another",
            f"answer than the format's own full decoding). On {DRAWS} calibration sets as large as a half, drawn with",
            "replacement: the share of them whose rule has a risk above eps over all problems.",
            'Agrees: full decodings that give float32\'s answer. int8: `quantize="int8"`, the weights',
            f"between embedding and head. Ranks are fitted on {options.taught} other problems in each format.",
            command("numerics", options),
        ),
        *table(headings, [cells(row) for row in rows], words=3),
        *verdict(rows),
    ]


def main() -> None:
    options = parse_options(make_rules_parser(__doc__, LIMIT, TAUGHT, TASKS))
    rows = [row for task in options.tasks for row in measure(task, options)]
    numbers: dict[str, Any] = {"limit": options.limit, "taught": options.taught, "risk": RISK}
    numbers |= {"splits": SPLITS, "draws": DRAWS}
    publish("numerics", markdown(rows, options), {**numbers, "rows": [asdict(row) for row in rows]}, options)


if __name__ == "__main__":
    run_script(main)
