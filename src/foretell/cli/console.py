"""Consoles: results go to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console as RichConsole
from rich.text import Text


class Console(RichConsole):
    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704  the BrokenPipeError, which rich would turn into exit code 1


def out(width: int | None = None) -> Console:
    """Return a console on stdout; without a terminal it has no colours, and 100 columns unless `width` is given."""
    plain = 100 if not sys.stdout.isatty() and width is None else width
    return Console(highlight=False, width=plain, emoji=False)


def err() -> Console:
    return Console(stderr=True, highlight=False, emoji=False)


def say(line: str, style: str) -> None:
    """Print one line on stderr, without wrapping it."""
    err().print(Text(line, style=style), soft_wrap=True)


def problem(line: str, style: str = "bold red") -> None:
    say(line, style)


def note(lines: Iterable[str]) -> None:
    """Print notes as warnings on stderr, each distinct line once."""
    for line in dict.fromkeys(lines):
        say(f"warning: {line}", style="yellow")
