"""A trace as a text heatmap: positions across, steps down, one glyph and colour per kind of event."""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from rich.text import Text
from torch import Tensor

if TYPE_CHECKING:
    from foretell.engine.trace import Trace


class Cell(IntEnum):
    """What happened at a position in a step. If several share one glyph on the screen, the highest is shown."""

    PINNED = 0
    STABLE = 1  # masked, same draft as before
    DECODED = 2  # filled earlier
    CHANGED = 3  # masked, different draft than before
    NOW = 4  # filled in this step


GLYPHS = {Cell.PINNED: "=", Cell.STABLE: "·", Cell.DECODED: "░", Cell.CHANGED: "▒", Cell.NOW: "█"}
COLOURS = {
    Cell.PINNED: "bright_black",
    Cell.STABLE: "bright_black",
    Cell.DECODED: "blue",
    Cell.CHANGED: "dark_orange",
    Cell.NOW: "bold bright_blue",
}
WORDS = {
    Cell.STABLE: "stable",
    Cell.CHANGED: "changed",
    Cell.NOW: "decoded",
    Cell.DECODED: "decoded before",
    Cell.PINNED: "pinned",
}
MARGIN = 12  # columns for the step and its p
ANSWER = "green"


def cells(trace: Trace) -> Tensor:
    """Return what happened at each step and position, as `Cell` codes. [T, N]"""
    times = torch.arange(len(trace))[:, None]
    changed = torch.zeros_like(trace.tokens, dtype=torch.bool)
    changed[1:] = trace.tokens[1:] != trace.tokens[:-1]
    codes = torch.where(changed, int(Cell.CHANGED), int(Cell.STABLE))
    codes = torch.where(trace.filled_at < times, int(Cell.DECODED), codes)
    codes = torch.where(trace.filled_at == times, int(Cell.NOW), codes)
    return torch.where(trace.filled_at < 0, int(Cell.PINNED), codes)


def bins(count: int, most: int) -> list[int]:
    """Split into at most `most` groups of similar size; return their starts, then the end."""
    groups = min(count, max(1, most))
    return [round(group * count / groups) for group in range(groups + 1)]


def column_width(columns: int, width: int) -> int:
    """Return how many characters draw one column, so that a short window is not drawn too narrow."""
    return max(1, min(3, (width - MARGIN) // columns))


def heatmap(trace: Trace, width: int, height: int) -> Text:
    codes, budget = cells(trace), trace.request.budget
    across, down = bins(codes.shape[1], width - MARGIN), bins(codes.shape[0], height)
    region = trace.place()
    # If the region is the whole window, it does not say where the answer is.
    answer = [bool(region[a:b].any()) and not bool(region.all()) for a, b in pairwise(across)]
    wide = column_width(len(answer), width)
    text = _header(answer, wide)
    for top, bottom in pairwise(down):
        label = f"{bottom:>4}  {(bottom - 1) / budget:.2f}  "
        text.append(label, style="dim")
        rows = codes[top:bottom].amax(dim=0)
        for column, (left, right) in enumerate(pairwise(across)):
            cell = Cell(int(rows[left:right].max()))
            text.append(GLYPHS[cell] * wide, style=_style(cell, answer[column]))
        text.append("\n")
    return text.append_text(_legend(any(answer)))


def _header(answer: list[bool], wide: int) -> Text:
    """Draw the headings of the margin, and a mark above the answer."""
    text = Text("step     p  ", style="dim")
    for inside in answer:
        text.append(("▼" if inside else " ") * wide, style=f"bold {ANSWER}")
    return text.append("\n")


def _style(cell: Cell, answer: bool) -> str:
    return ANSWER if answer and cell in (Cell.STABLE, Cell.DECODED) else COLOURS[cell]


def _legend(answer: bool) -> Text:
    text = Text(" " * MARGIN)
    for cell, word in WORDS.items():
        text.append(GLYPHS[cell], style=COLOURS[cell]).append(f" {word}  ", style="dim")
    return text.append("▼", style=f"bold {ANSWER}").append(" answer", style="dim") if answer else text
