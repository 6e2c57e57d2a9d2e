"""A learned stopping rule: commit once a small trained head is sure enough that the answer is the final one."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from foretell.errors import RecipeError, StorageError, show, within
from foretell.loop.protocols import Beliefs, UntrustedText, Verdict
from foretell.loop.view import StateView
from foretell.policies.stop.features import TEXT, features, text_masks
from foretell.policies.stop.head import DIGITS, Head, read_head

LARGEST = 1e6  # log-odds of a bar
_READ: dict[tuple[str, str], Head] = {}  # the heads in files that the user named, by path and digits


@dataclass(frozen=True)
class Judge:
    """Settle once the head in the file `path` gives log-odds of at least `bar`. An empty region never settles.

    `foretell judge` trains a head. `sha256` is the beginning of the file's digest, by default that of the current file.
    It ties the rule to one head: a file that has changed is an error. If all digits are given, the file is read only
    when the rule is first used, so that a trace can be opened without the judge that stopped it.

    A path in a request or a stored trace (an `UntrustedText`) is never opened. It needs all digits, and works if the
    user has named the same file with the same digits before.
    """

    path: str
    bar: float = 3.0
    sha256: str = ""

    def __post_init__(self) -> None:
        if self.bar != torch.inf:  # never
            within("judge's bar", self.bar, -LARGEST, LARGEST)
        if not isinstance(self.path, str):
            raise RecipeError(f"judge's path must be a text, got {show(self.path)}")
        if not isinstance(self.sha256, str) or not re.fullmatch(f"[0-9a-f]{{0,{DIGITS}}}", self.sha256):
            raise RecipeError(f"judge's sha256 must be up to {DIGITS} digits of 0-9 and a-f, got {show(self.sha256)}")
        if len(self.sha256) < DIGITS:
            if isinstance(self.path, UntrustedText):
                raise RecipeError(
                    f"judge needs all {DIGITS} digits of its sha256 in a request or a stored file, got {self.sha256!r}"
                )
            object.__setattr__(self, "sha256", self._read[1])

    def read_file(self) -> None:
        _ = self.head  # cached from now on

    @property
    def head(self) -> Head:
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[Head, str]:
        path = str(Path(self.path).absolute())
        if isinstance(self.path, UntrustedText):
            if (path, self.sha256) not in _READ:
                raise StorageError(
                    f"the judge {self.path} (sha256 {self.sha256}) is named by a request or a stored file, which may "
                    "not open files; name it yourself, on the command line or in Python"
                )
            return _READ[path, self.sha256], self.sha256
        head, found = read_head(self.path)
        if not found.startswith(self.sha256):
            raise StorageError(f"the judge in {self.path} has changed: its sha256 is {found}, not {self.sha256}")
        _READ[path, found] = head
        return head, found

    def reads(self, state: StateView) -> Tensor:
        if not any(name in TEXT for name in self.head.names):
            return state.answer
        return state.answer | (text_masks(state) & state.answer.any(dim=1, keepdim=True))

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        score = self.score(beliefs, state)
        return Verdict(self.settles(score, state), score, torch.full_like(score, self.bar), "log-odds")

    @property
    def scored_by(self) -> Hashable:
        return Judge, self.sha256

    def score(self, beliefs: Beliefs, state: StateView) -> Tensor:
        """Return the head's log-odds, which do not depend on the bar. [B]"""
        score = self.head(features(beliefs, state, self.head.names))
        return torch.where(state.answer.any(dim=1), score, -torch.inf)

    def settles(self, score: Tensor, state: StateView) -> Tensor:  # noqa: ARG002
        """Return whether log-odds reach the bar; an infinite bar is never reached. [B]"""
        return (score >= self.bar) & (self.bar < torch.inf)
