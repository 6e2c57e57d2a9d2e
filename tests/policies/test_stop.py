"""Stopping rules: schedules, clocks, reductions, and the off-by-one traps."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretell.errors import RecipeError
from foretell.layout import Layout, Request, lay_out
from foretell.policies.region.after import After
from foretell.policies.region.fixed import Fixed
from foretell.policies.region.masked import Masked
from foretell.policies.region.whole import Whole
from foretell.policies.stop.combined import All
from foretell.policies.stop.combined import Any as AnyOf
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Cosine, Exponential, Linear, Schedule, Staged
from foretell.policies.stop.stable import Stable
from foretell.protocols import Verdict
from foretell.recipe import Recipe
from foretell.state import DecodeState

MASK = 0


def fires(verdict: Verdict) -> bool:
    return bool(verdict.settled)


def state_of(layout: Layout, rows: int = 1, steps: int | None = None) -> DecodeState:
    return lay_out([Request((1, 2), layout, Recipe(steps=steps))] * rows, MASK)


def beliefs(gap: list[list[float]], tokens: list[list[int]] | None = None, entropy: float = 0.0) -> Any:
    gaps = torch.tensor(gap)
    drafts = torch.tensor(tokens) if tokens else torch.ones_like(gaps, dtype=torch.long)
    return SimpleNamespace(gap=gaps, tokens=drafts, entropy=torch.full_like(gaps, entropy))


@pytest.mark.parametrize(
    ("budget", "paper", "released"),
    [
        (24, (8, 17), (7, 16)),
        (32, (11, 22), (10, 21)),
        (64, (22, 43), (21, 42)),
        (128, (43, 86), (42, 85)),
        (256, (85, 172), (84, 171)),
        (512, (169, 344), (168, 343)),
    ],
)
def test_last_step_of_each_stage(budget: int, paper: tuple[int, int], released: tuple[int, int]) -> None:
    """The step tables of both clocks; steps count from 1 there."""
    state = state_of(Layout(4, answer=(0, 4)), rows=budget, steps=budget)
    state.step = torch.arange(budget)
    sure = beliefs([[6.0] * 4] * budget)  # between high and mid
    surer = beliefs([[3.0] * 4] * budget)  # between mid and low
    for rule, (high, mid) in ((Prophet(), paper), (Prophet(one_based=True), released)):
        assert int(rule(sure, state).settled.int().argmax()) == high
        assert int(rule(surer, state).settled.int().argmax()) == mid


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Staged(8, 5, 3.5), [8, 8, 5, 3.5, 3.5]),
        (Linear(8, 3.5), [8, 6.875, 5.75, 4.625, 3.5]),
        (
            Cosine(7.5, 2.5),
            [7.5, 7.5 - 5 * (1 - math.cos(math.pi / 4)) / 2, 5, 2.5 + 5 * (1 - math.cos(math.pi / 4)) / 2, 2.5],
        ),
        (Exponential(7.5, 2.5, 2), [2.5 + 5 * math.exp(-2 * p) for p in (0, 0.25, 0.5, 0.75, 1)]),
        (Linear(math.inf, 1), [math.inf] * 5),
    ],
)
def test_schedules(schedule: Schedule, values: list[float]) -> None:
    p = torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64)
    assert schedule(p).tolist() == pytest.approx(values)


def test_reductions_differ() -> None:
    state = state_of(Layout(5, answer=(0, 5)))
    seen = beliefs([[9.0, 9.0, 9.0, 9.0, 1.0]])
    assert fires(Prophet(Linear(7, 7))(seen, state))  # the mean of 7.4 hides the unsure token
    assert not fires(Prophet(Linear(7, 7), reduce="min")(seen, state))
    assert not fires(Prophet(Linear(7, 7), reduce="quantile", q=0.2)(seen, state))
    assert fires(Prophet(Linear(7, 7), reduce="quantile", q=0.25)(seen, state))
    lowest = Prophet(reduce="quantile", q=0.0)(seen, state).value
    assert lowest is not None
    assert lowest.tolist() == [1.0]


def test_at_the_threshold_it_settles() -> None:
    state = state_of(Layout(2, answer=(0, 2)))
    assert fires(Prophet(Linear(5, 5))(beliefs([[4.0, 6.0]]), state))
    assert not fires(Prophet(Linear(5, 5))(beliefs([[4.0, 5.9375]]), state))


def test_filled_positions_count_or_not() -> None:
    """The released code averages over filled positions too; `over="masked"` looks at what is still open."""
    state = state_of(Layout(4, answer=(0, 3)))
    state.window[0, 0] = 5
    seen = beliefs([[0.0, 6.0, 6.0, 0.0]])
    everywhere, open_only = Prophet(Linear(5, 5)), Prophet(Linear(5, 5), over="masked")
    assert not fires(everywhere(seen, state))
    assert fires(open_only(seen, state))
    assert everywhere.reads(state).tolist() == [[True, True, True, False]]
    assert open_only.reads(state).tolist() == [[False, True, True, False]]
    state.window[0, :3] = 5  # the answer is written: nothing can change it
    assert fires(open_only(seen, state))
    assert not fires(Prophet(Linear(math.inf, 1), over="masked")(seen, state))


def test_clock_by_tokens() -> None:
    state = state_of(Layout(4, answer=(0, 4)), steps=100)
    seen = beliefs([[3.0] * 4])
    by_tokens = Prophet(clock="tokens")
    assert not fires(by_tokens(seen, state))
    state.window[0, :3] = 5  # three quarters filled in no time
    assert fires(by_tokens(seen, state))
    assert not fires(Prophet()(seen, state))


def test_an_empty_region_never_settles() -> None:
    state = state_of(Layout(4))
    for rule in (Prophet(Linear(0, 0)), Prophet(Linear(0, 0), over="masked"), Stable(1, math.inf), Never()):
        assert not fires(rule(beliefs([[99.0] * 4]), state))


def test_stable_counts_comparisons_not_steps() -> None:
    """One step has nothing to compare with; `steps=k` needs k comparisons that found no change."""
    state = state_of(Layout(2, answer=(0, 2)))
    fired = []
    for tokens in ([3, 4], [3, 5], [3, 5], [3, 5]):
        seen = beliefs([[0.0, 0.0]], [tokens], entropy=0.001)
        fired.append([fires(Stable(k)(seen, state)) for k in (1, 2)])
        state.reveal(torch.zeros_like(state.pinned), seen.tokens, ~state.done)
    assert fired == [[False, False], [False, False], [True, False], [True, True]]
    assert not fires(Stable(1)(beliefs([[0.0, 0.0]], [[3, 5]], entropy=0.01), state))


def test_combinations() -> None:
    state = state_of(Layout(2, answer=(0, 2)))
    sure = beliefs([[9.0, 9.0]])
    yes, no = Prophet(Linear(1, 1)), Never()
    assert [
        fires(rule(sure, state)) for rule in (All((yes, yes)), All((yes, no)), AnyOf((yes, no)), AnyOf((no, no)))
    ] == [
        True,
        False,
        True,
        False,
    ]
    assert AnyOf((no, yes)).reads(state).all()
    with pytest.raises(RecipeError, match="at least two"):
        All((yes,))


def test_regions() -> None:
    layout = Layout(8, ((2, 7), (3, 8)), (5, 2))
    state = state_of(layout)
    as_text: dict[Any, str] = {
        Fixed(): "00000110",
        Fixed(1, 3): "01110000",
        After(): "00001111",
        After(2): "00001100",
        After(2, skip=1): "00000110",
        Whole(): "11001111",
        Masked(): "11001111",
    }
    for region, expected in as_text.items():
        assert "".join(str(int(x)) for x in region(state)[0]) == expected
    assert not After(3)(state_of(Layout(8))).any()
    state.window[0, 0] = 5
    assert Masked()(state)[0].tolist() == [False, True, False, False, True, True, True, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Prophet(reduce="median"),  # type: ignore[arg-type]
            "did you mean|there is: mean, min, quantile",
        ),
        (lambda: Prophet(q=2), "from 0 to 1, got 2"),
        (
            lambda: Prophet(over="open"),  # type: ignore[arg-type]
            "unknown prophet's over 'open'",
        ),
        (
            lambda: Prophet(clock="minutes"),  # type: ignore[arg-type]
            "unknown prophet's clock",
        ),
        (lambda: Staged(first=0.8), "0 <= first <= second <= 1"),
        (lambda: Linear(math.nan), "must be a number or inf, got nan"),
        (lambda: Exponential(k=-1), "at least 0, got -1"),
        (lambda: Stable(0), "at least 1, got 0"),
        (lambda: Fixed(offset=-1), "at least 0, got -1"),
    ],
)
def test_bad_parameters_are_named(make: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_sched_waits_for_the_draft() -> None:
    """SchED's second condition: a sure gap does not settle while any draft still changes."""
    rule = All((Prophet(Linear(1, 1)), Stable(entropy=math.inf)))
    state = replace(state_of(Layout(2, answer=(0, 2))))
    first, second = beliefs([[9.0, 9.0]], [[3, 4]]), beliefs([[9.0, 9.0]], [[3, 4]])
    assert not fires(rule(first, state))
    state.reveal(torch.zeros_like(state.pinned), first.tokens, ~state.done)
    assert fires(rule(second, state))
