"""Stopping rules that compare a score with a bar, so that rules which differ only in the bar share the score."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

from torch import Tensor

from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView


@runtime_checkable
class Scored(Protocol):
    """Makes it cheap to ask hundreds of rules about the same steps."""

    @property
    def scored_by(self) -> Hashable:
        """A key; rules with equal keys compute equal scores."""

    def score(self, beliefs: Beliefs, state: StateView) -> Tensor:
        """Return what the rule compares with its bar. [B]"""

    def settles(self, score: Tensor, state: StateView) -> Tensor:
        """Return whether scores settle the answer. bool [B]"""
