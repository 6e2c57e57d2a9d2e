r"""The answer is inside the draft's last \boxed{...}, as in mathematics benchmarks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.loop.view import StateView
from foretell.policies.region.sought import locate_answer

_OPENING = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace does not count


@dataclass(frozen=True, slots=True)
class Boxed:
    r"""Inside the last \boxed{...}, which may hold other braces. There is no region until it is closed."""

    sought: ClassVar[bool] = True

    def __call__(self, state: StateView) -> Tensor:
        return locate_answer(state, self.find)

    def find(self, text: str) -> tuple[int, int] | None:
        """Return where the answer starts and ends in `text`, or None."""
        openings = [match.end() for match in _OPENING.finditer(text)]
        if not openings:
            return None
        depth = 1
        for brace in _BRACE.finditer(text, openings[-1]):
            depth += (brace[0] == "{") - (brace[0] == "}")
            if depth == 0:
                return openings[-1], brace.start()
        return None
