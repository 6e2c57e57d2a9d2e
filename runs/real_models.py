"""Antibody models that others trained: what each recipe saves when it fills masked residues, and what it changes.

    FORETELL_DATA=DIR python runs/real_models.py         # downloads Sapiens and AntiBERTy with pip and converts them
    python runs/real_models.py --models DIR --data DIR   # takes sapiens-vh, sapiens-vl, antiberty from a folder

Each sequence is masked at random positions, the same for every recipe. Recovery is the share of masked residues that
equal the original; changed, the share that differs from full decoding (one residue per step). Safe to interrupt: run
the same command again to resume.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from antibody_models import CHAINS, find_model
from foretell.cli.console import say
from foretell.engine.engine import Engine, load
from foretell.errors import ModelError, RequestError
from foretell.evaluation.intervals import bootstrap, wilson
from foretell.plots.colours import colours_of
from foretell.recipes.presets import PRESETS
from foretell.storage import load_json, read_text, write_file
from page import Numbers, number, percent, publish, spread, times
from shared import ROOT, SEED, run_script

FILE = Path("antibodies") / "therapeutic.tsv"
LENGTHS = {"heavy": (100, 125), "light": (90, 120)}  # residues of the sequences that are used
THRESHOLDS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.35)
STEPS = (32, 16, 8, 4)
RECIPES = (
    *PRESETS,
    *(f"threshold transfer.value={value:g}" for value in THRESHOLDS[1:]),
    *(f"full steps={steps}" for steps in STEPS),
)
# Sequences by the share of masked residues, unless --limit says otherwise. AntiBERTy is 45 times larger.
LIMITS = {
    "sapiens-vh": {0.5: 200, 0.9: 100},
    "sapiens-vl": {0.5: 100, 0.9: 50},
    "antiberty": {0.5: 16},
}
BATCH = 16


@dataclass(frozen=True)
class Problem:
    """A sequence with some residues masked."""

    text: str
    residues: str  # the original ones, in order


def read_problems(chain: str, share: float, limit: int | None, data: Path) -> list[Problem]:
    """Return the masked sequences of a chain, in the order of the file."""
    low, high = LENGTHS[chain]
    lines = [line.split("\t") for line in read_text(data / FILE, "list of antibodies", RequestError).splitlines()]
    column = lines[0].index(chain)
    sequences = [line[column] for line in lines[1:] if low <= len(line[column]) <= high]
    return [mask_sequence(one, share) for one in sequences[:limit]]


def mask_sequence(sequence: str, share: float) -> Problem:
    chance = random.Random(f"{SEED} {share} {sequence}")
    masked = set(chance.sample(range(len(sequence)), round(share * len(sequence))))
    text = "".join("[MASK]" if at in masked else letter for at, letter in enumerate(sequence))
    return Problem(text, "".join(letter for at, letter in enumerate(sequence) if at in masked))


def decode(engine: Engine, problems: list[Problem], recipe: str) -> dict[str, Any] | None:
    """Fill every problem with one recipe; None if the model cannot run it (it has no cache)."""
    started = time.process_time()
    try:
        done = engine.fill([one.text for one in problems], recipe=recipe, batch_size=BATCH)
    except ModelError as error:
        if "cache" in str(error):
            return None
        raise
    return {
        "fills": ["".join(one.fills) for one in done],
        "forwards": [one.forwards for one in done],
        "seconds": time.process_time() - started,  # of one thread, which other work on the machine hardly disturbs
    }


def decode_or_load(
    name: str, folder: Path, share: float, problems: list[Problem], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the fills of every recipe, from files where an earlier run has written them."""
    kept, engine, found = options.work / "fills" / name / f"{share:g}-{len(problems)}", None, {}
    kept.mkdir(parents=True, exist_ok=True)
    for recipe in RECIPES:
        file = kept / f"{recipe.replace(' ', '_')}.json"
        if not file.exists():
            engine = engine or load(folder, "cpu", "float32")
            say(f"{name}, {share:.0%} masked, {len(problems)} sequences: {recipe}", style="dim")
            write_file(file, json.dumps(decode(engine, problems, recipe)))
        found[recipe] = load_json(file, "fills")
    return {recipe: one for recipe, one in found.items() if one is not None}


def share_of(pairs: list[tuple[str, str]], *, equal: bool) -> tuple[float, float, float]:
    """Return the share of residues that are equal (or differ), and its interval from resampling sequences."""
    counts = [sum((one == other) is equal for one, other in zip(*pair, strict=True)) for pair in pairs]
    total = sum(len(first) for first, _ in pairs)
    # Sequences have different numbers of masks: each contributes its count times the mean size.
    scaled = [count * len(pairs) / total for count in counts]
    return sum(counts) / total, *bootstrap(scaled)


def measure(found: dict[str, Any], problems: list[Problem]) -> list[dict[str, Any]]:
    full, originals = found["full"], [one.residues for one in problems]
    rows = []
    for recipe, one in found.items():
        same = sum(mine == theirs for mine, theirs in zip(one["fills"], full["fills"], strict=True))
        rows.append(
            {
                "recipe": recipe,
                "recovery": share_of(list(zip(one["fills"], originals, strict=True)), equal=True),
                "changed": share_of(list(zip(one["fills"], full["fills"], strict=True)), equal=False),
                "same": (same / len(problems), *wilson(same, len(problems))),
                "forwards": sum(one["forwards"]) / len(problems),
                "speedup": sum(full["forwards"]) / sum(one["forwards"]),
                "cpu": full["seconds"] / max(one["seconds"], 1e-6),  # the counter has steps
            }
        )
    return rows


def view(numbers: Numbers) -> dict[str, Any]:
    """Return one section per model and share of masks."""
    return {"sections": [_section(title, one["n"], one["rows"]) for title, one in numbers["models"].items()]}


def _section(title: str, count: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a table, what some presets do, and what the presets and the transfer's threshold achieve at most."""
    by_name = {row["recipe"]: row for row in rows}
    presets = [row for row in rows if row["recipe"] in PRESETS and row["recipe"] != "full"]
    close = [row for row in presets if row["changed"][0] <= 0.01]
    found = [row for row in rows if row["recipe"].startswith("threshold") and row["changed"][0] <= 0.01]
    return {
        "title": title,
        "n": count,
        "rows": [_cells(row) for row in rows],
        "named": [by_name[name] for name in ("threshold", "swift", "prophet", "factor") if name in by_name],
        "presets": len(presets),
        "idle": sum(row["speedup"] < 1.05 for row in presets),
        "best": max(close, key=lambda row: row["speedup"], default=None),
        "fastest": max(found, key=lambda row: row["speedup"], default=None),
    }


def _cells(row: Mapping[str, Any]) -> list[str]:
    share, *ends = row["changed"]
    return [
        f"`{row['recipe']}`",
        percent(row["recovery"][0]),
        spread(row["recovery"][1:]),
        number(100 * share, 2),
        " to ".join(number(100 * end, 2) for end in ends),
        percent(row["same"][0]),
        number(row["forwards"]),
        times(row["speedup"]),
        times(row["cpu"]),
    ]


def draw(numbers: Numbers) -> Figure:
    """Draw one panel per model and share: speedup over the share of changed residues."""
    found = numbers["models"]
    columns = min(3, len(found))
    lines = -(-len(found) // columns)
    figure: Figure
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.2 * columns, 3.4 * lines), squeeze=False, layout="constrained"
    )
    kinds = colours_of(("presets", "transfer threshold", "fixed steps"))
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    for axis, (title, one) in zip(axes.flat, found.items(), strict=False):
        for kind, color in kinds.items():
            rows = [row for row in one["rows"] if kind_of(row["recipe"]) == kind]
            rows.sort(key=lambda row: row["changed"][0])
            shares, speedups = [100 * row["changed"][0] for row in rows], [row["speedup"] for row in rows]
            style = "o" if kind == "presets" else "o-"
            axis.plot(shares, speedups, style, color=color, label=kind, markersize=5, alpha=0.8)
        axis.axvline(1, color="0.6", linewidth=1, linestyle=":")
        axis.set_xscale("symlog", linthresh=0.5)
        axis.set_xlim(left=-0.1)
        axis.set_xticks([0, 0.5, 1, 3, 10, 30], ["0", "0.5", "1", "3", "10", "30"])
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("residues changed, %")
        axis.set_ylabel("fewer forwards (x)")
        axis.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=8)
    return figure


def kind_of(recipe: str) -> str:
    if recipe == "threshold" or recipe.startswith("threshold transfer"):
        return "transfer threshold"
    return "fixed steps" if recipe.startswith("full steps") else "presets"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="folder of the models (default: download them)")
    parser.add_argument("--data", type=Path, help="folder with antibodies/therapeutic.tsv (default: FORETELL_DATA)")
    parser.add_argument("--only", nargs="+", choices=list(CHAINS), default=list(CHAINS), help="models to measure")
    parser.add_argument("--limit", type=int, help="sequences per model and share (default: LIMITS)")
    parser.add_argument("--work", type=Path, default=ROOT / "work" / "real_models", help="folder for models and fills")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder for results")
    options = parser.parse_args()
    data = options.data or os.environ.get("FORETELL_DATA")
    if data is None:
        raise RequestError("give the folder with antibodies/therapeutic.tsv as --data, or set FORETELL_DATA")
    options.command = "python runs/real_models.py" + (f" --limit {options.limit}" if options.limit else "")
    options.own, options.model = True, ", ".join(options.only)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    found = {}
    for name in options.only:
        folder = find_model(name, options.models, options.work)
        for share, count in LIMITS[name].items():
            problems = read_problems(CHAINS[name], share, options.limit or count, Path(data))
            fills = decode_or_load(name, folder, share, problems, options)
            title = f"{name}, {CHAINS[name]} chains, {share:.0%} masked"
            found[title] = {"n": len(problems), "rows": measure(fills, problems)}
    publish("real_models", {"command": options.command, "models": found}, options)


if __name__ == "__main__":
    run_script(main)
