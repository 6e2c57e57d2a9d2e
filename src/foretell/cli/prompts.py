"""Read prompts from the command line, a file or standard input, before anything is decoded."""

from __future__ import annotations

import sys

from foretell.engine.prompt_files import FilePrompt, parse_prompts, read_prompts
from foretell.errors import RequestError

STDIN = "-"


def gather(prompt: str | None, file: str | None) -> list[FilePrompt]:
    """Return the prompts of a command: one argument (`-` reads all of standard input), or the lines of a file."""
    if (prompt is None) == (file is None):
        both = ", not both" if prompt else "; use - for either to read standard input"
        raise RequestError(f"give one prompt, or a file of them with --file{both}")
    if file is None:
        return [FilePrompt(1, _read_stdin().rstrip("\n") if prompt == STDIN else prompt or "")]
    if file != STDIN:
        return read_prompts(file)
    text = _read_stdin()
    return parse_prompts(text, "standard input", plain=not text.lstrip().startswith(("{", '"')))


def _read_stdin() -> str:
    try:
        return sys.stdin.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not UTF-8 text: {error.reason} at byte {error.start}") from error
