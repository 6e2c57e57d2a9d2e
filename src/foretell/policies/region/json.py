"""The answer is the value at a path in the JSON of the draft, once that JSON parses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecoder
from typing import Any, ClassVar

from torch import Tensor

from foretell.errors import RecipeError, show
from foretell.loop.view import StateView
from foretell.policies.region.sought import locate_answer

# A bracket followed by what can begin JSON, because prose has brackets too.
_OPENING = re.compile(r"\{(?=\s*[\"}])|\[(?=\s*(?:[\[{\]\"0-9-]|true|false|null))")
_BLANKS = re.compile(r"[\s,:]*")  # also matches separators, because the text is known to parse
_DECODER = JSONDecoder()


@dataclass(frozen=True, slots=True)
class Json:
    """The value at a dotted `path` of keys and list indices ("answer", "steps.0.result"), a string without quotes.

    The JSON may be part of prose or a code fence; the answer is in the last object or list that has the path.
    There is no region while one of them does not parse.
    """

    sought: ClassVar[bool] = True

    path: str = "answer"

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not all(self.path.split(".")):
            raise RecipeError(
                f"the region's path must be keys or list indices separated by dots, got {show(self.path)}"
            )

    def __call__(self, state: StateView) -> Tensor:
        return locate_answer(state, self.find)

    def find(self, text: str) -> tuple[int, int] | None:
        """Return where the answer starts and ends in `text`, or None."""
        found, at = None, 0
        while opening := _OPENING.search(text, at):
            try:
                at = _DECODER.raw_decode(text, opening.start())[1]
            except (ValueError, RecursionError):
                return None
            found = _find_value(text, opening.start(), at, self.path.split(".")) or found
        return found


def _find_value(text: str, start: int, end: int, path: list[str]) -> tuple[int, int] | None:
    """Return where the value at `path` starts and ends inside the valid JSON from `start` to `end`."""
    for name in path:
        members = {key: span for key, *span in _members(text, start)} if text[start] in "{[" else {}
        if name not in members:
            return None
        start, end = members[name]
    return (start + 1, end - 1) if text[start] == '"' else (start, end)


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield the key or index of every member of an object or list, and where its value starts and ends."""
    place, at = 0, _skip_blanks(text, start + 1)
    while text[at] not in "}]":
        key: Any = str(place)
        if text[start] == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip_blanks(text, at)
        _, end = _DECODER.raw_decode(text, at)
        yield key, at, end
        place, at = place + 1, _skip_blanks(text, end)


def _skip_blanks(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    return blanks.end() if blanks else at
