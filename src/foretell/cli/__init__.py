"""The command line: one file a command, and nothing heavy imported before a command runs."""

from __future__ import annotations


def main() -> None:
    """The `foretell` program."""
    try:
        from foretell.cli.app import app  # noqa: PLC0415  typer is only for those who type
        from foretell.cli.plain import degrade  # noqa: PLC0415

        degrade()
        app()
    except KeyboardInterrupt:  # before or after a command; `app` itself answers for the time between
        raise SystemExit(130) from None
