"""A learned stopping rule: commit once a small trained head is sure enough that the answer is the final one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from foretell.errors import RecipeError, within
from foretell.policies.stop.features import TEXT, features, text
from foretell.policies.stop.head import Head, read_head
from foretell.protocols import Beliefs, Verdict
from foretell.state import DecodeState


@dataclass(frozen=True)
class Judge:
    """The head in the file `path` gives log-odds of at least `bar`. An empty region never settles.

    `foretell judge` trains one. `sha256` is the beginning of its file's; left out, it is what the file has now, so that
    a rule means one head for good, and another head in the same file is an error and no other rule.
    """

    path: str
    bar: float = 3.0
    sha256: str = ""

    def __post_init__(self) -> None:
        within("judge's bar", self.bar, -torch.inf)
        object.__setattr__(self, "sha256", self._read[1])

    @property
    def head(self) -> Head:
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[Head, str]:
        head, found = read_head(self.path)
        if not found.startswith(self.sha256):
            raise RecipeError(f"the judge in {self.path} is another one: its sha256 is {found}, not {self.sha256}")
        return head, found

    def reads(self, state: DecodeState) -> Tensor:
        wide = any(name in TEXT for name in self.head.names)
        return state.answer | text(state) if wide else state.answer

    def __call__(self, beliefs: Beliefs, state: DecodeState) -> Verdict:
        head = self.head
        value = head(features(beliefs, state, head.names))
        value = torch.where(state.answer.any(dim=1), value, -torch.inf)
        seen = Verdict(torch.zeros_like(state.done), value, torch.full_like(value, self.bar), "log-odds")
        return seen._replace(settled=self.reached(seen))

    def reached(self, seen: Verdict) -> Tensor:
        """Whether what a judge with the same head saw is enough for this one's bar. [B]"""
        assert seen.value is not None, "a judge shows what it sees"
        return (seen.value >= self.bar) & (self.bar < torch.inf)
