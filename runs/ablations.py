"""Ablations on word problems: static budgets, remasking strategies, block lengths and threshold schedules.

    python runs/ablations.py                 # 300 held-out problems for each of 16 decodings

Every baseline is decoded live, with traces where Prophet is asked about it; every Prophet is replayed on its
baseline's traces. Can be interrupted and started again.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from foretell.lab.evaluate import evaluate
from foretell.lab.replays import Study
from foretell.lab.report import Row, compare
from foretell.plots.ablations import Point, ablations
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Cosine, Exponential, Linear, Schedule, Staged
from shared import SEED, evaluation, options_of, percent, publish, spread, studied, table

TASK = "word"
WINDOWS = {64: "full", 96: "full max_new_tokens=96"}  # the trained window, and one it was not trained for
PARTS = (16, 8, 4, 2)
ORDERS = {"random": "random", "low-confidence": "full", "margin": "margin", "entropy": "full score=entropy"}
BLOCKS = {8: "full block_length=8", 16: "full block_length=16", 32: "full", 64: "full block_length=64"}
SCHEDULES: dict[str, Schedule] = {
    "staged": Staged(), "linear": Linear(), "cosine": Cosine(), "exponential": Exponential()
}  # fmt: skip
RULES = {"Prophet, mean": Prophet(), "Prophet, min": Prophet(reduce="min")}
PAPER = {  # LLaDA-8B on GSM8K: baseline, Prophet
    "window 256: 16, 32, 64, 128 steps, full": ("7.7, 22.5, 58.8, 76.2, 77.1", "77.9 at about 160 steps"),
    "window 128: 16, 32, 64, 128 steps": ("21.8, 50.3, 67.9, 71.3", "72.7 at about 74 steps"),
    "random remasking": ("63.8", "66.6"), "low-confidence remasking": ("71.3", "72.7"),
    "top-k margin remasking": ("72.4", "73.1"), "block 8": ("67.1", "72.8"), "block 16": ("68.7", "73.3"),
    "block 32": ("71.3", "72.7"), "block 64": ("59.9", "69.8"), "block 128": ("33.1", "52.2"),
    "staged schedule": ("", "77.9 at 160 steps"), "linear schedule": ("", "77.4 at 154 steps"),
}  # fmt: skip
Groups = dict[str, list[Row]]


def truncated(window: int, recipe: str, options: argparse.Namespace) -> list[Row]:
    """Static budgets, decoded live without traces."""
    rows: list[Row] = []
    for part in PARTS:
        asked = f"{recipe} steps={window // part}"
        print(f"{TASK}, {asked}: decoding what is missing of {options.limit} problems", flush=True)
        rows += compare(evaluate(evaluation(TASK, (asked,), options)), (asked,))
    return rows


def stopped(recipe: str, options: argparse.Namespace) -> list[Row]:
    """A baseline, decoded, and what Prophet makes of it, replayed."""
    return replayed(studied(TASK, options, recipe), RULES)


def replayed(one: Study, rules: dict[str, Prophet]) -> list[Row]:
    records = [case.record for case in one.cases]
    base = records[0].recipe
    for name, rule in rules.items():
        records += one.under(name, rule)
    return list(compare(records, (base, *rules)))


def schedules(options: argparse.Namespace) -> Groups:
    one = studied(TASK, options)
    made: Groups = {}
    for reduction in ("mean", "min"):
        rules = {f"{name}, {reduction}": Prophet(tau, reduce=reduction) for name, tau in SCHEDULES.items()}
        made[reduction] = replayed(one, rules)[1:]
    return made


def point(name: str, row: Row) -> Point:
    return Point(name, row.steps, row.accuracy, row.accuracy_low, row.accuracy_high)


def points(groups: Groups, names: tuple[str, ...]) -> dict[str, list[Point]]:
    return {key: [point(*one) for one in zip(names, rows, strict=True)] for key, rows in groups.items()}


def cells(group: str, name: str, row: Row) -> list[str]:
    change = f"{100 * row.difference:+.1f} ({spread(row.difference_low, row.difference_high)})"
    live = name == "baseline" or name.startswith("static")
    compared = ["", ""] if live else [change, percent(row.agreement)]
    interval = spread(row.accuracy_low, row.accuracy_high)
    return [group, name, "live" if live else "replayed", percent(row.accuracy), interval, f"{row.steps:.1f}", *compared]


HEADINGS = ("what varies", "decoder", "how", "accuracy, %", "95%", "steps", "delta", "agrees, %")
NAMES = ("baseline", *RULES)


def lines_of(groups: Groups, names: tuple[str, ...]) -> list[str]:
    rows = [cells(key, *one) for key, rows in groups.items() for one in zip(names, rows, strict=True)]
    return table(HEADINGS, rows, words=3)


def markdown(static: Groups, full: Groups, orders: Groups, blocks: Groups, taus: Groups, limit: int) -> list[str]:
    budgets = [cells(key, f"static {row.budget:.0f}", row) for key, rows in static.items() for row in rows]
    whole = [cells(key, *one) for key, rows in full.items() for one in zip(NAMES, rows, strict=True)]
    paper = [[name, *values] for name, values in PAPER.items()]
    return [
        "# Ablations, bundled model",
        "",
        f"{limit} held-out word problems (seed {SEED}) for each row, the same ones everywhere. Live rows were decoded;",
        "replayed rows are Prophet (thresholds 7.5, 5.0, 2.5) asked about the traces of the baseline of their group.",
        "Accuracy with Wilson's 95% interval; delta to that baseline in points, paired, with a bootstrap interval (0",
        "to 0 where no pair differs). `python runs/ablations.py`",
        "", "## Static budgets", *table(HEADINGS, budgets + whole, words=3),
        "## Remasking strategies", *lines_of(orders, NAMES),
        "## Block lengths", *lines_of(blocks, NAMES),
        "## Schedules", "All replayed on the same traces (window 64, low-confidence remasking, block 32).",
        *lines_of(taus, tuple(SCHEDULES)),
        "## The paper's LLaDA-8B on GSM8K, for orientation",
        *table(("what", "baseline, %", "Prophet, %"), paper, words=1),
        *verdict(static, full, orders, blocks),
    ]  # fmt: skip


def verdict(static: Groups, full: Groups, orders: Groups, blocks: Groups) -> list[str]:
    lines = ["## Beside the paper", "Agrees or differs where 95% intervals tell; otherwise not decided at this n.", ""]
    for key, rows in static.items():
        whole, shortest = full[key][0], rows[0]
        state = _state(shortest.accuracy_high < whole.accuracy_low, shortest.accuracy_low > whole.accuracy_high)
        lines.append(
            f"- {key}: the paper's accuracy falls with a static budget; here full {percent(whole.accuracy)}, "
            f"{shortest.budget:.0f} steps {percent(shortest.accuracy)}: {state}."
        )
    for kind, groups in (("remasking", orders), ("block", blocks)):
        lines += [_against(f"{kind} {key}", rows[0], row) for key, rows in groups.items() for row in rows[1:]]
    ranked = sorted(blocks, key=lambda key: -blocks[key][0].accuracy)
    best = [f"{key} ({percent(blocks[key][0].accuracy)})" for key in ranked]
    lines.append(
        f"- The baseline's block lengths from best to worst: {', '.join(best)}; the paper's: 32, 16, 8, 64, 128."
    )
    return lines


def _against(group: str, base: Row, row: Row) -> str:
    """In the paper Prophet is above its baseline in every one of these that it has."""
    known = group != "remasking entropy"
    paper = "the paper's Prophet gains on its baseline" if known else "not in the paper"
    state = _state(row.difference_low > 0, row.difference_high < 0)
    if not known:
        state = {"agrees": "a gain", "differs": "a loss"}.get(state, state)
    return (
        f"- {group}, {row.recipe}: {paper}; here {percent(base.accuracy)} -> "
        f"{percent(row.accuracy)} in {row.steps:.1f} of {base.steps:.1f} steps: {state}."
    )


def _state(yes: bool, no: bool) -> str:
    return "agrees" if yes else "differs" if no else "not decided at this n"


def main() -> None:
    options = options_of(__doc__, limit=300)
    static = {f"window {window}": truncated(window, recipe, options) for window, recipe in WINDOWS.items()}
    full = {f"window {window}": stopped(recipe, options) for window, recipe in WINDOWS.items()}
    orders = {name: stopped(recipe, options) for name, recipe in ORDERS.items()}
    blocks = {str(length): stopped(recipe, options) for length, recipe in BLOCKS.items()}
    taus = schedules(options)
    lines = {
        key: [*(point("static", row) for row in rows), point("full", full[key][0])] for key, rows in static.items()
    }
    ends = {key: [point(*one) for one in zip(RULES, rows[1:], strict=True)] for key, rows in full.items()}
    drawn = points(orders, NAMES), points(blocks, NAMES), points(taus, tuple(SCHEDULES))
    groups = {"static": static, "full": full, "remasking": orders, "blocks": blocks, "schedules": taus}
    numbers: dict[str, Any] = {"seed": SEED, "limit": options.limit, "paper": PAPER}
    numbers |= {
        name: {key: [_numbers(row) for row in rows] for key, rows in one.items()} for name, one in groups.items()
    }
    text = markdown(static, full, orders, blocks, taus, options.limit)
    publish("ablations", text, numbers, options, ablations(lines, ends, *drawn))


def _numbers(row: Row) -> dict[str, Any]:
    """Without the clock, which a replay does not have."""
    return {name: value for name, value in asdict(row).items() if name not in ("seconds", "wall_speedup")}


if __name__ == "__main__":
    main()
