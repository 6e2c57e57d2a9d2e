"""A small model decodes on one thread, and whoever calls it keeps their own."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import foretell
from foretell.engine.outcome import Usage
from foretell.engine.threads import use_threads
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


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("Tom has 3 boxes .", {}),
    ("Tom has 4 apples each .", {"recipe": "prophet", "suffix": "The answer is", "answer_length": 2}),
    ("Tom has 3 boxes with 4 apples each .", {"recipe": "fast-dllm", "seed": 3}),
    ("Tom has 4 boxes .", {"temperature": 50.0, "seed": 7}),
    ("Tom has 5 boxes .", {"recipe": "full region=pattern('[a-z]+') stop=persistent(3)", "temperature": 9.0}),
    ("Tom has 7 boxes .", {"recipe": "full region=pattern('[0-9]+') stop=persistent(3)", "temperature": 9.0}),
]


@pytest.mark.usefixtures("_three")
def test_threads_share_an_engine(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts and counts are those of one thread, although threads switch often and what they share is always full."""
    engine = foretell.load(checkpoint)

    def decode(which: int) -> tuple[Any, ...]:
        prompt, options = REQUESTS[which]
        done = engine.generate([prompt, "Tom ."], max_new_tokens=12, batch_size=2, **options)
        return *((one.text, one.answer, one.steps, one.value) for one in done), torch.get_num_threads()

    alone = [decode(which) for which in range(len(REQUESTS))]
    once, engine.usage = engine.usage, Usage()
    add = Usage.__add__

    def add_slowly(ours: Usage, theirs: Usage) -> Usage:
        time.sleep(0.002)
        return add(ours, theirs)

    monkeypatch.setattr(Usage, "__add__", add_slowly)
    monkeypatch.setattr("foretell.loop.spelling.REMEMBERED", 1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            shared = list(pool.map(decode, [*range(len(REQUESTS))] * 4))
    finally:
        sys.setswitchinterval(interval)
    assert shared == alone * 4
    assert engine.usage == Usage(once.columns_needed * 4, once.columns_computed * 4)
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("_three")
def test_threads_that_change_the_number_take_turns() -> None:
    assert torch.get_num_threads() == 3
    inside, numbers = threading.Event(), []

    def enter() -> None:
        with use_threads(1):
            inside.set()
            numbers.append(torch.get_num_threads())
        numbers.append(torch.get_num_threads())

    other = threading.Thread(target=enter)
    with use_threads(1):
        other.start()
        assert not inside.wait(0.3)
    other.join()
    assert numbers == [1, 3]
    with use_threads(3):  # nothing changes, so nobody waits
        other = threading.Thread(target=enter)
        other.start()
        other.join(60)
    assert numbers == [1, 3, 1, 3]
