"""Measure what the bundled model's card reports: accuracy, Prophet, early convergence, the scale of the gap.

    python runs/tiny_proof.py                # 1000 held-out problems per task
    python runs/tiny_proof.py --limit 50 --out DIR     # a quick run of a minute or two

Every problem is decoded once in full, with traces shared with other scripts; every stopping rule is replayed on them.
Writes tiny.md and tiny.json and, if the output folder is docs/results, the results in the model's card. Safe to
interrupt: run the same command again to resume.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import foretell
from foretell.certify.replay import Case, Study
from foretell.engine.engine import BUNDLED
from foretell.evaluation.report import ReportRow, compare
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Staged
from page import Numbers, publish, read_numbers, render
from results_page import RESULTS
from shared import TASKS, load_study, make_parser, parse_options, run_script

FREE = ("word-free", "choice-free")  # the same problems without a pinned suffix

PAPER = Staged()
SHARES = (0.25, 0.5, 0.7)
CARD = BUNDLED / "tiny" / "README.md"


def make_rules() -> dict[str, Prophet]:
    """Return the paper's rule by mean and by minimum gap, at the paper's thresholds and at multiples of them."""
    made = {}
    for scale in (1.0, 0.75, 1.25, 1.5):
        tau = Staged(PAPER.high * scale, PAPER.mid * scale, PAPER.low * scale)
        suffix = "" if scale == 1 else f" x{scale:g}"
        made[f"prophet mean{suffix}"] = Prophet(tau)
        made[f"prophet min{suffix}"] = Prophet(tau, reduce="min")
    return made


def replay_rules(one: Study) -> tuple[ReportRow, ...]:
    """Return accuracy and cost of full decoding and of every rule."""
    made = make_rules()
    records = one.records
    for name, rule in made.items():
        records += one.replay(name, rule)
    return compare(records, ("full", *made))


def convergence(one: Study) -> dict[str, Any]:
    shares = {kind: [one.settled_by(s, for_good=kind == "to stay") for s in SHARES] for kind in ("first", "to stay")}
    return {"right": len(one.right), "of": len(one.cases), **shares}


def gaps(one: Study) -> dict[str, list[float]]:
    """Return quantiles of the gap over the answer's tokens at several steps, for right and wrong final answers."""
    found = {}
    for kind, cases in (("right", one.right), ("wrong", [case for case in one.cases if not case.record.correct])):
        for share in (0.0, 0.25, 0.5, 0.75):
            values = [value for case in cases for value in _gap_at(case, share)]
            if values:
                quantiles = torch.tensor(values).quantile(torch.tensor([0.05, 0.5, 0.95]))
                found[f"{kind}, at {share:.0%} of the steps"] = quantiles.tolist()
    return found


def _gap_at(case: Case, share: float) -> list[float]:
    step = int(share * len(case.trace))
    still_open = case.answer_positions & (case.trace.filled_at >= step)
    values: list[float] = case.trace.gap[step][still_open].tolist()
    return values


def public_sudoku(options: argparse.Namespace) -> str:
    """Solve the public test puzzles with 10 givens (rows 9 to 108) and report how many are right."""
    folder = os.environ.get("FORETELL_DATA")
    if not folder:
        return "FORETELL_DATA is not set, so the public puzzles were not tried."
    rows = [json.loads(line) for line in (Path(folder) / "sudoku4x4" / "sudoku_4x4_10.jsonl").open(encoding="utf8")][8:]
    engine = foretell.load(options.model)
    made = engine.generate([row["input"] for row in rows], layout="sudoku", batch_size=options.batch_size)
    solved = sum(one.text.strip() == row["output"] for one, row in zip(made, rows, strict=True))
    return f"Public 4x4 puzzles with 10 givens (test rows 9 to 108): {solved} of {len(rows)} solved."


def main() -> None:
    options = parse_options(make_parser(__doc__, public=TASKS))
    found: dict[str, Any] = {"limit": options.limit}
    for task in (*TASKS, *FREE):
        one = load_study(task, options)
        found[task] = {"convergence": convergence(one), "gaps": gaps(one)}
        if task in TASKS:
            found[task]["rows"] = [asdict(row) for row in replay_rules(one)]
    found["public sudoku"] = public_sudoku(options)
    publish("tiny", found, options)
    if options.own and options.out.resolve() == RESULTS.resolve():
        write_card(RESULTS)


def write_card(folder: Path) -> None:
    """Write the results into the model's card."""
    card = re.sub(
        r"(?<=runs/ -->\n).*(?=<!-- end of results -->)",
        lambda _: card_results(folder),
        CARD.read_text(encoding="utf8"),
        flags=re.DOTALL,
    )
    CARD.write_text(card, encoding="utf8")


def card_results(folder: Path) -> str:
    """Return the page without its title, one level of headings lower."""
    text = render("tiny", read_numbers("tiny", folder)).split("\n", 1)[1].strip()
    return "\n" + text.replace("## ", "### ") + "\n\n"


def view(found: Numbers) -> dict[str, Any]:
    return {
        "rows": _rows(found, scaled=False),
        "scaled_rows": _rows(found, scaled=True),
        "convergence_rows": _convergence(found),
        "gap_rows": _gaps(found),
        "public": found["public sudoku"],
    }


def _rows(found: Numbers, *, scaled: bool) -> list[list[str]]:
    rows = [(task, row) for task in TASKS for row in found[task]["rows"]]
    return [_cells(task, row) for task, row in rows if (" x" in row["recipe"]) is scaled]


def _cells(task: str, row: dict[str, Any]) -> list[str]:
    interval = f"{100 * row['accuracy_low']:.1f}-{100 * row['accuracy_high']:.1f}"
    agrees = "" if row["recipe"] == "full" else f"{row['agreement']:.1%}"
    speedup = f"{row['step_speedup']:.2f}x"
    return [task, row["recipe"], f"{row['accuracy']:.1%}", interval, f"{row['steps']:.1f}", speedup, agrees]


def _convergence(found: Numbers) -> list[list[str]]:
    rows = []
    for task in (*TASKS, *FREE):
        one = found[task]["convergence"]
        label = task.replace("-free", ", no suffix pinned")
        shares = [f"{share:.1%}" for kind in ("first", "to stay") for share in one[kind]]
        rows.append([label, f"{one['right']} of {one['of']}", *shares])
    return rows


def _gaps(found: Numbers) -> list[list[str]]:
    return [
        [task, when, *(f"{value:.1f}" for value in quantiles)]
        for task in TASKS
        for when, quantiles in found[task]["gaps"].items()
    ]


if __name__ == "__main__":
    run_script(main)
