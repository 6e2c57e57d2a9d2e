"""What no recipe may break, on random recipes, windows and batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foretell
from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.scheduler import Scheduler
from foretell.loop.decode import denoise_step
from foretell.policies.cache.delayed import Delayed
from foretell.policies.cache.drift import Drift
from foretell.policies.cache.dual import Dual
from foretell.policies.cache.off import Off
from foretell.policies.cache.prefix import Prefix
from foretell.policies.region.after import After
from foretell.policies.region.fixed import Fixed
from foretell.policies.region.masked import Masked
from foretell.policies.region.whole import Whole
from foretell.policies.sample.greedy import Greedy
from foretell.policies.sample.gumbel import Gumbel
from foretell.policies.sample.nucleus import Nucleus
from foretell.policies.score.confidence import Confidence
from foretell.policies.score.deferred import Deferred
from foretell.policies.score.entropy import Entropy
from foretell.policies.score.filtered import Filtered
from foretell.policies.score.margin import Margin
from foretell.policies.score.noisy import Noisy
from foretell.policies.score.random import Random
from foretell.policies.stop.combined import All
from foretell.policies.stop.combined import Any as AnyOf
from foretell.policies.stop.never import Never
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.scales import Gap, LogOdds, Ranks
from foretell.policies.stop.schedules import Cosine, Exponential, Linear, Staged
from foretell.policies.stop.stable import Stable
from foretell.policies.stop.sure import Sure
from foretell.policies.transfer.entropy_bound import EntropyBound
from foretell.policies.transfer.entropy_threshold import EntropyThreshold
from foretell.policies.transfer.factor import Factor
from foretell.policies.transfer.frechet import Frechet
from foretell.policies.transfer.jot import JoT
from foretell.policies.transfer.opening import Opening
from foretell.policies.transfer.quota import Quota
from foretell.policies.transfer.threshold import Threshold
from foretell.policies.transfer.timesteps import Timesteps
from foretell.policies.verify.recheck import Recheck
from foretell.policies.verify.trust import Trust
from foretell.policies.visible.decayed import Decayed
from foretell.policies.visible.everything import Everything
from foretell.policies.visible.near import Near
from foretell.recipes.recipe import Recipe
from tests.helpers import SOUGHT, WORDS, model_of, run

END = 2
schedules: Any = st.sampled_from([Staged(), Staged(3, 2, 1), Linear(4, 1), Cosine(), Exponential(5, 0, 2.0)])
SEQUENTIAL: list[Any] = [Quota(), Quota(idle=True), Timesteps(), Timesteps(independent=True), Opening(Quota())]
PARALLEL: list[Any] = [
    *(Threshold(), Threshold(0.4, relax=0.5), Factor(), Factor(2.0), Frechet(), Frechet(0.0)),
    *(EntropyBound(), EntropyBound(2.0), EntropyThreshold(), EntropyThreshold(1.5), JoT(), JoT(4.0, 1.5, 0.9, 3)),
    *(Threshold(0.4, by="score"), Factor(last=True), Opening()),
]


def stops(clocks: list[str | None]) -> Any:
    """Rules, and pairs of them, whose clock is one of `clocks`."""
    over = st.sampled_from(["all", "masked"])
    prophets = st.builds(
        Prophet,
        tau=schedules,
        reduce=st.sampled_from(["mean", "min", "quantile"]),
        q=st.sampled_from([0.0, 0.3, 1.0]),
        over=over,
        clock=st.sampled_from(clocks),
        one_based=st.booleans(),
        scale=st.sampled_from([Gap(), LogOdds(), Ranks()]),
    )
    entropies = st.builds(Sure, st.sampled_from([0.1, 1.0]), over)
    plain = st.sampled_from([Never(), Stable(2, 1.0), Stable(1, float("inf")), Persistent(1), Persistent(3)])
    single: Any = st.one_of(prophets, entropies, plain)
    return st.one_of(single, st.builds(All, st.tuples(single, single)), st.builds(AnyOf, st.tuples(single, single)))


WINDOWS: list[Any] = [Everything(), Near(2), Decayed(4)]
STORES: list[Any] = [Prefix(), Prefix(2), Dual(), Dual(3), Dual(lead=False), Delayed(), Delayed(2), Drift(), Drift(0.0)]
common: dict[str, Any] = {
    "cache": st.builds(Off, st.sampled_from(WINDOWS)),
    "verify": st.sampled_from([Trust(), Trust(), Recheck(), Recheck(4, 0.9), Recheck(2, 0.9, answer=False)]),
    "steps": st.one_of(st.none(), st.integers(1, 24)),
    "block_length": st.integers(1, 20),
    "stop_at_eos": st.booleans(),
    "ban_eos": st.sampled_from([False, True, "first"]),
    "guidance": st.sampled_from([0.0, 0.0, 1.5]),
    "guidance_pins": st.booleans(),
    "sample": st.sampled_from([Greedy(), Gumbel(0.7), Nucleus(1.0, 0.9, 5)]),
    "region": st.sampled_from([Fixed(), Fixed(1, 2), After(), After(1, 1), Whole(), Masked(), *SOUGHT]),
    "score": st.sampled_from(
        [
            *(Confidence(), Margin(), Entropy(), Random(), Deferred(Entropy()), Deferred(Filtered(), renormalize=True)),
            *(Filtered(Margin(), 0.5, 0.9, 3), Noisy(), Noisy(Deferred(), 0.1)),
        ]
    ),
}
recipes: Any = st.one_of(
    st.builds(Recipe, **common, transfer=st.sampled_from(SEQUENTIAL), stop=stops([None, "steps", "tokens"])),
    st.builds(Recipe, **common, transfer=st.sampled_from(PARALLEL), stop=stops(["steps", "tokens"])),
)


@st.composite
def batches(draw: st.DrawFn) -> list[Request]:
    recipe, length = draw(recipes), draw(st.integers(1, 16))
    requests = []
    for row in range(draw(st.integers(1, 4))):
        offsets = sorted(draw(st.sets(st.integers(0, length - 1), max_size=min(3, length - 1))))
        answer = (0, draw(st.integers(1, length))) if draw(st.booleans()) else None
        layout = Layout(length, tuple((o, draw(st.integers(1, 11))) for o in offsets), answer)
        own = replace(recipe, steps=draw(st.one_of(st.just(recipe.steps), st.integers(1, 24))))  # rows share all else
        requests.append(Request(tuple(draw(st.lists(st.integers(1, 11), max_size=4))), layout, own, seed=row * 7))
    return requests


@settings(max_examples=200, deadline=None)
@given(batches(), st.sampled_from([None, *STORES]), st.sampled_from(WINDOWS), st.integers(0, 99))
def test_every_step_keeps_the_promises(requests: list[Request], store: Any, window: Any, seed: int) -> None:
    """On a toy without a cache, and on a network with every cache and window."""
    model, recipe = model_of("network" if store else "toy", seed, vocab=12), requests[0].recipe
    if store:
        recipe = replace(recipe, cache=replace(store, visible=window))
    state = lay_out([replace(request, recipe=recipe) for request in requests], model.mask_id, (END,), spelling=WORDS)
    prompt, pinned = state.canvas[:, : state.prompt_length].clone(), state.window[state.pinned].clone()
    while not state.done.all():
        before, eligible, masked, step = state.window, state.eligible, state.masked, state.step
        done, checking, taken = state.done, state.checking, denoise_step(model, state, recipe)
        assert torch.equal(before, state.window)  # a step leaves the state before it as it was
        state = taken.after
        commits = taken.settled | checking | (step + 1 >= state.budget)
        assert torch.equal(state.canvas[:, : state.prompt_length], prompt)
        assert torch.equal(state.window[state.pinned], pinned)
        assert torch.equal(state.window[done], before[done])  # a row that has stopped never changes again
        assert torch.equal(state.step > step, ~done)  # a step rises for every live row, and no other
        assert not (taken.filled & ~torch.where(commits[:, None], masked, eligible) & ~state.ended).any()
        assert torch.equal(torch.where(state.blank, taken.draft, state.window), taken.draft)
        changed = state.window != before
        assert not (changed & ~masked & ~state.ended & ~(state.recheck.committed & checking[:, None])).any()
        if recipe.transfer == Quota() or recipe.transfer.parallel:
            assert (taken.filled.any(dim=1) | done | checking).all()  # at least one mask goes per step
    assert not state.blank.any()
    assert (state.step <= state.budget).all()
    if recipe.ban_eos:
        assert not (state.window[~state.pinned] == END).any()


@settings(max_examples=80, deadline=None)
@given(batches(), st.integers(0, 99), st.integers(1, 3))
def test_batch_equals_singles_equals_scheduler(requests: list[Request], seed: int, room: int) -> None:
    model = model_of("toy", seed, vocab=12)
    together, _ = run(model, requests, (END,))
    shuffled, _ = run(model, requests[::-1], (END,))
    assert torch.equal(shuffled.window.flip(0), together.window)
    outcomes = {one.ticket: one for one in Scheduler(model, (END,), max_batch=room, spelling=WORDS).run(requests)}
    for row, request in enumerate(requests):
        alone, _ = run(model, [request], (END,))
        assert alone.window[0].tolist() == together.window[row].tolist() == list(outcomes[row].tokens)
        assert int(alone.step[0]) == int(together.step[row]) == outcomes[row].steps


@settings(max_examples=200, deadline=None)
@given(recipes)
def test_recipes_survive_their_text(recipe: Recipe) -> None:
    assert foretell.parse(str(recipe)) == recipe
    assert hash(foretell.parse(str(recipe))) == hash(recipe)


def test_network_batches_agree() -> None:
    """The same promise for a real network, whose sums could depend on the batch."""
    model = model_of("network", 3)
    recipe = Recipe(block_length=4, stop=Prophet(Linear(3, 1)))
    requests = [Request(tuple(range(1, 3 + 2 * i)), Layout.with_suffix(12, [5, 6], 2), recipe) for i in range(5)]
    together, _ = run(model, requests)
    outcomes = {one.ticket: one for one in Scheduler(model, max_batch=2).run(requests)}
    for row, request in enumerate(requests):
        alone = run(model, [request])[0].window[0].tolist()
        assert alone == together.window[row].tolist() == list(outcomes[row].tokens)


def test_stop_at_eos_skips_what_is_behind() -> None:
    """Blocks behind an end of text are not computed but filled with it; those in front of its block are the same."""
    saved = 0
    for seed in range(8):
        model = model_of("toy", seed, vocab=6)
        whole = Request((1,), Layout(24), Recipe(block_length=4))
        short = Request((1,), Layout(24), Recipe(block_length=4, stop_at_eos=True))
        (full, _), (cut, steps) = run(model, [whole], (END,)), run(model, [short], (END,))
        text = cut.window[0].tolist()
        block = (text.index(END) if END in text else 24) // 4 * 4
        assert text[block + 4 :] == [END] * (20 - block)
        assert text[:block] == full.window[0].tolist()[:block]
        saved += 24 - len(steps)
    assert saved > 20


def test_an_end_before_a_pinned_suffix_ends_nothing() -> None:
    model = model_of("toy", 0, vocab=6)
    state = lay_out([Request((1,), Layout(8, ((0, END), (5, 3))), Recipe(stop_at_eos=True))], model.mask_id, (END,))
    assert not state.ended.any()
    assert int(state.masked.sum()) == 6
