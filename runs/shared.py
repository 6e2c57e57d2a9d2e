"""What the scripts of the study share: the problems, where decodings are kept, and how tables are written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from PIL import Image

from foretell.lab.evaluate import Evaluation
from foretell.lab.replays import Study, study

ROOT = Path(__file__).parents[1]
SEED = 2026  # of the problems; nothing was chosen by looking at them
TASKS = ("word", "choice", "sudoku", "countdown")
FREE = ("word-free", "choice-free")  # the same problems without a pinned suffix


def options_of(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """The command line that every script of the study has; `defaults` may add options of its own."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--limit", type=int, default=defaults.get("limit", 1000), help="problems a task")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=ROOT / "work" / "study", help="where decodings are kept")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    for name in defaults.keys() - {"limit"}:
        parser.add_argument(f"--{name}", default=defaults[name], help=f"default: {defaults[name]}")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "foretell"  # the same picture is the same file
    return options


def evaluation(task: str, recipes: Sequence[str], options: argparse.Namespace) -> Evaluation:
    """An evaluation in a folder of its own: the same one for every script that asks for the same."""
    folder = "-".join([task, str(options.limit), *recipes]).replace(" ", "_").replace("/", "_")
    return Evaluation(
        model=options.model,
        task=task,
        recipes=tuple(recipes),
        out=options.work / folder,
        limit=options.limit,
        seed=SEED,
        batch_size=options.batch_size,
        workers=options.workers,
    )


def studied(task: str, options: argparse.Namespace, recipe: str = "full") -> Study:
    """A task decoded in full, with traces; what is there already is not decoded again."""
    print(f"{task}, {recipe}: decoding what is missing of {options.limit} problems", flush=True)
    return study(evaluation(task, (recipe,), options))


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def spread(low: float, high: float) -> str:
    """An interval of shares, in percent."""
    return f"{100 * low:.1f} to {100 * high:.1f}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], words: int = 2) -> list[str]:
    """Markdown lines; the first `words` columns are text, the others numbers."""
    ruler = "|" + "---|" * words + "---:|" * (len(headings) - words)
    return ["", "| " + " | ".join(headings) + " |", ruler, *("| " + " | ".join(row) + " |" for row in rows), ""]


def publish(
    name: str, lines: Sequence[str], numbers: Any, options: argparse.Namespace, figure: Figure | None = None
) -> None:
    """Print, and write docs/results/NAME.md, .json and, with a figure, .png and .svg."""
    text = "\n".join(lines)
    print("\n" + text)
    (options.out / f"{name}.md").write_text(text + "\n", encoding="utf8")
    (options.out / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf8")
    if figure is not None:
        picture = options.out / f"{name}.png"
        figure.savefig(picture, dpi=100)
        Image.open(picture).convert("RGB").quantize(128).save(picture, optimize=True)  # a third of the size
        figure.savefig(options.out / f"{name}.svg", metadata={"Date": None})
