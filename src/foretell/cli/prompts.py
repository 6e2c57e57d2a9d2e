"""Prompts from the command line, a file or standard input, each checked before anything is decoded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from foretell.engine.prompts import Asked, read_prompts, spoken
from foretell.errors import ForetellError, RequestError

if TYPE_CHECKING:
    from foretell.engine.engine import Engine
    from foretell.engine.options import Order

STDIN = "-"


def gather(prompt: str | None, file: str | None) -> list[Asked]:
    """The prompts of a command: one argument (`-` is standard input, all of it), or the lines of a file."""
    if (prompt is None) == (file is None):
        raise RequestError("give one prompt, or a file of them with --file" + (", not both" if prompt else ""))
    if file is None:
        return [Asked(1, sys.stdin.read().rstrip("\n") if prompt == STDIN else prompt or "")]
    if file != STDIN:
        return read_prompts(file)
    text = sys.stdin.read()
    return spoken(text, "standard input", plain=not text.lstrip().startswith(("{", '"')))


def check(asked: list[Asked], engine: Engine, order: Order) -> None:
    """Whether every prompt can be written in the model's tokens; the first that cannot is named."""
    for one in asked:
        try:
            engine.request(one.prompt, order)
        except ForetellError as error:
            raise RequestError(f"{one.where}: {error}" if one.where else str(error)) from error
