"""The command line: one file per command; heavy modules are imported only when a command runs."""

from __future__ import annotations

from foretell.cli.process import exit_code, prepare_process


def main() -> None:
    """Run the `foretell` program."""
    try:
        prepare_process()
        from foretell.cli.app import app  # noqa: PLC0415  only the command line needs typer
        from foretell.cli.plain import replace_unencodable  # noqa: PLC0415

        replace_unencodable()
        app()
    except KeyboardInterrupt as stop:  # outside a command; `app` handles interrupts of commands
        raise SystemExit(exit_code(stop)) from None
