"""Stopping rules: schedules, clocks, reductions, and the off-by-one traps."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.scheduler import Scheduler
from foretell.errors import RecipeError
from foretell.loop.parts import Move, Work
from foretell.loop.protocols import Verdict
from foretell.loop.state import DecodeState
from foretell.policies.region.after import After
from foretell.policies.region.fixed import Fixed
from foretell.policies.region.masked import Masked
from foretell.policies.region.whole import Whole
from foretell.policies.stop.combined import All, each
from foretell.policies.stop.combined import Any as AnyOf
from foretell.policies.stop.never import Never
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Cosine, Exponential, Linear, Schedule, Staged
from foretell.policies.stop.stable import Stable
from foretell.policies.stop.sure import Sure
from foretell.policies.transfer.quota import Quota
from foretell.policies.transfer.threshold import Threshold
from foretell.recipes.recipe import Recipe
from tests.helpers import model_of, with_fields

MASK = 0


def fires(verdict: Verdict) -> bool:
    return bool(verdict.settled)


def state_of(layout: Layout, rows: int = 1, steps: int | None = None) -> DecodeState:
    return lay_out([Request((1, 2), layout, Recipe(steps=steps))] * rows, MASK)


def fill(state: DecodeState, count: int) -> DecodeState:
    """The same state with its first positions filled."""
    window = state.window.clone()
    window[:, :count] = 5
    return state.with_text(window=window)


def propose(state: DecodeState, tokens: torch.Tensor) -> DecodeState:
    """The state after a step that proposes `tokens` and fills nothing."""
    none, work = torch.zeros_like(state.pinned), Work(state.ledger, state.meters, None)
    return state.apply(Move(none, none.any(dim=1), none, None, state.recheck), tokens, work)


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
    state = state.with_text(step=torch.arange(budget))
    sure = beliefs([[6.0] * 4] * budget)  # between high and mid
    surer = beliefs([[3.0] * 4] * budget)  # between mid and low
    for rule, (high, mid) in ((Prophet(), paper), (Prophet(one_based=True), released)):
        assert int(rule(sure, state).settled.int().argmax()) == high
        assert int(rule(surer, state).settled.int().argmax()) == mid


@pytest.mark.parametrize("budget", [3, 6, 9, 24, 100, 300])
@pytest.mark.parametrize(("first", "second"), [("1/3", "2/3"), ("33/100", "67/100"), ("0", "1")])
def test_a_stage_begins_exactly_at_its_switch(budget: int, first: str, second: str) -> None:
    """Progress that equals a switch belongs to the later stage, however either of them is rounded."""
    state = state_of(Layout(4, answer=(0, 4)), rows=budget, steps=budget).with_text(step=torch.arange(budget))
    steps = [Fraction(step, budget) for step in range(budget)]
    expected = [7.5 if p < Fraction(first) else 5.0 if p < Fraction(second) else 2.5 for p in steps]
    staged = Staged(first=float(Fraction(first)), second=float(Fraction(second)))
    assert staged(state.progress).tolist() == expected
    assert staged(torch.tensor([staged.first, staged.second])).tolist() == [5.0, 2.5]


def test_the_default_switches_are_the_papers() -> None:
    """0.33 and 0.67, not thirds: a third of the steps is after the first switch, two thirds are before the second."""
    assert Staged()(torch.tensor([0.33, 1 / 3, 2 / 3, 0.67])).tolist() == [5.0, 5.0, 5.0, 2.5]


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


@pytest.mark.parametrize("over", ["all", "masked"])
@pytest.mark.parametrize("region", [Fixed(), Fixed(0, 6)])
def test_pinned_positions_are_no_part_of_the_answer(over: Any, region: Any) -> None:
    """The givens of a puzzle cannot change, so every reduction leaves them out; what is left may have holes."""
    layout = Layout(6, ((1, 5), (2, 6), (4, 5)), (0, 6))
    recipe = Recipe(region=region, stop=Prophet(over=over))
    state = lay_out([Request((1, 2), layout, recipe)], MASK)
    assert state.answer.tolist() == [[True, False, False, True, False, True]]
    seen = beliefs([[1.0, 90.0, 90.0, 2.0, 90.0, 6.0]])
    for reduce, value in (("mean", 3.0), ("min", 1.0), ("quantile", 2.0)):
        verdict = Prophet(reduce=reduce, q=0.5, over=over)(seen, state)  # type: ignore[arg-type]
        assert verdict.value is not None
        assert verdict.value.tolist() == [value]


def test_at_the_threshold_it_settles() -> None:
    state = state_of(Layout(2, answer=(0, 2)))
    assert fires(Prophet(Linear(5, 5))(beliefs([[4.0, 6.0]]), state))
    assert not fires(Prophet(Linear(5, 5))(beliefs([[4.0, 5.9375]]), state))


def test_filled_positions_count_or_not() -> None:
    """The released code averages over filled positions too; `over="masked"` looks at what is still open."""
    state = state_of(Layout(4, answer=(0, 3)))
    state = fill(state, 1)
    seen = beliefs([[0.0, 6.0, 6.0, 0.0]])
    everywhere, open_only = Prophet(Linear(5, 5)), Prophet(Linear(5, 5), over="masked")
    assert not fires(everywhere(seen, state))
    assert fires(open_only(seen, state))
    assert everywhere.reads(state).tolist() == [[True, True, True, False]]
    assert open_only.reads(state).tolist() == [[False, True, True, False]]
    state = fill(state, 3)  # the answer is written: nothing can change it
    assert fires(open_only(seen, state))
    assert not fires(Prophet(Linear(math.inf, 1), over="masked")(seen, state))


def test_clock_by_tokens() -> None:
    state = state_of(Layout(4, answer=(0, 4)), steps=100)
    seen = beliefs([[3.0] * 4])
    by_tokens = Prophet(clock="tokens")
    assert not fires(by_tokens(seen, state))
    state = fill(state, 3)  # three quarters filled in no time
    assert fires(by_tokens(seen, state))
    assert not fires(Prophet()(seen, state))


def test_an_empty_region_never_settles() -> None:
    state = state_of(Layout(4))
    rules: list[Any] = [Prophet(Linear(0, 0)), Prophet(Linear(0, 0), over="masked"), Stable(1, math.inf), Never()]
    rules += [Sure(math.inf), Sure(math.inf, over="masked"), Persistent(1)]
    state = state.with_text(draft=torch.ones_like(state.draft))
    for rule in rules:
        assert not fires(rule(beliefs([[99.0] * 4]), state))


def test_stable_counts_comparisons_not_steps() -> None:
    """One step has nothing to compare with; `steps=k` needs k comparisons that found no change."""
    state = state_of(Layout(2, answer=(0, 2)))
    fired = []
    for tokens in ([3, 4], [3, 5], [3, 5], [3, 5]):
        seen = beliefs([[0.0, 0.0]], [tokens], entropy=0.001)
        fired.append([fires(Stable(k)(seen, state)) for k in (1, 2)])
        state = propose(state, seen.tokens)
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
    state = fill(state, 1)
    assert Masked()(state)[0].tolist() == [False, True, False, False, True, True, True, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Prophet(reduce="median"),  # type: ignore[arg-type]
            "did you mean|available: mean, min, quantile",
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
        (lambda: Staged(first=0.8), "first <= second, got first=0.8"),
        (lambda: Staged(second=2), "staged's second must be from 0 to 1, got 2"),
        (lambda: Linear(math.nan), "the threshold start must be at least -inf, got nan"),
        (
            lambda: All((Prophet(), "never")),  # type: ignore[arg-type]
            "needs stopping rules such as .*, got 'never'",
        ),
        (
            lambda: All((Prophet, Never())),  # type: ignore[arg-type]
            "needs stopping rules such as .*, got <class",
        ),
        (lambda: Exponential(k=-1), "exponential's k must be from 0 to .*, got -1"),
        (lambda: Stable(0), "at least 1, got 0"),
        (lambda: Sure(-0.1), "sure's entropy must be at least 0, got -0.1"),
        (
            lambda: Sure(over="open"),  # type: ignore[arg-type]
            "unknown sure's over 'open'",
        ),
        (lambda: Persistent(0), "persistent's steps must be at least 1, got 0"),
        (
            lambda: Persistent(1.5),  # type: ignore[arg-type]
            "persistent's steps must be a whole number, got 1.5",
        ),
        (lambda: Fixed(offset=-1), "at least 0, got -1"),
    ],
)
def test_bad_parameters_are_named(make: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_sched_waits_for_the_draft() -> None:
    """SchED's second condition: a sure gap does not settle while any draft still changes."""
    rule = All((Prophet(Linear(1, 1)), Stable(entropy=math.inf)))
    state = state_of(Layout(2, answer=(0, 2)))
    first, second = beliefs([[9.0, 9.0]], [[3, 4]]), beliefs([[9.0, 9.0]], [[3, 4]])
    assert not fires(rule(first, state))
    state = propose(state, first.tokens)
    assert fires(rule(second, state))


def test_sure_looks_at_the_mean_entropy() -> None:
    state = state_of(Layout(4, answer=(0, 2)))
    seen = SimpleNamespace(entropy=torch.tensor([[0.04, 0.12, 5.0, 5.0]]))
    assert fires(Sure()(seen, state))  # 0.08
    assert not fires(Sure(0.07)(seen, state))
    verdict = Sure()(seen, state)
    assert verdict.value is not None
    assert verdict.bar is not None
    assert verdict.measure == "certainty"
    assert float(verdict.value) == pytest.approx(math.exp(-0.08))
    assert float(verdict.bar) == pytest.approx(math.exp(-0.1))
    assert not fires(Sure()(SimpleNamespace(entropy=torch.tensor([[0.1, 0.1, 0.0, 0.0]], dtype=torch.float64)), state))
    unread = Sure()(SimpleNamespace(entropy=torch.tensor([[0.0, math.inf, 0.0, 0.0]])), state)
    assert not fires(unread)
    assert unread.value is not None
    assert unread.value.tolist() == [0.0]


def test_sure_over_what_is_still_open() -> None:
    state = state_of(Layout(4, answer=(0, 3)))
    state = fill(state, 1)
    seen = SimpleNamespace(entropy=torch.tensor([[0.9, 0.05, 0.05, 0.0]]))
    assert not fires(Sure()(seen, state))
    assert fires(Sure(over="masked")(seen, state))
    assert Sure().reads(state).tolist() == [[True, True, True, False]]
    assert Sure(over="masked").reads(state).tolist() == [[False, True, True, False]]
    state = fill(state, 3)  # the answer is written: nothing can change it
    assert fires(Sure(over="masked")(seen, state))


def test_sure_of_no_entropy_never_settles() -> None:
    """Rounding may put an entropy a little below 0; a bar of 0 still is the way to never stop."""
    state = state_of(Layout(2, answer=(0, 2)))
    seen = SimpleNamespace(entropy=torch.tensor([[-1e-7, -1e-7]]))
    assert fires(Sure(1e-6)(seen, state))
    assert not fires(Sure(0.0)(seen, state))
    state.window[0, :] = 5
    assert not fires(Sure(0.0, over="masked")(seen, state))


END = 9


def persisted(rule: Any, drafts: list[list[int]], end_ids: tuple[int, ...] = (END,)) -> list[bool]:
    """Whether the rule fires at each of these drafts of a window whose answer is its last three positions."""
    state = with_fields(state_of(Layout(4, answer=(1, 3))), end_ids=end_ids)
    fired = []
    for tokens in drafts:
        seen = beliefs([[0.0] * 4], [tokens])
        fired.append(fires(rule(seen, state)))
        state = propose(state, seen.tokens)
    return fired


def test_persistent_ignores_what_stands_behind_the_answer() -> None:
    """The answer 3 END stands from the second draft on, whatever the position behind it, or before the region, says."""
    drafts = [[1, 3, 4, 5], [1, 3, END, 5], [2, 3, END, 6], [2, 3, END, END], [1, 3, END, 7]]
    assert persisted(Persistent(2), drafts) == [False, False, False, True, True]
    assert persisted(Persistent(3), drafts) == [False, False, False, False, True]
    assert not any(persisted(Stable(2, math.inf), drafts))
    assert not any(persisted(Persistent(2), drafts, end_ids=()))  # nothing ends it: the whole region is the answer


def test_persistent_starts_again_when_the_answer_changes() -> None:
    drafts = [[1, 3, END, 5], [1, 3, END, 5], [1, END, END, 5], [1, END, 4, 5], [1, 3, END, 5], [1, 3, END, 5]]
    assert persisted(Persistent(1), drafts) == [False, True, False, True, False, True]
    longer = [[1, 3, END, 5], [1, 3, END, 6], [1, 3, 4, 6], [1, 3, 4, 6]]  # the end moves: a longer answer
    assert persisted(Persistent(1), longer) == [False, True, False, True]


def test_persistent_shows_how_long() -> None:
    state = with_fields(
        state_of(Layout(4, answer=(1, 3))),
        end_ids=(END,),
        draft=torch.tensor([[1, 3, END, 5]]),
        unchanged=torch.tensor([[0, 6, 4, 0]]),
    )
    verdict = Persistent(8)(beliefs([[0.0] * 4], [[1, 3, END, 6]]), state)
    assert verdict.value is not None
    assert verdict.bar is not None
    assert (float(verdict.value), float(verdict.bar), verdict.measure) == (5.0, 8.0, "unchanged")


def test_a_combination_is_all_its_rules() -> None:
    one, two, three = Prophet(), Sure(), Stable()
    assert list(each(AnyOf((All((one, two)), three)))) == [one, two, three]
    assert list(each(one)) == [one]


def test_combinations_of_the_new_rules() -> None:
    state = state_of(Layout(2, answer=(0, 2)))
    state = with_fields(state, end_ids=(END,), draft=torch.tensor([[1, 1]]), unchanged=torch.tensor([[7, 7]]))
    still, unsure = beliefs([[0.0, 0.0]], entropy=0.5), beliefs([[0.0, 0.0]], [[1, 2]], entropy=0.05)
    both, either = All((Sure(), Persistent())), AnyOf((Sure(), Persistent()))
    assert [fires(rule(seen, state)) for seen in (still, unsure) for rule in (both, either)] == [
        False,
        True,
        False,
        True,
    ]
    assert fires(both(beliefs([[0.0, 0.0]], entropy=0.05), state))


@pytest.mark.parametrize("transfer", [Quota(), Threshold(0.8)])
@pytest.mark.parametrize("rule", [Sure(0.5), Sure(0.6, over="masked"), Persistent(1), Persistent(2)])
def test_a_replayed_exit_is_the_live_one(rule: Any, transfer: Any) -> None:
    """The new rules keep nothing between calls, so a stored trace answers for them."""
    exits = set()
    for seed in range(6):
        model = model_of("network", seed, vocab=12)
        full = Request((1, 2), Layout.with_suffix(16, [3, 4], 4), Recipe(block_length=8, transfer=transfer))
        (told,) = Scheduler(model, (2,), record=True).run([full])
        stopping = replace(full, recipe=replace(full.recipe, stop=rule))
        (live,) = Scheduler(model, (2,)).run([stopping])
        assert told.trace is not None
        replayed = told.trace.replay(rule)
        assert (live.steps - 1 if live.finish == "settled" else None) == replayed
        if replayed is not None:
            assert tuple(told.trace.committed(replayed).tolist()) == live.tokens
        exits.add(replayed)
    assert len(exits) > 1
