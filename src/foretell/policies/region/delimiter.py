"""The answer follows the last "The answer is", "####" or other marker that the model itself wrote in the draft."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

from torch import Tensor

from foretell.errors import RecipeError, one_of, show, whole
from foretell.loop.view import StateView
from foretell.policies.region.sought import locate_answer

_STOPS = r"[.!?](?=\s|\Z)|[。！？]"  # not the point of 3.5
ENDS = {
    "word": re.compile(rf"\s|{_STOPS}|[,;:](?=\s|\Z)|[，；：]"),
    "sentence": re.compile(rf"\n|{_STOPS}"),
    "line": re.compile(r"\n"),
    "text": re.compile(r"\Z"),
}
LONGEST = 200  # characters of a marker: a search may compare all of them at every place of the text
_BETWEEN = re.compile(r"[\s:：]*")


@dataclass(frozen=True, slots=True)
class Delimiter:
    """From the last `marker` to the `end` of the word, sentence, line or text, `length` tokens at most (0: all).

    A marker matches in upper and lower case, and a space in it matches any white space. White space and colons after
    it are skipped. Without a marker, or with nothing after the last one, there is no region.
    """

    sought: ClassVar[bool] = True

    marker: str = "The answer is"
    length: int = 0
    end: Literal["word", "sentence", "line", "text"] = "sentence"

    def __post_init__(self) -> None:
        if not isinstance(self.marker, str) or not self.marker.strip():
            raise RecipeError(f"the region's marker must be a string that is not blank, got {show(self.marker)}")
        if len(self.marker) > LONGEST:
            raise RecipeError(f"the region's marker has {len(self.marker)} characters; at most {LONGEST} are allowed")
        whole("the region's length", self.length, 0)
        one_of("the region's end", self.end, ENDS)

    def __call__(self, state: StateView) -> Tensor:
        return locate_answer(state, self.find, self.length)

    def find(self, text: str) -> tuple[int, int] | None:
        """Return where the answer starts and ends in `text`, or None."""
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
