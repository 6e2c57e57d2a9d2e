"""The answer stands behind the last "The answer is", "####" or other marker that the draft writes by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

from torch import Tensor

from foretell.errors import RecipeError, one_of, whole
from foretell.loop.view import StateView
from foretell.policies.region.sought import located

_STOPS = r"[.!?](?=\s|\Z)|[。！？]"  # not the point of 3.5
ENDS = {
    "word": re.compile(rf"\s|{_STOPS}|[,;:](?=\s|\Z)|[，；：]"),
    "sentence": re.compile(rf"\n|{_STOPS}"),
    "line": re.compile(r"\n"),
    "text": re.compile(r"\Z"),
}
_BETWEEN = re.compile(r"[\s:：]*")


@dataclass(frozen=True, slots=True)
class Delimiter:
    """From behind the last `marker` to the `end` of the word, sentence, line or text, `length` tokens at most (0: all).

    Upper and lower case are the same in a marker, and a blank in it is any white space. Blanks and a colon behind it
    are skipped. Without a marker, or with nothing behind the last one, there is no region.
    """

    sought: ClassVar[bool] = True

    marker: str = "The answer is"
    length: int = 0
    end: Literal["word", "sentence", "line", "text"] = "sentence"

    def __post_init__(self) -> None:
        if not isinstance(self.marker, str) or not self.marker.strip():
            raise RecipeError(f"the region's marker must be a text that is not blank, got {self.marker!r}")
        whole("the region's length", self.length, 0)
        one_of("the region's end", self.end, ENDS)

    def __call__(self, state: StateView) -> Tensor:
        return located(state, self.find, self.length)

    def find(self, text: str) -> tuple[int, int] | None:
        """The letters of the answer."""
        markers = [match.end() for match in _marker(self.marker).finditer(text)]
        if not markers:
            return None
        between = _BETWEEN.match(text, markers[-1])
        start = between.end() if between else markers[-1]
        end = ENDS[self.end].search(text, start)
        return start, end.start() if end else len(text)


@cache
def _marker(marker: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(map(re.escape, marker.split())), re.IGNORECASE)
