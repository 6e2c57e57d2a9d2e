"""Several stopping rules at once: all of them must agree, or any of them is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from foretell.errors import RecipeError, show
from foretell.loop.checks import ask_reads, ask_stop
from foretell.loop.protocols import Beliefs, FromFile, Stop, Verdict
from foretell.loop.view import StateView

Join = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _Combined:
    rules: tuple[Stop, ...]

    def __post_init__(self) -> None:
        if len(self.rules) < 2:
            raise RecipeError(f"a combination needs at least two stopping rules, got {len(self.rules)}")
        for rule in self.rules:
            if isinstance(rule, type) or not callable(rule) or not hasattr(rule, "reads"):
                raise RecipeError(f"a combination needs stopping rules such as Prophet(), got {show(rule)}")

    def reads(self, state: StateView) -> Tensor:
        return reduce(torch.logical_or, (ask_reads(rule, state) for rule in self.rules))

    def _combine(self, join: Join, beliefs: Beliefs, state: StateView) -> Verdict:
        """Combine all verdicts into one, which shows the value of the first rule that has one."""
        verdicts = [ask_stop(rule, beliefs, state) for rule in self.rules]
        shown = next((one for one in verdicts if one.value is not None), verdicts[0])
        return shown._replace(settled=reduce(join, (one.settled for one in verdicts)))


@dataclass(frozen=True, slots=True)
class All(_Combined):
    """Settled when every rule says so."""

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        return self._combine(torch.logical_and, beliefs, state)


@dataclass(frozen=True, slots=True)
class Any(_Combined):
    """Settled when one rule says so."""

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        return self._combine(torch.logical_or, beliefs, state)


def each(rule: Stop) -> Iterator[Stop]:
    """Yield the rules that `rule` combines, at any depth; a rule that combines nothing yields itself."""
    if isinstance(rule, _Combined):
        for inner in rule.rules:
            yield from each(inner)
    else:
        yield rule


def changed(rule: Stop, change: Callable[[Stop], Stop]) -> Stop:
    """Return the same combination with `change` applied to `each` of its rules."""
    if isinstance(rule, _Combined):
        return replace(rule, rules=tuple(changed(inner, change) for inner in rule.rules))
    return change(rule)


def read_files(rule: Stop) -> None:
    """Load the parts of `rule` that are kept in files, so that a missing file is noticed before decoding starts."""
    for one in each(rule):
        if isinstance(one, FromFile):
            one.read_file()
