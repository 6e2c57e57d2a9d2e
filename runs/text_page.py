"""Helpers of the study's scripts to write result pages: text, numbers, tables, files."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from foretell.engine.engine import folder_of
from results_page import write_index
from shared import SEED


def prose(*sentences: str) -> str:
    """Return the sentences as one wrapped paragraph."""
    return textwrap.fill(" ".join(sentences), 120, break_long_words=False, break_on_hyphens=False)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def spread(low: float, high: float) -> str:
    """Format an interval of shares, in percent."""
    return f"{100 * low:.1f} to {100 * high:.1f}"


def points(low: float, high: float) -> str:
    """Format an interval of differences, in points."""
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], words: int = 2) -> list[str]:
    """Return a Markdown table; the first `words` columns are text, the others numbers."""
    ruler = "|" + "---|" * words + "---:|" * (len(headings) - words)
    return ["", "| " + " | ".join(headings) + " |", ruler, *("| " + " | ".join(row) + " |" for row in rows), ""]


def publish(
    name: str,
    lines: Sequence[str],
    numbers: Mapping[str, Any],
    options: argparse.Namespace,
    figure: Figure | None = None,
) -> None:
    """Print a page, and write NAME.md, NAME.json and, with a figure, NAME.png to the results folder."""
    text = "\n".join(lines)
    print("\n" + text)
    if figure is not None:
        text += f"\n\n![{name.replace('_', ' ')}]({name}.png)"
        picture = options.out / f"{name}.png"
        figure.savefig(picture, dpi=100)
        Image.open(picture).convert("RGB").quantize(128).save(picture, optimize=True)  # a third of the size
    whole = {"model": options.model if options.own else folder_of(options.model).name, "seed": SEED, **numbers}
    (options.out / f"{name}.md").write_text(text + "\n", encoding="utf8")
    (options.out / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf8")
    write_index(options.out)
