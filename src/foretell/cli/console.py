"""Where words go: results to stdout, everything about them to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text


def out(width: int | None = None) -> Console:
    """Standard output. Without a terminal it never folds or colours, unless a width is asked for."""
    plain = 100 if not sys.stdout.isatty() and width is None else width
    return Console(highlight=False, width=plain, emoji=False)


def err() -> Console:
    return Console(stderr=True, highlight=False, emoji=False)


def say(line: str, style: str) -> None:
    """One line on stderr, whatever the width of the terminal."""
    err().print(Text(line, style=style), soft_wrap=True)


def problem(line: str, style: str = "bold red") -> None:
    say(line, style)


def note(lines: Iterable[str]) -> None:
    """Remarks that are no errors; each is made once."""
    for line in dict.fromkeys(lines):
        say(f"note: {line}", style="yellow")
