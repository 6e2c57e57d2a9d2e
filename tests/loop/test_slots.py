"""Slots: what their automaton allows, how tokens are scored, and how rows with slots are decoded."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.scheduler import Scheduler
from foretell.errors import LayoutError
from foretell.loop.decode import decode
from foretell.loop.protocols import Inputs
from foretell.loop.slots import Edge, Slot, TokenAutomaton, single
from foretell.loop.wrappers import Guided, Suppressed, select_logits
from foretell.policies.cache.dual import Dual
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.policies.transfer.threshold import Threshold
from foretell.recipes.recipe import Recipe
from tests.helpers import network

VOCABULARY, MASK = 8, 7


def paths(automaton: TokenAutomaton, length: int) -> list[tuple[int, ...]]:
    """Return all allowed sequences, by enumeration."""
    edges = list(
        zip(
            automaton.source.tolist(),
            automaton.tokens[automaton.token].tolist(),
            automaton.target.tolist(),
            strict=True,
        )
    )
    found: list[tuple[tuple[int, ...], int]] = [((), 0)]
    for _ in range(length):
        found = [((*done, token), to) for done, state in found for at, token, to in edges if at == state]
    return [done for done, state in found if bool(automaton.final[state])]


@st.composite
def automata(draw: st.DrawFn) -> tuple[TokenAutomaton, int]:
    length = draw(st.integers(1, 4))
    edges: dict[tuple[int, int], int] = draw(
        st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 4)), st.integers(0, 3), min_size=1, max_size=12)
    )
    made = TokenAutomaton(
        [(at, token, to) for (at, token), to in edges.items()], draw(st.sets(st.integers(0, 3), min_size=1)), VOCABULARY
    )
    return made, length


@given(automata(), st.integers(0, 10**6), st.booleans())
@settings(max_examples=150, deadline=None)
def test_scores_equal_enumeration(made: tuple[TokenAutomaton, int], seed: int, equal: bool) -> None:
    automaton, length = made
    allowed = paths(automaton, length)
    if not allowed:
        with pytest.raises(LayoutError, match=f"no allowed sequence of a slot has {length} tokens"):
            Slot(0, length, automaton)
        return
    chance = torch.Generator().manual_seed(seed)
    count = len(automaton.tokens)
    logits = torch.zeros(1, length, count) if equal else torch.randn(1, length, count, generator=chance)
    target = allowed[int(torch.randint(len(allowed), (1,), generator=chance))]
    kept = (torch.rand(length, generator=chance) < 0.5).tolist()
    held = torch.tensor([[token if keep else MASK for token, keep in zip(target, kept, strict=True)]])
    scores = automaton.rank(logits, held)[0]
    place = {token: at for at, token in enumerate(automaton.tokens.tolist())}

    def total(path: tuple[int, ...], leave: int) -> float:
        return sum(float(logits[0, at, place[token]]) for at, token in enumerate(path) if at == leave or not kept[at])

    for at, token in product(range(length), place):
        ways = [
            total(path, at)
            for path in allowed
            if path[at] == token and all(not keep or i == at or path[i] == target[i] for i, keep in enumerate(kept))
        ]
        assert float(scores[at, place[token]]) == pytest.approx(max(ways, default=-inf), abs=1e-5)
    best = tuple(target[at] if kept[at] else int(automaton.tokens[scores[at].argmax()]) for at in range(length))
    assert best in allowed  # also if several sequences are equally good
    logs = logits[0].log_softmax(dim=-1)
    mass = sum(torch.stack([logs[at, place[token]] for at, token in enumerate(path)]).sum().exp() for path in allowed)
    assert automaton.log_sum(logs) == pytest.approx(float(torch.as_tensor(mass).log()), abs=1e-5)
    assert automaton.sequence(target) is not None
    assert all((automaton.sequence(one) is None) == (one not in allowed) for one in product(place, repeat=length))


TWO = TokenAutomaton([(0, 1, 1), (1, 2, 3), (0, 3, 2), (2, 4, 3)], [3], VOCABULARY)  # 1 2, or 3 4
FEW = single((2, 4), VOCABULARY)
RECIPES = [
    Recipe(block_length=None),
    Recipe(block_length=4, transfer=Threshold(0.5)),
    Recipe(block_length=4, cache=Dual(), transfer=Threshold(0.3)),
    Recipe(block_length=4, stop=Prophet(Linear(0.2, 0.1), reduce="min", clock="tokens"), stop_at_eos=True),
    Recipe(block_length=None, guidance=1.0, ban_eos=True),
]


def requests(recipe: Recipe) -> list[Request]:
    layouts = [
        Layout(10, ((6, 5),), slots=(Slot(7, 2, TWO), Slot(9, 1, FEW))),
        Layout(10, ((4, 5),), slots=(Slot(0, 1, FEW), Slot(5, 2, TWO), Slot(7, 2, TWO))),
        Layout(10, ((9, 5),), answer=(2, 3)),
    ]
    return [Request((seed, 1, 2)[: 1 + seed], layout, recipe) for seed, layout in enumerate(layouts)]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_slots_hold_allowed_sequences_in_any_batch(recipe: Recipe, seed: int) -> None:
    model = network(seed, VOCABULARY, MASK)
    asked = requests(recipe)
    done = {one.ticket: one for one in Scheduler(model, end_ids=(2,), max_batch=2).run(asked)}
    for ticket, request in enumerate(asked):
        (alone,) = Scheduler(model, end_ids=(2,)).run([request])
        for slot in request.layout.slots:
            held = done[ticket].tokens[slot.offset : slot.end]
            assert slot.automaton.sequence(held) is not None
            assert alone.tokens[slot.offset : slot.end] == held
        if not request.layout.slots:
            assert MASK not in done[ticket].tokens


def test_only_slots_have_to_be_filled() -> None:
    model = network(0, VOCABULARY, MASK)
    layout = Layout(10, slots=(Slot(9, 1, FEW),))
    recipe = Recipe(block_length=None, steps=1)
    (step,) = decode(model, lay_out([Request((1,), layout, recipe)], MASK), recipe)
    assert (step.after.window[0, :9] == MASK).all()
    assert int(step.after.window[0, 9]) in (2, 4)
    assert step.before.eligible[0].tolist() == [False] * 9 + [True]  # scratch is not read in the last step


def test_the_head_multiplies_only_allowed_tokens() -> None:
    model = network(0, VOCABULARY, MASK)
    wide: list[int] = []

    class Counting:
        """A readout that notes how many logits are computed."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __call__(self, row: Tensor, at: Tensor) -> Tensor:
            wide.append(len(at))
            made: Tensor = self.inner(row, at)
            return made

        def select(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
            assert tokens.tolist() == [2, 4]
            made: Tensor = self.inner.select(row, at, tokens)
            return made

    class Model:
        mask_id = MASK

        def __call__(self, inputs: Any) -> Any:
            return Counting(model(inputs))

        def new_cache(self, batch: int, length: int) -> Any:
            return model.new_cache(batch, length)

    recipe = Recipe(block_length=None, steps=1)
    layout = Layout(10, slots=(Slot(9, 1, FEW),))
    list(decode(Model(), lay_out([Request((1,), layout, recipe)], MASK), recipe))
    assert wide == []


@pytest.mark.parametrize(
    "wrap", [lambda model: model, lambda model: Suppressed(model, (2,)), lambda model: Guided(model, 1.5)]
)
def test_selected_logits_are_those_of_the_whole_head(wrap: Any) -> None:
    model = network(0, VOCABULARY, MASK)
    state = lay_out([Request((1, 2), Layout(4), Recipe())], MASK)
    columns = torch.arange(6)[None]
    inputs = Inputs(state.canvas, state.rows.text_positions, state.valid, columns, columns, prompt=2)
    with torch.inference_mode():
        readout = wrap(model)(inputs)
        row, at, tokens = torch.tensor([0, 0]), torch.tensor([3, 5]), torch.tensor([1, 4])
        torch.testing.assert_close(select_logits(readout, row, at, tokens), readout(row, at)[:, tokens])


@pytest.mark.parametrize(
    ("slots", "pins", "says"),
    [
        ((Slot(3, 2, TWO),), (), "does not fit a window of 4"),
        ((Slot(1, 2, TWO), Slot(2, 1, FEW)), (), "overlaps another one"),
        ((Slot(1, 2, TWO),), ((2, 1),), "position 2 is pinned, but a slot needs it too"),
    ],
)
def test_slots_that_do_not_fit(slots: tuple[Slot, ...], pins: tuple[tuple[int, int], ...], says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        Layout(4, pins, slots=slots)


@pytest.mark.parametrize(
    ("edges", "says"),
    [([], "at least one allowed token"), ([(0, 8, 1)], "must be from 0 to 7"), ([(0, -1, 1)], "must be from 0 to 7")],
)
def test_impossible_automata(edges: list[Edge], says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        TokenAutomaton(edges, [1], VOCABULARY)


def test_an_end_of_text_before_a_slot_does_not_end_the_row() -> None:
    recipe = Recipe(block_length=None, stop_at_eos=True)
    state = lay_out([Request((1,), Layout(6, slots=(Slot(5, 1, FEW),)), recipe)], MASK, end_ids=(2,))
    state = state.with_text(window=state.window.clone().index_fill(1, torch.tensor([0]), 2))
    assert state.masked[0, 5]
    assert not state.done[0]


def test_a_partial_pass_computes_all_positions_of_open_slots() -> None:
    recipe = Recipe(block_length=4, cache=Dual())
    asked = [one for one in requests(recipe) if one.layout.slots]
    partial = 0
    for step in decode(network(0, VOCABULARY, MASK), lay_out(asked, MASK), recipe):
        for one in step.ahead.passes:
            partial += not one.prompt
            for group in one.slots:
                for (_, offset), row, at in zip(group.keys, group.row, group.at, strict=True):
                    assert one.query[row][at].tolist() == list(range(offset, offset + len(at)))
    assert partial > 0
