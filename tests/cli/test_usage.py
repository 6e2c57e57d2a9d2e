"""The help of every command, and the reference that is generated from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.main import get_command

from foretell.cli.app import app
from foretell.cli.commands import BUILD, COMMANDS, MEASURE, USE
from foretell.cli.reference import describe_commands
from foretell.cli.usage import Command, draw, paragraphs, sections, summary, walk
from tests.cli.conftest import Run

PROGRAM = get_command(app)
ROOT = PROGRAM.context_class(PROGRAM, info_name="foretell")
EVERY = list(walk(PROGRAM, ROOT))
NAMES = [ctx.command_path for _, ctx in EVERY]


def plain(text: str) -> str:
    """Return a page without the borders of its panels, on one line."""
    return " ".join(re.sub(r"[╭╮╰╯│─]", " ", text).split())


def one_command(run: Callable[..., None], **more: Any) -> Any:
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command(cls=Command, **more)(run)
    command = get_command(made)
    return command, command.context_class(command, info_name="mine")


@pytest.mark.parametrize(("command", "ctx"), EVERY, ids=NAMES)
@pytest.mark.parametrize("columns", [80, 100])
def test_help_fits_and_says_everything(command: Any, ctx: Any, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = draw(command, ctx)
    assert max(map(len, shown.splitlines())) <= columns
    assert "…" not in shown
    for text, verbatim in paragraphs(command):
        assert all(line in shown for line in text.splitlines()) if verbatim else text in plain(shown)
    names = tuple(row.name for rows in sections(command, ctx).values() for row in rows)
    left = [line[2:] for line in shown.splitlines() if line.startswith("│ ") and line[2] != " "]
    found = [max((one for one in names if line.startswith(one)), key=len) for line in left]
    assert sorted(found) == sorted(names), "sentences stay in their column"
    for rows in sections(command, ctx).values():
        for row in rows:
            assert f"{row.name} {row.help}".strip() in plain(shown)


@pytest.mark.parametrize(("command", "ctx"), EVERY, ids=NAMES)
def test_every_parameter_is_explained_in_sentences(command: Any, ctx: Any) -> None:
    assert summary(command).endswith(".")
    for rows in sections(command, ctx).values():
        for row in rows:
            assert re.search(r"[^\s.,;:]\.( \[default: .+\]| \[required\])?$", row.help), f"{ctx.command_path} {row}"


def test_commands_are_grouped(run: Run) -> None:
    listed = sections(PROGRAM, ROOT)
    assert set(listed) == {"Options", USE, MEASURE, BUILD}
    assert [row.name for title in (USE, MEASURE, BUILD) for row in listed[title]] == list(COMMANDS)
    assert {"generate", "serve"} < {row.name for row in listed[USE]}
    assert {"eval", "trace"} < {row.name for row in listed[MEASURE]}
    assert {"tune", "distil"} < {row.name for row in listed[BUILD]}
    assert f"─ {MEASURE} ─" in run("--help").stdout


def test_options_are_in_panels() -> None:
    titles = {ctx.command_path: list(sections(command, ctx)) for command, ctx in EVERY}
    assert titles["foretell generate"][:2] == ["Arguments", "Options"]
    assert titles["foretell generate"][-1] == titles["foretell eval"][-1] == "Model and machine"
    longest = max(len(rows) for command, ctx in EVERY for rows in sections(command, ctx).values())
    assert longest <= 15, "a panel is short enough to read"


def test_help_on_a_terminal_has_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" not in draw(PROGRAM, ROOT)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b[1;36m" in draw(PROGRAM, ROOT)


def test_help_where_only_ascii_can_be_shown() -> None:
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C", "COLUMNS": "80"}
    words = [sys.executable, "-m", "foretell", "recipes", "--help"]
    shown = subprocess.run(words, env=ascii_only, capture_output=True, text=True, check=True).stdout
    assert "+- Options -" in shown
    assert "?" not in shown


def test_long_names_defaults_and_hidden_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(
        very: bool = typer.Option(False, "--a-very-long-name/--no-very-long-name", help="One. " * 12, hidden=False),
        secret: bool = typer.Option(False, hidden=True),
        number: int = typer.Option(1234, help="A number that ends in its default at the edge of a page"),
        word: str = typer.Option("some words", rich_help_panel="Words", help="Words."),
    ) -> None:
        """Do it.

        It is done
        in paragraphs.

        foretell mine --number 3

          keep   = this
        """

    monkeypatch.setenv("COLUMNS", "60")
    lines = draw(*one_command(mine)).splitlines()
    assert "It is done in paragraphs." in lines
    assert "  foretell mine --number 3" in lines
    assert "    keep   = this" in lines
    assert not any("secret" in line for line in lines)
    assert any(line.strip("│ ") == "--a-very-long-name / --no-very-long-name" for line in lines)
    assert any(line.strip("│ ").endswith("[default: 1234]") for line in lines)
    assert any("─ Words ─" in line for line in lines)
    monkeypatch.setenv("COLUMNS", "10")
    assert max(map(len, draw(*one_command(mine)).splitlines())) <= 44


def test_the_reference_has_every_command_and_option() -> None:
    page = describe_commands()
    found = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", page, re.M | re.S))
    assert list(found) == NAMES[1:]
    for command, ctx in EVERY[1:]:
        section = found[ctx.command_path]
        for one in command.get_params(ctx):
            names = [*one.opts, *one.secondary_opts] if one.param_type_name == "option" else [one.name.upper()]
            for name in names:
                assert re.search(rf"^\| `[^`]*{re.escape(name)}\b", section, re.M), f"{ctx.command_path} {name}"
        assert summary(command) in section
    for name in COMMANDS:
        assert f"[`{name}`](#foretell-{name})" in page
