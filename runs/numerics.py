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
from page import Numbers, percent, publish
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


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the table's rows, and how often delta is kept with and without calibrating again."""
    rows = [
        FormatResult(**one | {name: CoverageResult(**one[name]) for name in ("without", "again")})
        for one in numbers["rows"]
    ]
    other = [row for row in rows if row.format != "float32"]
    delta = 1 - CONFIDENCE
    return {
        "rows": [_cells(row) for row in rows],
        "confidence": CONFIDENCE,
        "cases": len(other),
        "again": sum(row.again.violations <= delta for row in other),
        "without": sum(row.without.violations <= delta for row in other),
        "most": max(row.again.violations for row in other),
        "worst": max(other, key=lambda row: row.without.violations),
    }


def _cells(row: FormatResult) -> list[str]:
    both = (f"{one.speedup:.2f}x, {percent(one.risk)}%, {percent(one.violations)}%" for one in (row.without, row.again))
    return [row.task, row.family, row.format, percent(row.agrees), *both]


def main() -> None:
    options = parse_options(make_rules_parser(__doc__, LIMIT, TAUGHT, TASKS))
    rows = [row for task in options.tasks for row in measure(task, options)]
    numbers: dict[str, Any] = {"limit": options.limit, "taught": options.taught, "risk": RISK}
    numbers |= {"splits": SPLITS, "draws": DRAWS}
    publish("numerics", {**numbers, "rows": [asdict(row) for row in rows]}, options)


if __name__ == "__main__":
    run_script(main)
