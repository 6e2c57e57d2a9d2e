"""The answer is what a regular expression finds in the draft."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.errors import RecipeError, whole
from foretell.loop.view import StateView
from foretell.policies.region.sought import locate_answer


@dataclass(frozen=True, slots=True)
class Pattern:
    r"""`group` of the last match of `regex` where it is not empty. Default: group 1, or the match if it has no groups.

    The text of every row is searched at every step. It is no longer than its window, but Python's `re` has no time
    limit: do not take expressions from untrusted sources, because some, such as (a+)+$, can run almost forever.
    """

    sought: ClassVar[bool] = True

    regex: str
    group: int | None = None

    def __post_init__(self) -> None:
        try:
            groups = re.compile(self.regex).groups
        except (re.error, TypeError, OverflowError, RecursionError) as error:
            raise RecipeError(f"the region's pattern {self.regex!r} is not a regular expression: {error}") from error
        if "\b" in self.regex:
            raise RecipeError(
                f"the region's pattern {self.regex!r} holds a backspace; if \\b was meant, write it as r'...'"
            )
        if self.group is not None:
            whole(f"the group of the region's pattern {self.regex!r}", self.group, 0, groups)

    def __call__(self, state: StateView) -> Tensor:
        return locate_answer(state, self.find)

    def find(self, text: str) -> tuple[int, int] | None:
        """Return where the answer starts and ends in `text`, or None."""
        regex = re.compile(self.regex)  # cached by `re`
        group = min(regex.groups, 1) if self.group is None else self.group
        spans = [match.span(group) for match in regex.finditer(text) if match[group]]
        return spans[-1] if spans else None
