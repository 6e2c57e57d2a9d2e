"""The state: a value that no step changes, whose derived parts are computed once; rows come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, replace
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

from foretell.engine.request import Layout, Request, lay_out
from foretell.loop.decode import decode, denoise_step
from foretell.loop.parts import Rows, tensors_of
from foretell.loop.state import PARTS, DecodeState
from foretell.loop.view import StateView
from foretell.policies.cache.dual import Dual
from foretell.policies.region.masked import Masked
from foretell.policies.region.pattern import Pattern
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.policies.verify.recheck import Recheck
from foretell.recipes.recipe import Recipe
from tests.helpers import WORDS, model_of, network, run, with_fields

END = 2
PROPHET = Recipe(block_length=3, stop=Prophet(Linear(9, 2)))


def derived_of(cls: type) -> dict[str, cached_property[Any]]:
    return {name: one for name, one in vars(cls).items() if isinstance(one, cached_property)}


def a_state(recipe: Recipe = PROPHET, steps: tuple[int | None, ...] = (None, 2, 7)) -> DecodeState:
    layout = Layout.with_suffix(12, [5, 6], 2)
    requests = [Request((3, 4, 5)[: 1 + i], layout, replace(recipe, steps=n), seed=i) for i, n in enumerate(steps)]
    return lay_out(requests, 0, (END,), spelling=WORDS)


def copy_of(state: DecodeState) -> dict[str, Tensor]:
    return {
        f"{part}.{name}": value.clone() for part in PARTS for name, value in tensors_of(getattr(state, part)).items()
    }


RECIPES = {
    "prophet": PROPHET,
    "eos": Recipe(block_length=1, stop_at_eos=True),
    "recheck": replace(PROPHET, verify=Recheck(3, 0.9), region=Masked()),
    "dual": replace(PROPHET, cache=Dual()),
    "found": Recipe(block_length=3, region=Pattern(r"\d+"), stop=Prophet(Linear(9, 2))),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_step_changes_no_earlier_state(recipe: Recipe) -> None:
    """Not even where a row commits and is filled a second time: nothing has to be restored."""
    settled = 0
    for seed in range(6):
        state, model = a_state(recipe), network(seed, vocab=8)
        before = copy_of(state)
        for step in decode(model, state, recipe):
            assert all(torch.equal(value, before[name]) for name, value in copy_of(state).items())
            settled += int(step.settled.sum())
            state, before = step.after, copy_of(step.after)
    assert settled or recipe.stop == Recipe().stop


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_count_is_taken_from_the_state_before(recipe: Recipe) -> None:
    """Steps, drafts and how long they have stood: once per step, also where a row commits."""
    committed = 0
    for seed in range(12):
        model = network(seed, vocab=8)
        for step in decode(model, a_state(recipe), recipe):
            before, after, alive = step.before, step.after, ~step.before.done
            ended = after.blank.logical_not() & after.ended if recipe.stop_at_eos else torch.zeros_like(after.blank)
            same = torch.where(step.beliefs.tokens == before.draft, before.unchanged + 1, 0)
            expected = torch.where(alive[:, None], same, before.unchanged)
            assert torch.equal(after.unchanged[~ended], expected[~ended])
            assert torch.equal(after.step, before.step + alive)
            committed += int(step.settled.sum())
    assert committed or recipe.stop == Recipe().stop


@dataclass(frozen=True, eq=False)
class Watched:
    """A policy that notes which states it is asked about."""

    inner: Any
    seen: list[DecodeState]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, *arguments: Any) -> Any:
        self.seen.append(arguments[-1])
        return self.inner(*arguments)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_policy_sees_the_state_of_its_own_step(recipe: Recipe) -> None:
    """And nothing in it is left from the step before: all is what a state with the same parts derives anew."""
    for seed in range(4):
        seen: list[DecodeState] = []
        watched: dict[str, Any] = {name: Watched(getattr(recipe, name), seen) for name in ("stop", "score", "transfer")}
        for step in decode(network(seed, vocab=8), a_state(recipe), replace(recipe, **watched)):
            assert len(seen) >= 3
            assert all(state.text is step.before.text for state in seen[-2:]), "score and transfer"
            for state in (*seen, step.before, step.after):
                anew = DecodeState(*(getattr(state, name) for name in (*PARTS, "store")))
                for name in derived_of(StateView):
                    assert torch.equal(getattr(state, name), getattr(anew, name)), name
            seen.clear()


def test_a_state_cannot_be_assigned_to() -> None:
    state: Any = a_state()
    for name, value in (("text", state.text), ("window", state.window), ("step", state.step)):
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(state, name, value)
    with pytest.raises(FrozenInstanceError):
        state.text.step = state.step


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_each_is_computed_at_most_once_per_state(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[str] = Counter()

    def counted(name: str, compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def count(owner: Any) -> Any:
            made[name] += 1
            return compute(owner)

        return count

    for cls in (StateView, Rows):
        for name, one in derived_of(cls).items():
            monkeypatch.setattr(one, "func", counted(name, one.func))
    model = network(1, vocab=8)
    step = denoise_step(model, a_state(recipe), recipe)
    for _ in range(4):
        made.clear()
        step = denoise_step(model, step.after, recipe, step.ahead)
        # The step before has planned this one; a row that settles is noticed when the text has been written, which is
        # then written again. Where masks after an end do not count, the end of the new text is looked for first; where
        # the answer is, it is found first.
        times = (2 if step.settled.any() else 1) * (2 if recipe.stop_at_eos or recipe.region.sought else 1)
        assert max(made.values()) <= times, made
        assert not set(derived_of(Rows)) & set(made)  # of the requests, not of the step


def test_budgets_are_the_rows_own() -> None:
    layout = Layout.with_suffix(12, [5, 6], 2)
    for recipe in (PROPHET, Recipe(block_length=2), replace(PROPHET, verify=Recheck())):
        asked = [Request((3, 4), layout, replace(recipe, steps=n), seed=7) for n in (None, 1, 4, 5, 30)]
        together, _ = run(model_of("toy", 5), asked)
        assert together.budget.tolist() == [12, 1, 4, 5, 30]
        for row, request in enumerate(asked):
            alone, _ = run(model_of("toy", 5), [request])
            assert torch.equal(alone.window[0], together.window[row])
            assert int(alone.step[0]) == int(together.step[row])
        assert len(set(together.step.tolist())) > 2


def test_progress_is_the_quotient_to_the_last_bit() -> None:
    """A threshold may lie on it: the division by a row's own budget rounds as one by a plain number."""
    for budget in (*range(1, 40), 64, 100, 256, 1000):
        rows = a_state().keep([0] * budget)
        state = with_fields(rows, step=torch.arange(budget), budget=torch.full((budget,), budget))
        assert torch.equal(state.progress, torch.arange(budget) / budget)


def test_rows_leave_and_join() -> None:
    model, recipe = model_of("toy", 3), Recipe(block_length=4)
    layout = Layout(8)
    asked = [Request(tuple(range(3, 4 + n)), layout, recipe, seed=n) for n in (1, 6, 2, 4)]
    state = denoise_step(model, lay_out(asked[:3], 0), recipe).after.keep([2, 0])
    assert state.prompt_length == 7
    state = state.trim(3)
    assert state.valid[:, : state.prompt_length].sum(dim=1).tolist() == [3, 2]
    state = state.join(lay_out([asked[3]], 0))
    assert state.prompt_length == 5
    for step in decode(model, state, recipe):
        state = step.after
    for row, request in enumerate((asked[2], asked[0], asked[3])):
        assert torch.equal(run(model, [request])[0].window[0], state.window[row])
