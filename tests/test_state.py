"""The state: what is derived from it is computed once and never stale; rows come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from foretell.decode import decode, denoise_step
from foretell.derived import Derived
from foretell.layout import Layout, Request, lay_out
from foretell.policies.region.masked import Masked
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.policies.verify.recheck import Recheck
from foretell.recipe import Recipe
from foretell.state import DecodeState
from tests.helpers import model_of, run

END = 2
DERIVED = [name for name, one in vars(DecodeState).items() if isinstance(one, Derived)]
SOURCES = {source for name in DERIVED for source in vars(DecodeState)[name].sources}
PROPHET = Recipe(block_length=3, stop=Prophet(Linear(9, 2)))


def a_state(recipe: Recipe = PROPHET, steps: tuple[int | None, ...] = (None, 2, 7)) -> DecodeState:
    layout = Layout.with_suffix(12, [5, 6], 2)
    requests = [Request((3, 4, 5)[: 1 + i], layout, replace(recipe, steps=n), seed=i) for i, n in enumerate(steps)]
    return lay_out(requests, 0, (END,))


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def assert_fresh(state: DecodeState) -> None:
    anew = replace(state)  # keeps nothing
    assert not anew.kept
    stale = [name for name in DERIVED if not same(getattr(state, name), getattr(anew, name))]
    assert not stale


@pytest.mark.parametrize(
    "recipe",
    [PROPHET, Recipe(block_length=1, stop_at_eos=True), replace(PROPHET, verify=Recheck(3, 0.9), region=Masked())],
    ids=["prophet", "eos", "recheck"],
)
def test_a_step_leaves_nothing_stale(recipe: Recipe) -> None:
    for seed in range(3):
        state = a_state(recipe)
        assert_fresh(state)
        while not all(state.finished):
            denoise_step(model_of("toy", seed, vocab=8), state, recipe)
            assert_fresh(state)


def other(old: Tensor) -> Tensor:
    return ~old if old.dtype == torch.bool else old + 1


def filled(old: Tensor) -> Tensor:
    """Something else in every row's first columns and in its last."""
    new = old.clone()
    new[..., :8], new[..., -1] = 5, END
    return new


def assigned(state: DecodeState, name: str, value: Tensor) -> None:
    setattr(state, name, value)


def in_place(state: DecodeState, name: str, value: Tensor) -> None:
    getattr(state, name).copy_(value)


@pytest.mark.parametrize("write", [assigned, in_place])
@pytest.mark.parametrize("name", [one.name for one in fields(DecodeState) if one.type == "Tensor"])
def test_a_write_to_any_field_is_noticed(write: Callable[[DecodeState, str, Tensor], None], name: str) -> None:
    moved = 0
    for change in (other, torch.ones_like, filled):
        state = replace(a_state(), stop_at_eos=True)
        before = {one: getattr(state, one) for one in DERIVED}
        write(state, name, change(getattr(state, name)))
        assert_fresh(state)
        moved += sum(not same(getattr(state, one), value) for one, value in before.items())
    assert (moved > 0) == (name in SOURCES)


def test_a_write_into_a_view_of_the_canvas_is_noticed() -> None:
    state = a_state()
    assert state.masked[0, 0]
    state.window[0, 0] = 5
    assert not state.masked[0, 0]
    assert state.filled[0] > state.filled[1]


def test_each_is_computed_at_most_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[str] = Counter()

    def counted(name: str, compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def count(state: DecodeState) -> Any:
            made[name] += 1
            return compute(state)

        return count

    for name in DERIVED:
        one = vars(DecodeState)[name]
        monkeypatch.setattr(one, "compute", counted(name, one.compute))
    state, model = a_state(), model_of("toy", 1)
    assert not all(state.finished)
    denoise_step(model, state, PROPHET)
    for _ in range(4):
        made.clear()
        assert not all(state.finished)
        step = denoise_step(model, state, PROPHET)
        assert {"masked", "done", "block", "in_block", "eligible"} <= set(made)
        # A row that settles is noticed when the step has been written, which is then written again.
        assert max(made.values()) <= (3 if step.settled.any() else 1)
        assert not {"positions", "places", "deadlines"} & set(made)  # of the requests, not of the step


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
        state = a_state()
        state.keep([0] * budget)
        state.step, state.budget = torch.arange(budget), torch.full((budget,), budget)
        assert torch.equal(state.progress, torch.arange(budget) / budget)


def test_rows_leave_and_join() -> None:
    model, recipe = model_of("toy", 3), Recipe(block_length=4)
    layout = Layout(8)
    asked = [Request(tuple(range(3, 4 + n)), layout, recipe, seed=n) for n in (1, 6, 2, 4)]
    state = lay_out(asked[:3], 0)
    denoise_step(model, state, recipe)
    state.keep([2, 0])
    assert state.prompt_length == 7
    state.trim(3)
    assert state.valid[:, : state.prompt_length].sum(dim=1).tolist() == [3, 2]
    assert_fresh(state)
    state.join(lay_out([asked[3]], 0))
    assert state.prompt_length == 5
    assert_fresh(state)
    for _ in decode(model, state, recipe):
        pass
    for row, request in enumerate((asked[2], asked[0], asked[3])):
        assert torch.equal(run(model, [request])[0].window[0], state.window[row])
