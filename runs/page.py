"""Result pages: a script's numbers as JSON, its picture, and the page that a template makes from the numbers.

The script of a page has the functions `view`, which returns what its template shows besides the numbers
themselves, and, if it has a picture, `draw`, which returns None if nothing that it shows was measured. Both get the
numbers as they are stored, so runs/pages.py makes the same page without measuring anything.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure
from PIL import Image

from foretell.engine.engine import folder_of
from foretell.evaluation.report import ReportRow
from results_page import ABOUT, write_index
from shared import BUNDLED_MODEL, SEED, TASKS

WIDTH = 120  # of lines of prose
TEMPLATES = Path(__file__).parent / "templates"
Numbers = Mapping[str, Any]
AGREES, DIFFERS, OPEN = "agrees", "differs", "open"


def state_of(agrees: bool, differs: bool) -> str:
    """Return whether a comparison with the paper agrees, differs, or is not decided."""
    return AGREES if agrees else DIFFERS if differs else OPEN


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def spread(ends: Sequence[float]) -> str:
    """Format an interval of shares, in percent."""
    return f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f}"


def points(ends: Sequence[float]) -> str:
    """Format an interval of differences, in points."""
    return f"{100 * ends[0]:+.1f} to {100 * ends[1]:+.1f}"


def change(difference: float) -> str:
    """Format a difference of shares, in points."""
    return f"{100 * difference:+.1f}"


def times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def number(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}"


def read_row(stored: Numbers) -> ReportRow:
    """Return a stored row of a report; numbers that it does not have count as not recorded."""
    missing: Numbers = {"fallbacks": None, "padded": None, "seconds": 0.0, "clock_speedup": 0.0}
    return ReportRow(**{**missing, **stored})


def table(headings: str, rows: Iterable[Sequence[str]], words: int = 2) -> str:
    """Return a Markdown table; `headings` are separated by |, and the first `words` columns hold text."""
    names = [name.strip() for name in headings.split("|")]
    ruler = "|" + "---|" * words + "---:|" * (len(names) - words)
    return "\n".join(["", "| " + " | ".join(names) + " |", ruler, *("| " + " | ".join(row) + " |" for row in rows), ""])


def command(script: str, options: argparse.Namespace) -> str:
    """Return the command that makes a page."""
    model = "" if options.own else f" --model {folder_of(options.model).name}"
    tasks = "" if options.tasks == options.bundled else f" --tasks {' '.join(options.tasks)}"
    limit = "" if options.limit == options.standard else f" --limit {options.limit}"
    changed = getattr(options, "taught", None) not in (None, getattr(options, "default_taught", None))
    taught = f" --taught {options.taught}" if changed else ""
    return f"python runs/{script}.py{model}{tasks}{limit}{taught}"


def render(name: str, numbers: Numbers) -> str:
    """Return the page of a template."""
    script = script_of(name)
    view = importlib.import_module(script).view(numbers)
    count, bundled = numbers.get("limit"), numbers.get("model") == BUNDLED_MODEL
    generated = numbers.get("held_out", bundled)
    common = {
        "command": f"`{numbers.get('command', f'python runs/{script}.py')}`",
        "subject": "bundled model" if bundled else numbers.get("model"),
        "problems": f"{count} held-out problems per task" if generated else f"Up to {count} problems per task",
        "numbers": numbers,
    }
    page = _environment().get_template(f"{name}.md").render({**numbers, **common, **view})
    return fill(re.sub(r"\n{3,}", "\n\n", page.strip()))


def fill(page: str) -> str:
    """Wrap the paragraphs of a Markdown page; headings, lists, tables, quotes, code and pictures stay as they are."""
    made: list[str] = []
    paragraph: list[str] = []
    code = False
    for line in (*page.splitlines(), ""):
        code ^= line.startswith("```")
        if line.strip() and not code and not re.match(r"[#|>!-]|\d+\. |```", line):
            paragraph.append(line.strip())
            continue
        if paragraph:
            made.append(textwrap.fill(" ".join(paragraph), WIDTH, break_long_words=False, break_on_hyphens=False))
        made, paragraph = [*made, line.rstrip()], []
    return "\n".join(made).rstrip()


def script_of(name: str) -> str:
    """Return the name of the script that makes a page."""
    return ABOUT[name][0]


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False,
    )  # fmt: skip
    made.filters |= {one.__name__: one for one in (percent, spread, points, change, times, number)}
    made.globals["table"] = table
    return made


def read_numbers(name: str, folder: Path) -> Numbers:
    found: Numbers = json.loads((folder / f"{name}.json").read_text(encoding="utf8"))
    return found


def write_page(name: str, folder: Path, *, picture: bool = True) -> str:
    """Write a page and its picture from the stored numbers; return the page."""
    numbers = read_numbers(name, folder)
    draw = getattr(importlib.import_module(script_of(name)), "draw", None)
    figure = draw(numbers) if picture and draw is not None else None
    if figure is not None:
        save_figure(figure, folder / f"{name}.png")
    text = render(name, numbers) + "\n"
    (folder / f"{name}.md").write_text(text, encoding="utf8")
    return text


def save_figure(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=100)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)  # a third of the size
    mpl.pyplot.close(figure)


def publish(name: str, numbers: Numbers, options: argparse.Namespace, figure: Figure | None = None) -> None:
    """Write NAME.json, NAME.md and NAME.png to the results folder, and print the page.

    `figure` is a picture that cannot be drawn from the numbers.
    """
    given: dict[str, Any] = {"model": options.model if options.own else folder_of(options.model).name, "seed": SEED}
    if hasattr(options, "standard"):
        given |= {"command": command(script_of(name), options), "held_out": set(options.tasks) <= set(TASKS)}
    text = json.dumps({**given, **numbers}, indent=1) + "\n"
    (options.out / f"{name}.json").write_text(text, encoding="utf8")
    if figure is not None:
        save_figure(figure, options.out / f"{name}.png")
    print("\n" + write_page(name, options.out))
    write_index(options.out)
