"""`foretell vocab`: list the vocabulary of a model."""

from __future__ import annotations

import re
from typing import Annotated

from typer import Option

from foretell.cli.model import Model, Revision, at_revision
from foretell.errors import RequestError

LARGE = 5_000  # most words listed without --all


def vocab(
    model: Model,
    grep: Annotated[
        str | None, Option("--grep", "-g", help="List only words that match this regular expression.")
    ] = None,
    revision: Revision = None,
    every: Annotated[bool, Option("--all", help="List every word, one per line.")] = False,
) -> None:
    """List the words that a model knows."""
    from rich.columns import Columns  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from foretell.cli.console import note, out  # noqa: PLC0415
    from foretell.engine.codec import Codec  # noqa: PLC0415
    from foretell.engine.engine import folder_of  # noqa: PLC0415

    words = Codec.load(folder_of(at_revision(model, revision))).words()
    shown = _filter(words, grep)
    if every:
        print("\n".join(shown))
        return
    if len(shown) > LARGE:
        note(
            [f"showing the first {LARGE:,} of {len(shown):,} words; use --grep to search, or --all to list every word"]
        )
    console = out()
    marked = [Text(word.replace(" ", "␣")) for word in shown[:LARGE]]
    console.print(Columns(marked, padding=(0, 2), column_first=True))
    console.print(Text(f"{len(shown):,} of {len(words):,} words" if grep else f"{len(words):,} words", style="dim"))


def _filter(words: list[str], pattern: str | None) -> list[str]:
    if pattern is None:
        return words
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise RequestError(f"--grep {pattern!r} is not a regular expression: {error}") from error
    return [word for word in words if wanted.search(word)]
