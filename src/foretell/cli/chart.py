"""A small text chart: what a stopping rule measured at each step, and its threshold."""

from __future__ import annotations

from math import isfinite

from rich.text import Text

from foretell.cli.heatmap import MARGIN, bins, column_width

GAP, BAR, BOTH = "●", "─", "◉"


def chart(values: list[float], bars: list[float], measure: str, width: int, height: int = 9) -> Text:
    """Draw `values` as dots and `bars` as a line, steps across. Infinite values are drawn at the edge."""
    edges = bins(len(values), width - MARGIN)
    # A group of steps shows its last one, so that the step that settled the answer is always visible.
    shown = [(values[end - 1], bars[end - 1]) for end in edges[1:]]
    top = max([number for pair in shown for number in pair if isfinite(number)] + [1.0])
    dots = [_level(value, top, height) for value, _ in shown]
    line = [_level(bar, top, height) for _, bar in shown]
    wide = column_width(len(shown), width)
    text = Text()
    for level in range(height - 1, -1, -1):
        text.append(f"{top * level / (height - 1):>10.1f} ", style="dim").append("│", style="dim")
        for value, bar in zip(dots, line, strict=True):
            text.append_text(_cell(value == level, bar == level, wide))
        text.append("\n")
    text.append(" " * (MARGIN - 1) + "└" + "─" * (len(shown) * wide) + "\n", style="dim")
    left, right = " " * MARGIN + "1", str(len(values))
    text.append(left + right.rjust(max(1, len(shown) * wide - 1)) + "  step\n", style="dim")
    text.append(" " * MARGIN).append(GAP, style="bold cyan").append(f" {measure}  ", style="dim")
    return text.append(BAR, style="bold yellow").append(" tau(p)", style="dim")


def _cell(value: bool, bar: bool, wide: int) -> Text:
    """Draw one cell: a dot in the middle of its column, a line from side to side."""
    if value:
        left, right = (wide - 1) // 2, wide // 2
        side = BAR if bar else " "
        text = Text(side * left, style="yellow").append(
            BOTH if bar else GAP, style="bold green" if bar else "bold cyan"
        )
        return text.append(side * right, style="yellow")
    return Text((BAR if bar else " ") * wide, style="yellow")


def _level(number: float, top: float, height: int) -> int:
    if not isfinite(number):
        return height - 1 if number > 0 else 0
    return round((height - 1) * max(0.0, min(1.0, number / top)))
