"""Transfers that fill many masks at once: each rule by hand, against plain Python, and inside the loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foretell.engine.request import Layout, Request, lay_out
from foretell.errors import RecipeError
from foretell.loop.protocols import Transfer
from foretell.loop.state import DecodeState
from foretell.policies.score.confidence import Confidence
from foretell.policies.score.deferred import Deferred
from foretell.policies.score.entropy import Entropy
from foretell.policies.transfer.entropy_bound import EntropyBound
from foretell.policies.transfer.entropy_threshold import EntropyThreshold
from foretell.policies.transfer.factor import Factor
from foretell.policies.transfer.frechet import Frechet
from foretell.policies.transfer.jot import JoT
from foretell.policies.transfer.opening import Opening
from foretell.policies.transfer.paced import Paced
from foretell.policies.transfer.quota import Quota
from foretell.policies.transfer.threshold import Threshold
from foretell.recipes.recipe import Recipe
from tests.helpers import Double, model_of, network, run, with_fields

MASK, WORD = 0, 5
RULES: list[Any] = [Threshold(), Factor(), Frechet(), EntropyBound(), EntropyThreshold(), JoT()]


def state_of(texts: list[str], block: int = 32, steps: int | None = None, prompt: tuple[int, ...] = ()) -> DecodeState:
    """Rows written as "..x.": a dot is a mask, anything else is filled."""
    recipe = Recipe(block_length=block, steps=steps)
    state = lay_out([Request(prompt, Layout(len(texts[0])), recipe)] * len(texts), MASK)
    state.window[torch.tensor([[letter != "." for letter in text] for text in texts])] = WORD
    return state


def fill(state: DecodeState, *positions: int) -> DecodeState:
    """The same state with some positions of its first row filled."""
    window = state.window.clone()
    window[0, list(positions)] = WORD
    return state.with_text(window=window)


def told(dtype: torch.dtype = torch.float64, **known: list[list[float]]) -> Any:
    """Beliefs that know some statistics and no others."""
    return SimpleNamespace(**{name: torch.tensor(values, dtype=dtype) for name, values in known.items()})


def certainty(seen: Any) -> Tensor:
    for name in ("confidence", "gap"):
        if hasattr(seen, name):
            return torch.as_tensor(getattr(seen, name))
    return torch.as_tensor(-seen.entropy)


def picked(rule: Transfer, state: DecodeState, seen: Any, scores: list[list[float]] | None = None) -> list[list[int]]:
    """The positions that go, row by row; by default the score is the first of what the beliefs know."""
    by = certainty(seen) if scores is None else torch.tensor(scores)
    mask = rule(by.masked_fill(~state.eligible, -torch.inf), seen, state)
    assert not (mask & ~state.eligible).any()
    return [row.nonzero().squeeze(1).tolist() for row in mask]


def test_threshold_takes_all_that_are_sure_and_always_the_best() -> None:
    state = state_of(["......", "......"])
    seen = told(confidence=[[0.95, 0.2, 0.9, 0.89, 0.99, 0.1], [0.5, 0.6, 0.1, 0.6, 0.2, 0.3]])
    assert picked(Threshold(0.9), state, seen) == [[0, 2, 4], [1]]  # 0.9 itself is enough; of equals the leftmost
    assert picked(Threshold(0.6), state, seen) == [[0, 2, 3, 4], [1, 3]]
    assert picked(Threshold(0.0), state, seen) == [[0, 1, 2, 3, 4, 5]] * 2


def test_threshold_by_score() -> None:
    state, seen = state_of(["..."]), told(confidence=[[0.95, 0.2, 0.9]])
    assert picked(Threshold(0.9, by="score"), state, seen, [[0.1, 0.95, 0.92]]) == [[1, 2]]
    with pytest.raises(RecipeError, match="unknown threshold's by 'luck'"):
        Threshold(by="luck")  # type: ignore[arg-type]


def test_opening_fills_the_first_mask_of_an_untouched_block() -> None:
    state, seen = state_of(["....", "x...", "xx.."], block=2), told(confidence=[[0.1, 0.99, 0.99, 0.99]] * 3)
    assert picked(Opening(), state, seen) == [[0], [1], [2]]
    one, sure = state_of(["x..."], block=4), told(confidence=[[0.1, 0.99, 0.99, 0.99]])
    assert picked(Opening(), one, sure) == [[1, 2, 3]]
    one.pinned[0, 0] = True  # given, not filled
    assert picked(Opening(), one, sure) == [[1]]
    assert Opening().parallel
    assert not Opening(Quota()).parallel


def test_threshold_relaxes_as_the_block_fills() -> None:
    """0.9 (1 - 0.3 (1 - 2/4)) = 0.765; pinned positions are no part of the block's share."""
    seen = told(confidence=[[0.0, 0.0, 0.77, 0.76], [0.76, 0.1, 0.77, 0.2]])
    state = state_of(["xx..", "...."])
    assert picked(Threshold(0.9, relax=0.3), state, seen) == [[2], [2]]
    seen.confidence[0, 3] = 0.7651
    assert picked(Threshold(0.9, relax=0.3), state, seen) == [[2, 3], [2]]
    assert picked(Threshold(0.9), state, seen) == [[2], [2]]
    pinned = torch.tensor([[True, True, False, False], [False] * 4])
    state = with_fields(state, pinned=pinned)  # given, not filled: nothing is relaxed
    assert picked(Threshold(0.9, relax=0.3), state, seen) == [[2], [2]]


def test_relaxing_looks_at_the_current_block_alone() -> None:
    state = state_of(["xxxx...."], block=4)
    seen = told(confidence=[[0.0, 0.0, 0.0, 0.0, 0.8, 0.8, 0.1, 0.1]])
    assert picked(Threshold(0.9, relax=0.3), state, seen) == [[4]]
    state = fill(state, 4)  # a quarter filled: 0.9 (1 - 0.3 / 4) = 0.8325
    assert picked(Threshold(0.85, relax=0.3), state, seen) == [[5]]
    seen.confidence[0, 6] = 0.79
    assert picked(Threshold(0.85, relax=0.3), state, seen) == [[5, 6]]


def test_factor_by_hand() -> None:
    """(n + 1)(1 - c_n): 0.2, 0.45, 0.8, 1.5 for the sorted confidences 0.9, 0.85, 0.8, 0.7."""
    state, seen = state_of(["...."]), told(confidence=[[0.8, 0.9, 0.7, 0.85]])
    fates = {0.1: [1], 0.4: [1], 0.5: [1, 3], 0.81: [0, 1, 3], 1.0: [0, 1, 3], 1.51: [0, 1, 2, 3]}
    for factor, positions in fates.items():
        assert picked(Factor(factor), state, seen) == [positions], factor


def test_factor_holds_for_the_last_mask_too() -> None:
    """All but the last are sure; the released code fills that one together with them."""
    state, seen = state_of(["x..."]), told(confidence=[[0.0, 0.99, 0.99, 0.3]])
    assert picked(Factor(), state, seen) == [[1, 2]]
    assert picked(Factor(last=True), state, seen) == [[1, 2, 3]]
    alone = state_of(["xxx."])
    assert picked(Factor(), alone, seen) == [[3]]  # one at the least
    doubtful = told(confidence=[[0.0, 0.2, 0.3, 0.1]])
    assert picked(Factor(last=True), state, doubtful) == [[2]]  # the second of three fails, and is not the last
    assert picked(Factor(last=True), state_of(["xx.."]), doubtful) == [[2, 3]]  # the best goes, and the last with it


def test_frechet_by_hand() -> None:
    """c = 0.95, 0.9, 0.9, 0.6: 0.95 - 0.05, 0.85 - 0.1, 0.75 - 0.1, 0.35 - 0.4."""
    state, seen = state_of(["...."]), told(confidence=[[0.9, 0.6, 0.95, 0.9]])
    assert picked(Frechet(), state, seen) == [[0, 2, 3]]
    assert picked(Frechet(0.64), state, seen) == [[0, 2, 3]]
    assert picked(Frechet(0.66), state, seen) == [[0, 2]]  # of equals the leftmost
    assert picked(Frechet(0.76), state, seen) == [[2]]
    assert picked(Frechet(1.0), state, seen) == [[2]]
    doubtful = told(confidence=[[0.2, 0.3, 0.1, 0.1]])
    assert picked(Frechet(0.0), state, doubtful) == [[1]]


def test_entropy_bound_by_hand() -> None:
    """Entropies 0.02, 0.05, 0.06, 0.4: what stands before each sums to 0, 0.02, 0.07, 0.13."""
    state, seen = state_of(["...."]), told(entropy=[[0.06, 0.02, 0.4, 0.05]])
    assert picked(EntropyBound(), state, seen) == [[0, 1, 3]]
    assert picked(EntropyBound(0.14), state, seen) == [[0, 1, 2, 3]]
    assert picked(EntropyBound(0.03), state, seen) == [[1, 3]]
    assert picked(EntropyBound(0.0), state, seen) == [[1]]  # the first is always free
    certain = told(entropy=[[0.0, 0.0, 1.0, 2.0]])
    assert picked(EntropyBound(0.0), state, certain) == [[0, 1, 2]]


def test_entropy_threshold_by_hand() -> None:
    state, seen = state_of(["...."]), told(entropy=[[0.2, 0.19, 0.3, 0.1]])
    assert picked(EntropyThreshold(), state, seen) == [[1, 3]]  # below 0.2, not at it
    assert picked(EntropyThreshold(0.25), state, seen) == [[0, 1, 3]]
    assert picked(EntropyThreshold(0.05), state, seen) == [[3]]


def test_jot_asks_less_beside_what_is_known() -> None:
    """Weights 1/2 and 1/4 on both sides, 3/2 in all; k at positions 1, 2, 3 is (0.5 + 0) / 1.5, 0.25 / 1.5, 0."""
    state = state_of(["x....."])
    rule = JoT(high=31.0, low=1.0, gamma=0.5, distance=2)
    bars = [0.0, 31 - 30 / 3, 31 - 30 / 6, 31.0, 31.0, 31.0]  # 21, 26
    for step, expected in ((1e-9, [1, 2, 3, 4]), (-1e-9, [1])):
        gaps = [[math.log(bar) + step if 1 <= i <= 4 else 0.0 for i, bar in enumerate([1.0, *bars[1:]])]]
        scores = [[0.0, 0.5, 0.1, 0.1, 0.1, 0.1]]
        assert picked(rule, state, told(gap=gaps), scores) == [expected]


def test_jot_knows_the_prompt_and_not_the_padding() -> None:
    ratio, scores = 22.0, [[0.1, 0.1, 0.1, 0.5]]
    seen = told(gap=[[math.log(ratio), 0.0, 0.0, 0.0]])
    rule = JoT(high=31.0, distance=1)  # one known neighbour of two: 16
    beside = state_of(["...."], prompt=(7, 8))
    assert picked(rule, beside, seen, scores) == [[0]]
    beside.valid[:, :] = torch.tensor([False, False, True, True, True, True])
    assert picked(rule, beside, seen, scores) == [[3]]  # as if there were no prompt: 31
    assert picked(rule, state_of(["...."]), seen, scores) == [[3]]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [3, 6]),  # bars of 22.7, 26.4 and 28.2 at distances 1, 2 and 3
        ({"high": 25.0}, [3, 5, 6, 7]),
        ({"low": 29.0}, [0]),  # none, so the best by score
        ({"gamma": 0.0}, [3, 5]),  # the nearest alone: 15.5
        ({"gamma": 1.0}, [0]),  # 1 of 16, near or far: 28.2
        ({"distance": 2}, [3, 5, 6]),  # 20.3, 25.2, and no help further out
    ],
)
def test_every_parameter_of_jot_matters(changed: dict[str, Any], expected: list[int]) -> None:
    state = state_of(["....x...."])
    seen = told(gap=[[math.log(ratio) for ratio in (1, 1, 1, 23, 1, 21, 27, 25, 1)]])
    assert picked(JoT(**changed), state, seen, [[0.9] + [0.1] * 8]) == [expected]


def _threshold(seen: dict[int, Any]) -> set[int]:
    return {i for i, (confidence, _, _) in seen.items() if confidence >= 0.75}


def _factor(seen: dict[int, Any]) -> set[int]:
    order = sorted(seen, key=lambda i: (-seen[i][0], -seen[i][2], i))
    sizes = [n for n, i in enumerate(order, 1) if (n + 1) * (1 - seen[i][0]) < 1.0]
    return set(order[: max(sizes, default=0)])


def _frechet(seen: dict[int, Any]) -> set[int]:
    order = sorted(seen, key=lambda i: (-seen[i][0], -seen[i][2], i))
    sums = [sum(seen[i][0] for i in order[:n]) for n in range(1, len(order) + 1)]
    sizes = [n for n, i in enumerate(order, 1) if max(0, sums[n - 1] - (n - 1)) - (1 - seen[i][0]) > 0.25]
    return set(order[: max(sizes, default=0)])


def _entropy_bound(seen: dict[int, Any]) -> set[int]:
    order = sorted(seen, key=lambda i: (seen[i][1], -seen[i][2], i))
    lists = [[seen[i][1] for i in order[:n]] for n in range(len(order) + 1)]
    sizes = [n for n in range(1, len(order) + 1) if lists[n][-1] < math.inf and sum(lists[n]) - max(lists[n]) <= 0.5]
    return set(order[: max(sizes, default=0)])


def _entropy_threshold(seen: dict[int, Any]) -> set[int]:
    return {i for i, (_, entropy, _) in seen.items() if entropy < 0.5}


ORACLES: list[tuple[Any, Callable[[dict[int, Any]], set[int]]]] = [
    (Threshold(0.75), _threshold),
    (Factor(1.0), _factor),
    (Frechet(0.25), _frechet),
    (EntropyBound(0.5), _entropy_bound),
    (EntropyThreshold(0.5), _entropy_threshold),
]
# Sixteenths are exact in either precision, and make ties common.
sixteenths: Any = st.integers(0, 16).map(lambda n: n / 16)
entropies: Any = st.one_of(st.integers(0, 16).map(lambda n: n / 16), st.just(math.inf))


@st.composite
def boards(draw: st.DrawFn) -> tuple[list[str], int, list[list[tuple[float, float, float]]]]:
    """Rows of masks, a block length, and for each position its confidence, entropy and score."""
    length = draw(st.integers(1, 9))
    row: Any = st.text("..x", min_size=length, max_size=length)
    cells: Any = st.lists(st.tuples(sixteenths, entropies, sixteenths), min_size=length, max_size=length)
    rows = draw(st.integers(1, 3))
    return (
        draw(st.lists(row, min_size=rows, max_size=rows)),
        draw(st.integers(1, 9)),
        draw(st.lists(cells, min_size=rows, max_size=rows)),
    )


@settings(max_examples=150, deadline=None)
@given(boards(), st.sampled_from(ORACLES), st.sampled_from([torch.float32, torch.float64]))
def test_rules_are_what_plain_python_says(board: Any, pair: Any, dtype: torch.dtype) -> None:
    """Whatever the fill of each row, with unread positions (no confidence, infinite entropy) and with ties."""
    (texts, block, cells), (rule, oracle) = board, pair
    state = state_of(texts, block)
    confidence, entropy, scores = ([[cell[k] for cell in row] for row in cells] for k in range(3))
    found = picked(rule, state, told(dtype, confidence=confidence, entropy=entropy), scores)
    for text, row, positions in zip(texts, cells, found, strict=True):
        masks = [i for i, letter in enumerate(text) if letter == "."]
        here = [i for i in masks if i // block == masks[0] // block]
        expected = oracle({i: row[i] for i in here})
        if here and not expected:
            expected = {min(here, key=lambda i: (-row[i][2], i))}
        assert positions == sorted(expected)


@pytest.mark.parametrize("rule", RULES)
def test_one_goes_where_nothing_is_known(rule: Transfer) -> None:
    """A step that read nothing of the block: the least certainty everywhere, and a score of -inf."""
    state = state_of(["x...", "xxx.", "xxxx"], block=2)
    nothing = told(confidence=[[0.0] * 4] * 3, entropy=[[math.inf] * 4] * 3, gap=[[0.0] * 4] * 3)
    assert picked(rule, state, nothing, [[-math.inf] * 4] * 3) == [[1], [3], []]


def cautious(rule: Any) -> Any:
    """The same rule with parameters under which it allows nothing."""
    changes = {Threshold: {"value": 1.0}, Factor: {"factor": 0.0}, Frechet: {"margin": 1.0}, JoT: {"low": 30.0}}
    changes |= {EntropyBound: {"bound": 0.0}, EntropyThreshold: {"entropy": 0.0}}
    return replace(rule, **changes[type(rule)])


@pytest.mark.parametrize("rule", RULES)
def test_the_budget_tops_up_only_where_asked(rule: Any) -> None:
    """With fewer steps than masks a rule still fills one mask where it allows none; `paced` goes at Quota's pace."""
    rule, state = cautious(rule), state_of(["." * 8], steps=3)
    seen = told(
        confidence=[[0.1 + i / 100 for i in range(8)]],
        entropy=[[2 - i / 100 for i in range(8)]],
        gap=[[0.1 + i / 100 for i in range(8)]],
    )
    assert picked(rule, state, seen) == [[7]]
    assert picked(Paced(rule), state, seen) == [[5, 6, 7]]
    assert picked(Quota(), state, seen) == [[5, 6, 7]]


def test_paced_keeps_what_its_rule_allows() -> None:
    state, seen = state_of(["." * 8], steps=4), told(confidence=[[0.95] * 5 + [0.1] * 3])
    assert picked(Threshold(), state, seen) == picked(Paced(), state, seen) == [[0, 1, 2, 3, 4]]
    assert picked(Quota(), state, seen) == [[0, 1]]
    one = told(confidence=[[0.95, 0.2, 0.1, 0.3, 0.1, 0.1, 0.1, 0.1]])
    assert picked(Threshold(), state, one) == [[0]]
    assert picked(Paced(), state, one) == [[0, 3]]  # the sure one, and the next best to keep the pace
    assert picked(Paced(Threshold(0.15)), state, one) == [[0, 1, 3]]


@pytest.mark.parametrize("rule", RULES)
def test_a_budget_that_suffices_changes_nothing(rule: Any) -> None:
    """Published parallel rules ignore the step budget: blocks have no deadlines and nothing is topped up."""
    score: Any = Entropy() if isinstance(rule, EntropyBound | EntropyThreshold) else Confidence()
    differs = 0
    for seed in range(4):
        model, layout = network(seed, spread=4.0), Layout(32)
        recipe = Recipe(block_length=4, score=score, transfer=rule)
        state, steps = run(model, [Request((1, 2), layout, recipe)])
        short = replace(recipe, steps=len(steps))
        again, taken = run(model, [Request((1, 2), layout, short)])
        assert (again.window.tolist(), len(taken)) == (state.window.tolist(), len(steps))
        assert not any(step.move.forced.any() for step in taken)
        _, paced = run(model, [Request((1, 2), layout, replace(short, transfer=Paced(rule)))])
        differs += [step.filled.tolist() for step in paced] != [step.filled.tolist() for step in steps]
    assert differs, "topping up changes what is filled when"


def test_a_budget_that_ends_too_early_forces_the_rest() -> None:
    model, recipe = network(1), Recipe(steps=3, block_length=8, transfer=Threshold(1.0))
    state, steps = run(model, [Request((1, 2), Layout(16), recipe)])
    assert not state.blank.any()
    assert [int(step.filled.sum()) for step in steps] == [1, 1, 14]
    assert [int(step.move.forced.sum()) for step in steps] == [0, 0, 13]  # one would have been filled in any case
    _, paced = run(model, [Request((1, 2), Layout(16), replace(recipe, transfer=Paced(Threshold(1.0))))])
    assert [int(step.filled.sum()) for step in paced] == [4, 4, 8]
    assert not any(step.move.forced.any() for step in paced)


def test_a_deferred_end_waits_however_sure_it_is() -> None:
    state = with_fields(state_of(["...."]), end_ids=(2,))
    seen = told(confidence=[[0.99, 0.95, 0.2, 0.97]], entropy=[[0.01, 0.05, 2.0, 0.06]])
    seen.tokens = torch.tensor([[2, 4, 4, 4]])
    for rule in (Threshold(), Factor(), Frechet(), EntropyBound(), EntropyThreshold()):
        assert rule(Confidence()(seen, state), seen, state)[0].tolist() == [True, True, False, True]
        assert rule(Deferred()(seen, state), seen, state)[0].tolist() == [False, True, False, True]
    last = with_fields(state_of(["..x."]), end_ids=(2,))
    seen.tokens = torch.tensor([[2, 2, 4, 2]])
    scores = Deferred()(seen, last).masked_fill(~last.eligible, -torch.inf)
    assert Threshold()(scores, seen, last)[0].tolist() == [
        True,
        False,
        False,
        False,
    ]  # nothing else is left: one by one


@pytest.mark.parametrize("kind", ["toy", "network"])
@pytest.mark.parametrize("steps", [None, 16, 10, 5, 1])
def test_a_paced_threshold_that_nothing_reaches_is_quota(kind: str, steps: int | None) -> None:
    model = Double(model_of(kind, 5))
    sets = []
    for transfer in (Quota(), Paced(Threshold(1.0))):
        requests = [Request((1, 2)[: row + 1], Layout(16), Recipe(steps, 8, transfer=transfer)) for row in range(2)]
        state, taken = run(model, requests)
        assert all(float(step.beliefs.confidence.max()) < 1 for step in taken)
        sets.append((state.window.tolist(), [step.filled.tolist() for step in taken]))
    assert sets[0] == sets[1]


@pytest.mark.parametrize("rule", RULES)
def test_fewer_steps_are_taken(rule: Transfer) -> None:
    """On a model that is sure of a few things; the text has as many tokens as ever."""
    score: Any = Entropy() if isinstance(rule, EntropyBound | EntropyThreshold) else Confidence()
    taken = {}
    for transfer in (Quota(), rule):
        recipe = Recipe(block_length=8, score=score, transfer=transfer)
        state, steps = run(network(1, spread=4.0), [Request((1, 2), Layout(32), recipe)])
        assert not state.blank.any()
        assert sum(int(step.filled.sum()) for step in steps) == 32
        taken[transfer] = len(steps)
    assert taken[Quota()] == 32
    assert taken[rule] < 28


def test_orders_are_by_score_where_the_rule_is_silent() -> None:
    """The rule reads confidence; which mask goes alone is the score's to say."""
    state, seen = state_of(["..."]), told(confidence=[[0.5, 0.4, 0.3]])
    assert picked(Threshold(), state, seen, [[0.1, 0.2, 0.3]]) == [[2]]
    assert picked(Factor(0.5), state, seen, [[0.1, 0.2, 0.3]]) == [[2]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Threshold(1.5), "threshold's value must be from 0 to 1, got 1.5"),
        (lambda: Threshold(relax=-0.1), "threshold's relax must be from 0 to 1, got -0.1"),
        (lambda: Factor(-1.0), "factor's factor must be at least 0, got -1.0"),
        (lambda: Frechet(2.0), "frechet's margin must be from 0 to 1, got 2.0"),
        (lambda: EntropyBound(math.nan), "entropy_bound's bound must be at least 0, got nan"),
        (lambda: EntropyThreshold(-0.2), "entropy_threshold's entropy must be at least 0, got -0.2"),
        (lambda: JoT(high=0.5), r"jot's high must be from 1 to 1000000, got 0.5"),
        (lambda: JoT(low=0.0), r"jot's low must be from 1 to 1000000, got 0.0"),
        (lambda: JoT(high=2.0, low=3.0), "jot needs low <= high, got low=3.0, high=2.0"),
        (lambda: JoT(gamma=1.5), "jot's gamma must be from 0 to 1, got 1.5"),
        (lambda: JoT(distance=0), "jot's distance must be from 1 to 1024, got 0"),
    ],
)
def test_bad_parameters_are_named(make: Callable[[], Transfer], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_only_those_that_let_the_model_decide_are_parallel() -> None:
    assert all(rule.parallel for rule in RULES)
    assert not Quota().parallel
