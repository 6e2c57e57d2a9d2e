"""Output that any terminal can take: where an encoding lacks a character, something plain stands in for it."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper

HANDLER = "foretell.plain"
MARKS = dict(zip("░▒█▼●◉·⏎␣⟦⟧▕▏┃│└─", ":%#vo@./_[]||||+-", strict=True))
MARKS |= {"≥": ">=", "∞": "inf", "…": "..."}


def degrade() -> None:
    """Never fail on a character that the terminal, or whatever reads from us, has no code for."""
    codecs.register_error(HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def writes_all() -> bool:
    """Whether standard output has a code for every character, so that JSON need not escape any."""
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(MARKS.get(letter, "?") for letter in lost), error.end
