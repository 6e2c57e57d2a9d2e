"""`foretell vocab`: the words that a model knows."""

from __future__ import annotations

import re
from typing import Annotated

from typer import Argument, Option

from foretell.errors import RequestError

LARGE = 5_000  # words above which a listing is no longer something to read


def vocab(
    model: Annotated[str, Argument(help="A checkpoint folder, or a bundled model by its name.")],
    grep: Annotated[str | None, Option("--grep", "-g", help="Only words that match this regular expression.")] = None,
    every: Annotated[bool, Option("--all", help="List a large vocabulary whole, one word a line.")] = False,
) -> None:
    """List the words that a model knows."""
    from rich.columns import Columns  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from foretell.cli.console import note, out  # noqa: PLC0415
    from foretell.engine.codec import Codec  # noqa: PLC0415
    from foretell.engine.engine import folder_of  # noqa: PLC0415

    words = Codec.load(folder_of(model)).words()
    shown = _matching(words, grep)
    if every:
        print("\n".join(shown))
        return
    if len(shown) > LARGE:
        note([f"{len(shown):,} words, of which these are the first {LARGE:,}; use --grep to look for some, or --all"])
    console = out()
    marked = [Text(word.replace(" ", "␣")) for word in shown[:LARGE]]
    console.print(Columns(marked, padding=(0, 2), column_first=True))
    console.print(Text(f"{len(shown):,} of {len(words):,} words" if grep else f"{len(words):,} words", style="dim"))


def _matching(words: list[str], pattern: str | None) -> list[str]:
    if pattern is None:
        return words
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise RequestError(f"--grep {pattern!r} is not a regular expression: {error}") from error
    return [word for word in words if wanted.search(word)]
