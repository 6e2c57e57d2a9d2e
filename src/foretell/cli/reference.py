"""The reference of the command line as Markdown, from the code: `python -m foretell.cli.reference`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foretell.cli.app import app
from foretell.cli.commands import COMMANDS
from foretell.cli.usage import Row, paragraphs, sections, usage, walk

PROGRAM = "foretell"


def describe_commands() -> str:
    """Return one section per command, in groups, with all arguments and options."""
    from typer.main import get_command  # noqa: PLC0415

    program = get_command(app)
    root = program.context_class(program, info_name=PROGRAM, **program.context_settings)
    lines: list[str] = []
    for title, rows in _groups(program, root).items():
        lines += [f"**{title}:** " + ", ".join(f"[`{row.name}`](#foretell-{row.name})" for row in rows), ""]
    group = ""
    for command, ctx in list(walk(program, root))[1:]:
        mine = COMMANDS[ctx.command_path.split()[1]].group
        if mine != group:
            lines += [f"## {mine}", ""]
            group = mine
        lines += [f"### {ctx.command_path}", "", "```text", usage(command, ctx).removeprefix("Usage: "), "```", ""]
        lines += [*_describe(command), *_tables(command, ctx)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _groups(program: Any, root: Any) -> dict[str, list[Row]]:
    return {
        title: rows for title, rows in sections(program, root).items() if title in {e.group for e in COMMANDS.values()}
    }


def _describe(command: Any) -> Iterator[str]:
    for text, verbatim in paragraphs(command):
        yield from (("```bash" if text.startswith(PROGRAM) else "```toml", text, "```") if verbatim else (text,))
        yield ""


def _tables(command: Any, ctx: Any) -> Iterator[str]:
    """Yield one table per panel of the help."""
    for title, rows in sections(command, ctx).items():
        yield f"| {title} | |"
        yield "|---|---|"
        yield from (f"| `{_cell(row.name)}` | {_cell(row.help)} |" for row in rows)
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(f"# Commands\n\n{describe_commands()}", end="")
