"""Caches and windows: exact where they promise to be, and cheaper in the way they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import foretell
from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.scheduler import Scheduler
from foretell.errors import RecipeError
from foretell.loop.decode import decode, denoise_step
from foretell.loop.parts import KVStore, Plan
from foretell.loop.protocols import Denoiser, Inputs, Readout
from foretell.loop.view import StateView
from foretell.loop.wrappers import Shifted
from foretell.policies.cache.delayed import Delayed
from foretell.policies.cache.drift import Drift
from foretell.policies.cache.dual import Dual
from foretell.policies.cache.off import Off
from foretell.policies.cache.prefix import Prefix
from foretell.policies.cache.refresh import needs_refresh
from foretell.policies.score.deferred import Deferred
from foretell.policies.score.entropy import Entropy
from foretell.policies.score.filtered import Filtered
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.policies.transfer.opening import Opening
from foretell.policies.transfer.threshold import Threshold
from foretell.policies.verify.recheck import Recheck
from foretell.policies.visible.decayed import Decayed
from foretell.policies.visible.everything import Everything
from foretell.policies.visible.near import Near
from foretell.recipes.recipe import Recipe
from tests.helpers import PLAIN_AND_PACKED, SOUGHT, WORDS, network, run

END = 2
WINDOWS = [Everything(), Near(2), Near(0), Decayed(6)]
STORES = [Prefix(), Prefix(3), Dual(), Dual(2), Delayed(), Delayed(2), Delayed(0), Drift(), Drift(0.0), Drift(1.0)]
STORES += [Prefix(lead=False), Dual(lead=False)]


@dataclass
class Spy:
    """A denoiser that remembers what it was asked."""

    inner: Denoiser
    seen: list[Inputs] = field(default_factory=list)

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        self.seen.append(inputs)
        return self.inner(inputs)

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)


def requests(recipe: Recipe, rows: int = 4, length: int = 14) -> list[Request]:
    """Prompts of different lengths, a suffix and an answer of two tokens at the end."""
    layout = Layout.with_suffix(length, [5, 6], 2)
    return [Request(tuple(range(3, 5 + 2 * row)), layout, recipe, seed=row) for row in range(rows)]


@PLAIN_AND_PACKED
@pytest.mark.parametrize("wrap", [lambda model: model, Shifted], ids=["llada", "dream"])
@pytest.mark.parametrize("cache", [Prefix(1), Dual(1), Delayed(1)], ids=str)
@pytest.mark.parametrize("stop", [Recipe().stop, Prophet(Linear(3, 1))], ids=["never", "prophet"])
def test_refreshed_every_step_is_off(wrap: Callable[[Any], Denoiser], cache: Any, stop: Any, packed: bool) -> None:
    for seed in range(4):
        recipe, model = Recipe(block_length=5, stop=stop, score=Entropy()), wrap(network(seed, packed=packed))
        exact, _ = run(model, requests(recipe))
        cached, _ = run(model, requests(replace(recipe, cache=cache)))
        assert torch.equal(cached.window, exact.window)
        assert torch.equal(cached.step, exact.step)


@pytest.mark.parametrize("cache", [Off(), *STORES], ids=str)
@pytest.mark.parametrize("window", [Near(14), Decayed(14, 0.0)], ids=str)
def test_a_window_as_wide_as_the_canvas_is_none(cache: Any, window: Any) -> None:
    recipe = Recipe(block_length=4, cache=cache, stop=Prophet(Linear(4, 1)))
    narrow = replace(recipe, cache=replace(cache, visible=window))
    for seed in range(3):
        (one, _), (other, _) = run(network(seed), requests(recipe)), run(network(seed), requests(narrow))
        assert torch.equal(one.window, other.window)
        assert torch.equal(one.meters.needed, other.meters.needed)


caches: Any = st.builds(
    lambda cache, window: replace(cache, visible=window), st.sampled_from([Off(), *STORES]), st.sampled_from(WINDOWS)
)
recipes: Any = st.builds(
    Recipe,
    steps=st.one_of(st.none(), st.integers(2, 20)),
    block_length=st.sampled_from([3, 5, None]),
    stop_at_eos=st.booleans(),
    guidance=st.sampled_from([0.0, 0.0, 1.0]),
    guidance_pins=st.booleans(),
    cache=caches,
    score=st.sampled_from([Recipe().score, Deferred(renormalize=True), Filtered(top_k=3)]),
    region=st.sampled_from([Recipe().region, *SOUGHT]),
    stop=st.sampled_from([Recipe().stop, Prophet(Linear(4, 1)), Prophet(Linear(2, 0), reduce="min"), Persistent(2)]),
    verify=st.sampled_from([Recipe().verify, Recheck(), Recheck(3, 0.9), Recheck(2, 0.9, answer=False)]),
)


@settings(max_examples=25, deadline=None)
@given(recipes, st.integers(0, 99), st.booleans(), st.integers(1, 3))
def test_batch_is_singles_is_scheduler(recipe: Recipe, seed: int, shifted: bool, room: int) -> None:
    """Rows that join late and leave early share a store with others, and nothing else."""
    model: Denoiser = Shifted(network(seed)) if shifted else network(seed)
    asked = requests(recipe)
    together, _ = run(model, asked, (END,))
    outcomes = {one.ticket: one for one in Scheduler(model, (END,), max_batch=room, spelling=WORDS).run(asked)}
    for row, request in enumerate(asked):
        alone, _ = run(model, [request], (END,))
        assert alone.window[0].tolist() == together.window[row].tolist() == list(outcomes[row].tokens)
        assert int(alone.meters.forwards[0]) == int(together.meters.forwards[row])
        assert int(alone.meters.needed[0]) == int(together.meters.needed[row])
        assert model.mask_id not in outcomes[row].tokens


@settings(max_examples=25, deadline=None)
@given(recipes, st.integers(0, 99))
def test_observing_changes_nothing(recipe: Recipe, seed: int) -> None:
    model, asked = network(seed), requests(recipe, rows=2)
    plain, _ = run(model, asked, (END,))
    watched = lay_out(asked, model.mask_id, (END,), spelling=WORDS)
    for step in decode(model, watched, recipe):
        assert step.draft.shape == step.beliefs.entropy.shape
        watched = step.after
    assert torch.equal(plain.window, watched.window)
    assert torch.equal(plain.draft, watched.draft)
    assert torch.equal(plain.meters.needed, watched.meters.needed)


def columns_of(recipe: Recipe, model: Denoiser | None = None, length: int = 12, **layout: Any) -> Iterator[list[int]]:
    """The columns that each pass of one row computed."""
    spy = Spy(model or network(0))
    run(spy, [Request((3, 4), Layout(length, **layout), recipe)], (END,))
    return (inputs.columns[0].tolist() for inputs in spy.seen)


def test_what_each_cache_computes() -> None:
    every, block = list(range(14)), Recipe(block_length=4)
    assert all(columns == every for columns in columns_of(block))
    for cache, inner in ((Prefix(), [14, 14, 14]), (Dual(), [6, 10, 14])):
        passes = list(columns_of(replace(block, cache=cache)))
        for number, end in enumerate(inner):
            assert passes[4 * number] == every
            assert all(
                sorted(one) == list(range(2 + 4 * number, end)) for one in passes[4 * number + 1 : 4 * number + 4]
            )


def test_dream_queries_a_block_from_the_column_before_it() -> None:
    spy = Spy(network(0))
    run(Shifted(spy), [Request((3, 4), Layout(12), Recipe(block_length=4, cache=Dual()))])
    assert [sorted(one.columns[0].tolist()) for one in spy.seen[1:4]] == [list(range(1, 6))] * 3
    assert [sorted(one.columns[0].tolist()) for one in spy.seen[5:8]] == [list(range(5, 10))] * 3


def test_dream_without_the_lead_queries_the_block_alone_once_its_first_token_is_filled() -> None:
    spy = Spy(network(0))
    recipe = Recipe(block_length=4, cache=Dual(lead=False), transfer=Opening(Threshold()))
    run(Shifted(spy), [Request((3, 4), Layout(12), recipe)])
    assert sorted(spy.seen[1].columns[0].tolist()) == [2, 3, 4, 5]
    late = Spy(network(0))
    run(Shifted(late), [Request((3, 4), Layout(12), replace(recipe, transfer=Last()))])
    assert sorted(late.seen[1].columns[0].tolist()) == [1, 2, 3, 4, 5]  # while that is a mask it is read


def test_what_a_rule_reads_has_its_lead() -> None:
    """The first token of the second block is filled, and the answer."""
    spy, stop = Spy(network(0)), Prophet(Linear(1e6, 1e6))
    recipe = Recipe(block_length=4, cache=Dual(lead=False), transfer=Opening(Recipe().transfer), stop=stop)
    run(Shifted(spy), [Request((3, 4), Layout(12, answer=(4, 1)), recipe)])
    assert sorted(spy.seen[5].columns[0].tolist()) == [5, 6, 7, 8, 9]


@dataclass(frozen=True)
class Last:
    """Fills masks from the right."""

    parallel = False

    def __call__(self, scores: Tensor, beliefs: Any, state: StateView) -> Tensor:
        return state.eligible & (state.eligible.flip(1).cumsum(dim=1).flip(1) == 1)


@dataclass(frozen=True)
class Apart:
    """Computes the block, and one mask apart from it that no policy reads."""

    stores = True

    def __call__(self, state: StateView) -> Plan:
        return Plan(needs_refresh(state, 0), state.in_block | (state.positions == 9), None, lead=False)


def test_a_mask_has_its_lead_though_no_policy_reads_it() -> None:
    """A commit would read it from this pass."""
    spy = Spy(network(0))
    run(Shifted(spy), [Request((3, 4), Layout(12), Recipe(block_length=4, transfer=Opening(), cache=Apart()))])
    assert sorted(spy.seen[1].columns[0].tolist()) == [2, 3, 4, 5, 10, 11]


def test_delayed_computes_a_token_once_after_it_was_written() -> None:
    spy, recipe = Spy(network(0)), Recipe(block_length=4, cache=Delayed(refresh=0))
    state = lay_out([Request((3, 4), Layout(8), recipe)], 0)
    written: list[int] = []
    for taken in decode(spy, state, recipe):
        computed = set(spy.seen[-1].columns[0].tolist())
        if written:
            assert computed == {c + 2 for c in range(8) if c not in written[:-1]}
        written += taken.filled[0].nonzero().squeeze(1).tolist()
    assert len(spy.seen) == 8


def test_the_answer_rides_along_with_a_cached_block() -> None:
    recipe = Recipe(block_length=4, cache=Dual(), stop=Prophet(Linear(1e6, 1e6)))
    passes = list(columns_of(recipe, answer=(10, 2)))
    assert sorted(passes[1]) == [2, 3, 4, 5, 12, 13]


def test_an_early_commit_computes_what_the_block_did_not() -> None:
    recipe = Recipe(block_length=4, cache=Dual(), stop=Prophet(Linear(-1, -1)))
    at_once = Request((3, 4), Layout(12, answer=(10, 2)), recipe)
    state, steps = run(network(0), [at_once])
    assert (len(steps), int(state.meters.forwards[0]), int(state.meters.needed[0])) == (
        1,
        1,
        14,
    )  # a full pass has everything
    later = replace(at_once, recipe=replace(recipe, stop=Prophet(Linear(1e6, -12e6))))
    state, steps = run(network(0), [later])
    assert (len(steps), int(state.meters.forwards[0]), int(state.meters.needed[0])) == (2, 3, 14 + 6 + 14)
    assert not state.blank.any()


def test_drift_refreshes_when_drafts_move() -> None:
    made = []
    for share in (0.0, 0.5, 1.0):
        state, _ = run(network(1), [Request((3, 4), Layout(24), Recipe(block_length=8, cache=Drift(share)))])
        made.append(int(state.meters.needed[0]))
    assert made[0] > made[1] > made[2]


def test_windows_leave_the_far_suffix_out_and_keep_the_answer() -> None:
    recipe = Recipe(block_length=4, cache=Off(Near(2)))
    layout: dict[str, Any] = {"pins": ((8, 5),), "answer": (9, 2)}
    first = next(iter(columns_of(recipe, length=16, **layout)))
    assert sorted(first) == [0, 1, *(2 + c for c in (0, 1, 2, 3, 4, 5, 8, 9, 10, 15))]
    state, _ = run(network(0), [Request((3, 4), Layout(16, **layout), recipe)])
    assert int(state.meters.needed[0]) < 16 * 18
    assert not state.blank.any()


def test_near_keeps_as_many_as_it_says() -> None:
    sizes = [len(next(iter(columns_of(Recipe(block_length=4, cache=Off(Near(n))))))) for n in (0, 3, 7, 99)]
    assert sizes == [7, 10, 14, 14]


def test_decayed_thins_out_with_distance_by_the_rows_seed() -> None:
    def kept(window: Decayed, seed: int) -> Tensor:
        recipe = Recipe(block_length=8, cache=Off(window))
        shown = window(lay_out([Request((3,), Layout(512), recipe, seed)], 0))
        return shown[0]

    assert not torch.equal(kept(Decayed(), 0), kept(Decayed(), 1))
    assert torch.equal(kept(Decayed(), 1), kept(Decayed(), 1))
    near, far = kept(Decayed(), 0)[8:100].float().mean(), kept(Decayed(), 0)[150:264].float().mean()
    assert near > 0.7
    assert far < 0.3
    assert not kept(Decayed(100), 0)[108:].any()
    assert kept(Decayed(steepness=9.0), 0).sum() < kept(Decayed(), 0).sum()


@pytest.mark.parametrize("cache", [Off(), Prefix(), Dual(), Delayed(), Off(Near(2))], ids=str)
def test_nothing_behind_an_end_is_computed(cache: Any) -> None:
    saved = 0
    for seed in range(12):
        spy, recipe = Spy(network(seed, vocab=6)), Recipe(block_length=4, cache=cache, stop_at_eos=True)
        state = lay_out([Request((3,), Layout(24), recipe)], 0, (END,))
        while not state.done.all():
            ended, before = state.ended[0], len(spy.seen)
            state = denoise_step(spy, state, recipe).after
            behind = {1 + c for c in (ended & state.ended[0]).nonzero().squeeze(1).tolist()[1:]}
            for inputs in spy.seen[before:]:
                assert not behind & set(inputs.columns[0].tolist())
                assert not inputs.attend[0, sorted(behind)].any()
            saved += len(behind)
    assert saved > 20


def test_guidance_and_bans_compose_with_a_cache() -> None:
    recipe = Recipe(block_length=4, guidance=1.0, ban_eos=True)
    exact, _ = run(network(3), requests(recipe), (END,))
    cached, _ = run(network(3), requests(replace(recipe, cache=Dual(1))), (END,))
    assert torch.equal(exact.window, cached.window)


@pytest.mark.parametrize(
    "text",
    ["dual(refresh=-1)", "prefix(refresh=1.5)", "drift(share=2)", "off(window=near(-1))", "dual(window=decayed(0))"],
)
def test_bad_values_are_named(text: str) -> None:
    with pytest.raises(RecipeError, match=r"(-1|1\.5|2|0)"):
        foretell.parse(f"full cache={text}")


def test_caches_have_a_text() -> None:
    recipe = Recipe(cache=Dual(refresh=3, visible=Near(16)), verify=Recheck(3, 0.4))
    assert foretell.parse(str(recipe)) == recipe
    assert foretell.parse("full cache=dual cache.visible=near(16) cache.refresh=3 verify=recheck(3,0.4)") == recipe
