"""A small model decodes on one thread, and whoever calls it keeps their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

import foretell
from foretell.loop.protocols import Beliefs, Verdict
from foretell.loop.view import StateView


@dataclass(frozen=True, eq=False)
class Counting:
    """Notes how many threads there are when it is asked."""

    seen: list[int] = field(default_factory=list)

    def reads(self, state: StateView) -> Tensor:
        return state.answer

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        self.seen.append(torch.get_num_threads())
        return Verdict(torch.zeros_like(state.done))


@pytest.fixture
def _three() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_three")
def test_threads_are_the_models_while_it_decodes(checkpoint: Path) -> None:
    engine, rule = foretell.load(checkpoint), Counting()
    recipe = foretell.Recipe(stop=rule)
    mine = [torch.get_num_threads() for _ in engine.stream("Tom has 3 boxes .", recipe=recipe, max_new_tokens=4)]
    assert (mine, rule.seen) == ([3] * 4, [1] * 4)
    engine.generate(["Tom has 3 boxes ."] * 2, recipe=recipe, max_new_tokens=4)
    assert rule.seen == [1] * 8
    assert torch.get_num_threads() == 3
    engine.threads = None
    engine.generate("Tom has 3 boxes .", recipe=recipe, max_new_tokens=4)
    assert rule.seen[8:] == [3] * 4
    engine.use_threads(2)
    engine.generate("Tom has 3 boxes .", recipe=recipe, max_new_tokens=4)
    assert rule.seen[12:] == [2] * 4
    assert torch.get_num_threads() == 2
