"""The help of commands: what a command and each of its parameters does, in panels of at most 100 columns.

typer's own panels have six columns, which leave 20 letters per line for sentences on a terminal with 80 columns.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc
from io import StringIO
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from foretell.cli.plain import replace_in

if TYPE_CHECKING:
    from rich.text import Text

NARROWEST, WIDEST = 40, 100
COLUMN = 29  # widest left column; help of longer names starts on the next line
KINDS = {"str": "TEXT", "int": "INT", "INTEGER": "INT", "float": "FLOAT", "path": "PATH"}  # typer's -> ours
ARGUMENTS, OPTIONS, COMMANDS = "Arguments", "Options", "Commands"
# Titles of panels, for `rich_help_panel` of options.
WINDOW, SAMPLING, OUTPUT, RISK = "Window and answer", "Sampling", "Output", "Stopping and risk"
EXAMPLES, MACHINE, REQUESTS = "Examples", "Model and machine", "Requests"
EXAMPLE = "foretell "
GLUE = "\xa0"  # a blank at which no line is broken


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a panel: an argument, an option or a command."""

    name: str  # as it is written: "-r, --recipe TEXT"
    help: str


class _WithPanels:
    """Adds the help to typer's classes."""

    def get_help(self, ctx: Any) -> str:
        return draw(self, ctx)

    def get_usage(self, ctx: Any) -> str:
        return usage(self, ctx)


class Command(_WithPanels, TyperCommand):
    """A command whose help is drawn in panels."""


class Group(_WithPanels, TyperGroup):
    """A command with subcommands; its help lists them by their panels."""


def usage(command: Any, ctx: Any) -> str:
    """Return the line that says how to call a command."""
    arguments = [one for one in command.get_params(ctx) if one.param_type_name == "argument"]
    words = [_argument(one) if one.required else f"[{_argument(one)}]" for one in arguments]
    last = ["COMMAND ..."] if hasattr(command, "list_commands") else []
    return " ".join(["Usage:", ctx.command_path, "[OPTIONS]", *words, *last])


def sections(command: Any, ctx: Any) -> dict[str, list[Row]]:
    """Return the arguments, options and commands, each under the title of its panel."""
    found: dict[str, list[Row]] = {ARGUMENTS: [], OPTIONS: []}
    for one in command.get_params(ctx):
        record = None if getattr(one, "hidden", False) else one.get_help_record(ctx)
        if record is None:
            continue
        argument = one.param_type_name == "argument"
        title = getattr(one, "rich_help_panel", None) or (ARGUMENTS if argument else OPTIONS)
        name, text = (_argument(one), one.help or "") if argument else (_option(record[0]), record[1])
        found.setdefault(title, []).append(Row(name, re.sub(r"\s+", " ", text)))
    for name in getattr(command, "list_commands", lambda _: ())(ctx):
        inner = command.get_command(ctx, name)
        found.setdefault(inner.rich_help_panel or COMMANDS, []).append(Row(name, summary(inner)))
    found |= {MACHINE: found.pop(MACHINE, [])}  # last: it is the same for most commands
    return {title: rows for title, rows in found.items() if rows}


def summary(command: Any) -> str:
    """Return what a command does, in one sentence: the first of its help."""
    first = " ".join(cleandoc(command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", first)[0]


def paragraphs(command: Any) -> Iterator[tuple[str, bool]]:
    """Yield the paragraphs of a command's help, each with whether its lines have to stay as they are."""
    for one in cleandoc(command.help or "").split("\n\n"):
        verbatim = one.startswith((EXAMPLE, "  "))
        yield one if verbatim else " ".join(one.split()), verbatim


def draw(command: Any, ctx: Any) -> str:
    """Return the help of a command for this terminal; without one, for the number of columns in COLUMNS, or 80."""
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.panel import Panel  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    page = StringIO()
    width = max(NARROWEST, min(get_terminal_size().columns, WIDEST))
    terminal = sys.stdout.isatty()
    console = Console(file=page, force_terminal=terminal, width=width, highlight=False, emoji=False)
    # A file or a pipe gets no colours, but the same panels.
    console.print(Text(usage(command, ctx), style="bold"))
    for text, verbatim in paragraphs(command):
        lines = [f"  {line}" for line in text.splitlines()] if verbatim else wrap(text, width)
        console.print(Text("\n".join(["", *lines]), style="cyan" if verbatim else ""), soft_wrap=True)
    console.print()
    every = sections(command, ctx)
    column = min(COLUMN, max(len(row.name) for rows in every.values() for row in rows) + 2)
    for title, rows in every.items():
        body = Text("\n").join(line for row in rows for line in _lines(row, column, width - 4))
        console.print(Panel(body, title=Text(title), title_align="left", box=box.ROUNDED, border_style="bright_black"))
    return replace_in(page.getvalue().rstrip("\n"))


def _lines(row: Row, column: int, width: int) -> Iterator[Text]:
    from rich.text import Text  # noqa: PLC0415

    left = Text(row.name, style="bold cyan")
    glued = re.sub(r"(?<=\[default:) (?=\S+\]$)", GLUE, row.help)
    first, *more = [line.replace(GLUE, " ") for line in wrap(glued, width - column, break_on_hyphens=False)] or [""]
    if len(left) > column - 2:
        yield left
    else:
        left.pad_right(column - len(left))
    yield Text(" " * column + first) if len(left) > column else left.append(first, style="not bold default")
    yield from (Text(" " * column + line) for line in more)


def _argument(one: Any) -> str:
    name: str = one.metavar or one.name
    return name.upper()


def _option(name: str) -> str:
    """Return an option's names and value in the notation of manuals: <list[str]> is TEXT."""
    return re.sub(r"<?(?:list\[)?(\b(?:str|int|float|path|INTEGER)\b)\]?>?", lambda found: KINDS[found[1]], name)


def walk(command: Any, ctx: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a command and all its subcommands, each with its context."""
    yield command, ctx
    for name in getattr(command, "list_commands", lambda _: ())(ctx):
        inner = command.get_command(ctx, name)
        yield from walk(inner, inner.context_class(inner, info_name=name, parent=ctx, **inner.context_settings))
