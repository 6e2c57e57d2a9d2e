"""Output for terminals with a limited encoding: missing characters are replaced with ASCII ones."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper

HANDLER = "foretell.plain"
MARKS = dict(zip("░▒█▼●◉·⏎␣⟦⟧▕▏┃│└─", ":%#vo@./_[]||||+-", strict=True))
MARKS |= dict.fromkeys("╭╮╰╯", "+")  # corners of panels
MARKS |= {"≥": ">=", "∞": "inf", "…": "..."}


def replace_unencodable() -> None:
    """Make stdout and stderr replace characters that their encoding lacks, instead of failing."""
    codecs.register_error(HANDLER, _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def replace_in(text: str) -> str:
    """Return a text without characters that stdout lacks, for libraries that would write them all the same."""
    codecs.register_error(HANDLER, _replace)
    encoding = sys.stdout.encoding or "utf8"
    return text.encode(encoding, HANDLER).decode(encoding)


def stdout_is_unicode() -> bool:
    """Return whether stdout can encode every character, so that JSON needs no escapes."""
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(MARKS.get(letter, "?") for letter in lost), error.end
