"""All modes of serving a queue give the same tokens with the expected columns; timings and peak memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import foretell
from foretell.bench.memory import PeakMemory
from foretell.bench.queues import Queue, serve_continuously, serve_one_by_one, serve_static_batches, serving_modes
from foretell.bench.timing import Instrumented, Stopwatch, time_in_turns
from foretell.engine.engine import Engine
from foretell.engine.outcome import Usage
from foretell.errors import RequestError
from tests.helpers import logits_of, network

PROMPTS = [
    "Tom has 3 pens.",
    "Ann has 3 pens. Tom has 4 pens. Ann has 9 pens.",
    "Tom has 4 pens.",
    "Ann has 9 pens.",
    "3 4",
]


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Engine:
    return foretell.load(checkpoint)


def orders(engine: Engine, recipe: str) -> Queue:
    asked = engine.template(recipe=recipe, max_new_tokens=8, suffix="The answer is", answer_length=1)
    return [(prompt, asked) for prompt in PROMPTS]


def test_all_modes_give_the_same_tokens(engine: Engine) -> None:
    asked = orders(engine, "prophet stop.tau=linear(1,0.1) block_length=4")
    served = {name: serve() for name, serve in serving_modes(engine, asked, 2).items()}
    assert list(served) == ["one by one", "synchronous", "continuous"]
    assert len({one.tokens for one in served.values()}) == 1
    assert len({one.usage.columns_needed for one in served.values()}) == 1
    steps = [one.steps for one in served["one by one"].completions]
    assert len(set(steps)) > 1
    sizes = [one.prompt_tokens + 8 for one in served["one by one"].completions]
    assert served["one by one"].usage == Usage(*[sum(s * n for s, n in zip(steps, sizes, strict=True))] * 2)
    # A batch takes the steps of its slowest row, and the columns of its longest, for every row.
    pairs = [(slice(0, 2), 2), (slice(2, 4), 2), (slice(4, 5), 1)]
    assert served["synchronous"].usage.columns_computed == sum(
        max(steps[at]) * max(sizes[at]) * rows for at, rows in pairs
    )
    assert served["continuous"].usage.columns_computed < served["synchronous"].usage.columns_computed


def test_static_batches_have_no_cache(engine: Engine) -> None:
    asked = orders(engine, "full cache=dual")
    assert list(serving_modes(engine, asked, 2)) == ["one by one", "continuous"]
    assert serve_one_by_one(engine, asked).tokens == serve_continuously(engine, asked, 3).tokens
    with pytest.raises(RequestError, match="without a cache"):
        serve_static_batches(engine, asked, 2)
    with pytest.raises(RequestError, match="of one kind"):
        serve_static_batches(engine, [*orders(engine, "full"), *orders(engine, "random")], 2)


def test_functions_take_turns() -> None:
    order: list[str] = []
    heard: list[tuple[str, int]] = []

    def way(name: str) -> Callable[[], int]:
        def run() -> int:
            order.append(name)
            return len(order)

        return run

    found = time_in_turns({name: way(name) for name in "ab"}, 2, lambda name, turn, _: heard.append((name, turn)))
    assert order == ["a", "b"] * 3
    assert heard == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert (found["a"].result, found["b"].result) == (5, 6)
    assert [len(one.seconds) for one in found.values()] == [2, 2]
    assert found["a"].median >= 0
    order.clear()
    assert time_in_turns({"a": way("a")}, 2, warm=False)["a"].result == len(order) == 2
    with pytest.raises(RequestError, match="rounds must be at least 1, got 0"):
        time_in_turns({}, 0)


def test_a_stopwatch_sees_the_model_and_its_head() -> None:
    passing, reading = Stopwatch(), Stopwatch()
    logits_of(Instrumented(network(1), passing.running, reading.running), [1, 2, 0, 0], 2)
    assert passing.seconds > 0
    assert reading.seconds > 0
    one = Instrumented(network(1), passing.running)
    assert one.mask_id == 0
    assert one.new_cache(1, 4).view(None) is not None


def test_peak_memory() -> None:
    old = torch.ones(1000)
    with PeakMemory() as peak:
        one = old + 1  # 4,000 bytes
        view = one[:10]
        assert (peak.now, peak.most) == (4000, 4000)
        two = torch.cat([one, one])
        assert peak.most == 12_000
        del two
        assert (peak.now, peak.most) == (4000, 12_000)
        with peak.paused():
            other = old * 2
        other.mul_(2)
        old.add_(1)
        assert peak.now == 4000
        del one
        assert peak.now == 4000, "a view holds it"
        del view
        assert peak.now == 0
    assert peak.most == 12_000
