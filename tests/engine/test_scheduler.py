"""Continuous batching: the same tokens as alone, whoever comes and goes; order, turns, padding, and what is let go."""

from __future__ import annotations

import random
import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from foretell.engine.outcome import Outcome, Usage
from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.scheduler import Scheduler
from foretell.errors import ModelError, RequestError
from foretell.loop.decode import decode
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Denoiser, Inputs, Readout
from foretell.models.toy import Toy
from foretell.policies.cache.delayed import Delayed
from foretell.policies.cache.drift import Drift
from foretell.policies.cache.dual import Dual
from foretell.policies.cache.off import Off
from foretell.policies.cache.prefix import Prefix
from foretell.policies.score.random import Random
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.policies.verify.recheck import Recheck
from foretell.policies.visible.decayed import Decayed
from foretell.policies.visible.everything import Everything
from foretell.policies.visible.near import Near
from foretell.recipes.recipe import Recipe
from tests.helpers import PLAIN_AND_PACKED, network, run

END = 2


@dataclass
class Spy:
    """A denoiser that remembers the size of every pass, and whose logits are still alive."""

    inner: Denoiser
    shapes: list[tuple[int, int]] = field(default_factory=list)
    most: int = 0  # logits of earlier passes that were alive at the start of one
    refs: list[weakref.ref[Tensor]] = field(default_factory=list)

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        self.shapes.append((inputs.canvas.shape[0], inputs.canvas.shape[1]))
        self.most = max(self.most, sum(ref() is not None for ref in self.refs))
        readout = self.inner(inputs)

        def read(row: Tensor, at: Tensor) -> Tensor:
            logits = readout(row, at)
            self.refs.append(weakref.ref(logits))
            return logits

        return read

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)


def prompt(size: int) -> tuple[int, ...]:
    return tuple(3 + i % 17 for i in range(size))


def hundred(cache: Any, chance: random.Random) -> list[Request]:
    """Requests of three recipes, with all windows, and of any prompt length, budget, region and seed."""
    kinds = (
        (7, Recipe(block_length=3, cache=replace(cache, visible=Everything()), stop=Prophet(Linear(5, 1)))),
        (6, Recipe(block_length=4, cache=replace(cache, visible=Near(1)), score=Random(), stop_at_eos=True)),
        (
            7,
            Recipe(
                block_length=2, cache=replace(cache, visible=Decayed(4)), stop=Prophet(Linear(4, 0)), verify=Recheck()
            ),
        ),
    )
    asked = []
    for seed in range(100):
        length, recipe = chance.choice(kinds)
        layout = Layout.with_suffix(length, chance.choice([[], [5], [5, 6]]), chance.choice([1, 2]))
        steps = chance.choice([None, 2, 3, 5])
        asked.append(Request(prompt(chance.randint(2, 20)), layout, replace(recipe, steps=steps), seed))
    return asked


@PLAIN_AND_PACKED
@pytest.mark.parametrize("cache", [Off(), Prefix(), Dual(2), Delayed(3), Drift()], ids=str)
def test_a_hundred_requests_at_random_times_are_as_they_are_alone(cache: Any, packed: bool) -> None:
    chance, model = random.Random(str(cache)), network(8, packed=packed)
    asked = hundred(cache, chance)
    scheduler = Scheduler(model, (END,), max_batch=6)
    outcomes: dict[int, Outcome] = {}
    dropped: dict[int, str] = {}
    while scheduler.submitted < len(asked) or scheduler.busy:
        for _ in range(chance.choice([0, 0, 1, 4])):
            if scheduler.submitted < len(asked):
                scheduler.submit(asked[scheduler.submitted])
        for place, there in (("in line", scheduler.waiting), ("in flight", scheduler.running)):
            if there and chance.random() < 0.1:
                ticket = chance.choice(there)
                assert scheduler.cancel(ticket)
                dropped[ticket] = place
        outcomes |= {one.ticket: one for one in scheduler.step() if isinstance(one, Outcome)}
        assert len(scheduler.running) <= 6
    assert set(dropped.values()) == {"in line", "in flight"}
    assert set(outcomes) == set(range(100)) - set(dropped)
    for ticket, outcome in outcomes.items():
        alone, _ = run(model, [asked[ticket]], (END,))
        assert list(outcome.tokens) == alone.window[0].tolist()
        assert (outcome.steps, outcome.forwards) == (int(alone.step[0]), int(alone.meters.forwards[0]))
        assert outcome.usage.columns_needed == int(alone.meters.needed[0])


def toys(lengths: list[int], recipe: Recipe | None = None, window: int = 4) -> list[Request]:
    return [Request(prompt(size), Layout(window), recipe or Recipe(), seed) for seed, size in enumerate(lengths)]


def admissions(scheduler: Scheduler) -> list[int]:
    """Tickets in the order in which they get a slot; they take more than one step each."""
    seen: list[int] = []
    while scheduler.busy:
        scheduler.step()
        seen += [ticket for ticket in scheduler.running if ticket not in seen]
    return seen


def test_slots_go_to_groups_in_the_order_of_arrival() -> None:
    """Inside of a group prompts of like length go together, but not at the cost of another group."""
    chance = random.Random(3)
    kinds = [chance.choice([4, 5, 6]) for _ in range(40)]
    scheduler = Scheduler(Toy(), max_batch=2)
    for length in kinds:
        scheduler.submit(Request(prompt(chance.randint(1, 30)), Layout(length), Recipe()))
    order: list[int] = []
    while scheduler.busy:
        scheduler.step()
        fresh = [ticket for ticket in scheduler.running if ticket not in order]
        # Two slots that were free together were given out together.
        assert sorted(kinds[ticket] for ticket in fresh) == sorted(kinds[len(order) : len(order) + len(fresh)])
        order += fresh
    assert sorted(order) == list(range(40))
    assert order != sorted(order)


@pytest.mark.parametrize(("patience", "place"), [(0, 1), (3, 4), (99, 9)])
def test_nobody_is_passed_over_for_ever(patience: int, place: int) -> None:
    """A long prompt behind a short one is passed over by short ones, but only so often."""
    scheduler = Scheduler(Toy(), max_batch=2, patience=patience)
    # One row stays long enough for its slot's neighbour to change many times.
    scheduler.submit(Request(prompt(2), Layout(40), Recipe(block_length=1)))
    for size in (30, *[2] * 8):
        scheduler.submit(Request(prompt(size), Layout(40), Recipe(block_length=1, steps=2)))
    assert admissions(scheduler).index(1) == place


def test_groups_take_turns() -> None:
    spy = Spy(Toy())
    scheduler = Scheduler(spy, max_batch=4)
    for window in (4, 5, 6):
        scheduler.submit(Request((), Layout(window), Recipe()))
    scheduler.step()
    scheduler.submit(Request((), Layout(7), Recipe()))
    for _ in scheduler.run():
        pass
    assert [width for _, width in spy.shapes[:9]] == [4, 5, 6, 4, 7, 5, 6, 4, 7]
    assert len(spy.shapes) == 4 + 5 + 6 + 7


def test_a_row_joins_as_soon_as_a_slot_is_free() -> None:
    spy = Spy(Toy())
    scheduler = Scheduler(spy, max_batch=2)
    budgets = [8, 2, 3, 1, 2]
    asked = [Request((3,), Layout(8), Recipe(steps=steps)) for steps in budgets]
    finished = [one.ticket for one in scheduler.run(asked)]
    assert [rows for rows, _ in spy.shapes] == [2] * 8
    assert finished == [1, 2, 3, 0, 4]


def test_like_lengths_meet() -> None:
    chance = random.Random(5)
    asked = toys([chance.choice([2, 2, 3, 24, 25, 26]) for _ in range(40)])
    paddings, tokens = [], []
    for lookahead in (1, 4, 32):
        scheduler = Scheduler(Toy(), max_batch=4, lookahead=lookahead)
        tokens.append([one.tokens for one in sorted(scheduler.run(asked), key=lambda one: one.ticket)])
        paddings.append(scheduler.usage.padding)
    assert paddings[0] > 1.5 * paddings[1] > 1.5 * paddings[2] > 0
    assert tokens[0] == tokens[1] == tokens[2]


def test_usage_is_what_the_passes_took() -> None:
    scheduler = Scheduler(Toy(), max_batch=2)
    outcomes = list(scheduler.run(toys([2, 6])))
    # Two rows of 6 + 4 columns and 4 steps, of which one needs 2 + 4 columns only.
    assert scheduler.usage == Usage(4 * (10 + 6), 4 * 20)
    assert scheduler.usage.padding == pytest.approx(0.2)
    assert sum((one.usage for one in outcomes), Usage()) == scheduler.usage
    assert Usage().padding == 0.0
    guided = Scheduler(Toy(), max_batch=2)
    assert len(list(guided.run(toys([2, 6], Recipe(guidance=1.0))))) == 2
    assert guided.usage == Usage(2 * 4 * 16, 2 * 4 * 20)


def test_usage_counts_what_is_in_flight_and_what_was_dropped() -> None:
    scheduler = Scheduler(Toy(), max_batch=2)
    for request in toys([2, 6]):
        scheduler.submit(request)
    scheduler.step()
    assert scheduler.usage == Usage(16, 20)
    scheduler.cancel(1)
    assert scheduler.usage == Usage(16, 20)
    scheduler.step()
    assert scheduler.usage == Usage(16 + 6, 20 + 6)


@pytest.mark.parametrize("cache", [Off(), Dual(), Delayed(1)], ids=str)
def test_columns_that_nobody_uses_are_cut_off(cache: Any) -> None:
    spy = Spy(network(2))
    recipe = Recipe(block_length=2, cache=cache)
    layout = Layout(4)
    asked = [
        Request(prompt(30), layout, replace(recipe, steps=1)),
        Request(prompt(9), layout, recipe),
        Request(prompt(20), layout, replace(recipe, steps=2)),
        Request(prompt(12), layout, recipe),
    ]
    outcomes = {one.ticket: one for one in Scheduler(spy, max_batch=2).run(asked)}
    widths = [width - 4 for _, width in spy.shapes]
    assert sorted(set(widths), reverse=True) == [30, 20, 12, 9]
    assert sorted(widths, reverse=True) == widths
    for ticket, request in enumerate(asked):
        assert list(outcomes[ticket].tokens) == run(network(2), [request])[0].window[0].tolist()


def test_a_request_can_be_dropped_at_any_time() -> None:
    scheduler = Scheduler(Toy(), max_batch=2)
    for request in toys([2, 3, 4, 5]):
        scheduler.submit(request)
    assert scheduler.cancel(2)  # in line
    assert not scheduler.cancel(2)
    scheduler.step()
    assert (scheduler.running, scheduler.waiting) == ([0, 1], [3])
    assert scheduler.cancel(0)  # in flight
    assert scheduler.running == [1]
    scheduler.step()
    assert scheduler.running == [1, 3]
    assert {one.ticket for one in scheduler.run()} == {1, 3}
    assert not scheduler.cancel(1)  # done
    assert not scheduler.cancel(99)
    assert not scheduler.busy
    assert scheduler.step() == []


def test_a_dropped_request_gives_up_its_own_place_in_line() -> None:
    """Not one of its group's earlier places, nor one of another group."""
    scheduler = Scheduler(Toy(), max_batch=1, lookahead=1)
    for window in (4, 5, 4, 5, 4):
        scheduler.submit(Request((), Layout(window), Recipe()))
    assert scheduler.cancel(2)
    assert [one.ticket for one in scheduler.run()] == [0, 1, 3, 4]


def test_a_model_without_a_cache_refuses_a_recipe_with_one_and_goes_on() -> None:
    scheduler = Scheduler(Toy(), max_batch=2)
    scheduler.submit(toys([2])[0])
    with pytest.raises(ModelError, match="has no cache"):
        scheduler.submit(toys([2], Recipe(cache=Dual()))[0])
    assert [one.ticket for one in scheduler.run()] == [0]


@pytest.mark.parametrize("bad", [{"max_batch": 0}, {"lookahead": 0}, {"patience": -1}, {"max_batch": 1.5}])
def test_bad_values_are_named(bad: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"{next(iter(bad))}.*{next(iter(bad.values()))}"):
        Scheduler(Toy(), **bad)


@pytest.mark.parametrize("record", [False, True])
def test_logits_of_two_steps_never_pile_up(record: bool) -> None:
    spy = Spy(Toy())
    stop = Recipe(block_length=2, stop=Prophet(Linear(9, 9)))
    for _ in Scheduler(spy, max_batch=2, record=record).run(toys([2, 3, 4], stop)):
        pass
    assert len(spy.refs) >= 8
    assert spy.most == 0


def test_a_step_that_someone_holds_lets_its_logits_go() -> None:
    spy = Spy(Toy())
    state = lay_out(toys([2, 3]), 0)
    held = []
    for step in decode(spy, state, Recipe()):
        assert not (step.draft == 0).any()
        gap = step.beliefs.gap
        held.append((step, gap))
    assert spy.most == 0
    for step, gap in held:
        assert torch.equal(step.beliefs.gap, gap)
        with pytest.raises(RequestError, match="the entropy of a step must be read before the next step"):
            _ = step.beliefs.entropy
