"""The answer is what a regular expression finds in the draft."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.errors import RecipeError, show, whole
from foretell.loop.view import StateView
from foretell.policies.region.search import find_last
from foretell.policies.region.sought import locate_answer

LONGEST = 1000  # characters of a pattern: compiling has no time limit, and takes longer the longer it is


@dataclass(frozen=True, slots=True)
class Pattern:
    r"""`group` of the last match of `regex` where it is not empty. Default: group 1, or the match if it has no groups.

    The text of a row is searched whenever its draft has changed. A search that takes too long fails its row.
    """

    sought: ClassVar[bool] = True

    regex: str
    group: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.regex, str) and len(self.regex) > LONGEST:
            raise RecipeError(f"the region's pattern has {len(self.regex)} characters; at most {LONGEST} are allowed")
        try:
            groups = re.compile(self.regex).groups
        except (re.error, TypeError, OverflowError, RecursionError) as error:
            raise RecipeError(
                f"the region's pattern {show(self.regex)} is not a regular expression: {error}"
            ) from error
        if "\b" in self.regex:
            raise RecipeError(
                f"the region's pattern {show(self.regex)} holds a backspace; if \\b was meant, write it as r'...'"
            )
        if self.group is not None:
            whole(f"the group of the region's pattern {show(self.regex)}", self.group, 0, groups)

    def __call__(self, state: StateView) -> Tensor:
        return locate_answer(state, self.find)

    def find(self, text: str) -> tuple[int, int] | None:
        """Return where the answer starts and ends in `text`, or None."""
        return find_last(self.regex, self.group, text)
