"""Looking over an early commit: what is doubted is masked and written again, within the passes and the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretell.engine.request import Layout, Request, lay_out
from foretell.errors import RecipeError
from foretell.loop.decode import decode
from foretell.models.toy import Toy
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.policies.verify.recheck import Recheck
from foretell.recipes.recipe import Recipe
from tests.helpers import network, run

AT_ONCE = Recipe(block_length=4, stop=Prophet(Linear(-1, -1)))
LAYOUT = Layout.with_suffix(12, [5, 6], 2)


def decoded(verify: Recheck | None, seed: int = 0, steps: int | None = None) -> tuple[list[int], int]:
    recipe = replace(AT_ONCE, steps=steps) if verify is None else replace(AT_ONCE, steps=steps, verify=verify)
    state, taken = run(Toy(vocab=12, seed=seed), [Request((3, 4), LAYOUT, recipe)])
    assert not state.blank.any()
    assert len(taken) == int(state.step[0]) == int(state.meters.forwards[0])
    return state.window[0].tolist(), len(taken)


def test_nothing_doubted_costs_one_pass() -> None:
    text, forwards = decoded(Recheck(below=0.0))
    assert (text, forwards) == (decoded(None)[0], 2)


def test_doubts_are_written_again() -> None:
    changed = 0
    for seed in range(6):
        text, forwards = decoded(Recheck(below=0.9), seed)
        assert forwards in (2, 3)
        changed += text != decoded(None, seed)[0]
    assert changed > 3


def test_parameters_matter() -> None:
    assert [decoded(Recheck(passes, 0.9))[1] for passes in (2, 3, 4)] == [3, 3, 5]
    assert decoded(Recheck(below=0.0))[1] < decoded(Recheck(below=0.9))[1]
    kept = [decoded(Recheck(4, 0.9, answer=False), seed)[0][-2:] == decoded(None, seed)[0][-2:] for seed in range(6)]
    doubted = [decoded(Recheck(4, 0.9), seed)[0][-2:] == decoded(None, seed)[0][-2:] for seed in range(6)]
    assert all(kept)
    assert not all(doubted)


def test_the_budget_is_never_exceeded() -> None:
    for budget in (1, 2, 3):
        assert decoded(Recheck(5, 0.9), steps=budget)[1] == budget


def test_only_what_was_committed_early_is_doubted() -> None:
    recipe = replace(AT_ONCE, stop=Prophet(Linear(1e6, -12e6)), verify=Recheck(4, 1.0))
    model = network(2)
    state = lay_out([Request((3, 4), LAYOUT, recipe)], model.mask_id)
    kept = None
    for taken in decode(model, state, recipe):
        if kept is None:
            kept = taken.filled[0] | state.pinned[0]
            before = taken.after.window[0, kept]
        assert torch.equal(taken.after.window[0, kept], before)
    assert kept is not None
    assert 3 <= int(kept.sum()) < 12


def test_a_row_that_looks_over_leaves_others_alone() -> None:
    asked = [Request((3, 4, 5)[:n], LAYOUT, replace(AT_ONCE, verify=Recheck(3, 0.6))) for n in (1, 2, 3)]
    together, _ = run(network(4), asked)
    for row, request in enumerate(asked):
        alone, _ = run(network(4), [request])
        assert torch.equal(alone.window[0], together.window[row])
        assert int(alone.meters.forwards[0]) == int(together.meters.forwards[row])


@pytest.mark.parametrize("bad", [{"passes": 1}, {"below": 1.5}])
def test_bad_values_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match=str(next(iter(bad.values())))):
        Recheck(**bad)  # type: ignore[arg-type]
