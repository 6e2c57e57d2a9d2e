"""The loop against the oracle: token for token and step for step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foretell
from foretell.engine.request import Layout, Request, lay_out
from foretell.loop.decode import denoise_step
from foretell.loop.noise import draw_uniform
from foretell.models.transformer import Transformer
from foretell.policies.score.confidence import Confidence
from foretell.policies.score.entropy import Entropy
from foretell.policies.score.margin import Margin
from foretell.policies.score.random import Random
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear, Staged
from foretell.recipes.recipe import Recipe
from tests import reference
from tests.helpers import Double, logits_of, model_of, network, run

SCORES: dict[str, Any] = {
    "confidence": Confidence(),
    "margin": Margin(),
    "entropy": Entropy(),
    "random": Random(),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, int, Request, str]:
    """A random model, window, budget, suffix, region, threshold and remasking."""
    length = draw(st.integers(1, 20))
    offsets = draw(st.sets(st.integers(0, length - 1), max_size=min(4, length - 1)))
    start = draw(st.integers(0, length - 1))
    answer = (start, draw(st.integers(1, length - start))) if draw(st.booleans()) else None
    layout = Layout(length, tuple((o, draw(st.integers(1, 23))) for o in sorted(offsets)), answer)
    remasking = draw(st.sampled_from(sorted(SCORES)))
    tau: Any = draw(st.sampled_from([Staged(), Staged(2, 1, 0.5), Linear(), Linear(3, 0.5), Staged(9, 8, 7)]))
    stop: Any = draw(st.sampled_from([Never(), Prophet(tau), Prophet(tau, reduce="min"), Prophet(tau, one_based=True)]))
    recipe = Recipe(
        steps=draw(st.integers(1, 26)), block_length=draw(st.integers(1, 24)), score=SCORES[remasking], stop=stop
    )
    kind, seed = draw(st.sampled_from(["toy", "network"])), draw(st.integers(0, 2**20))
    # A network that sees nothing but masks says the same everywhere: its order is then decided by rounding alone.
    prompt = tuple(draw(st.lists(st.integers(1, 23), min_size=2 if kind == "network" else 0, max_size=5)))
    return kind, seed, Request(prompt, layout, recipe, seed=seed), remasking


def expected(model: Any, request: Request, remasking: str) -> reference.Run:
    """What the oracle makes of a request."""
    layout, stop = request.layout, request.recipe.stop
    window = [dict(layout.pins).get(i, model.mask_id) for i in range(layout.length)]
    region = range(layout.answer[0], sum(layout.answer)) if layout.answer else range(0)
    state = lay_out([request], model.mask_id)

    def draw(step: int, position: int) -> float:
        now = state.with_text(step=torch.tensor([step]))
        return float(draw_uniform(now, torch.tensor([0]), torch.tensor([position]), stream=3))

    return reference.decode(
        lambda canvas: logits_of(model, canvas, layout.length).tolist(),
        [*request.prompt, *window],
        layout.length,
        model.mask_id,
        request.budget,
        request.recipe.block_length or layout.length,
        answer=[at for at in region if at not in dict(layout.pins)],
        tau=(lambda p: float(stop.tau(torch.tensor([p], dtype=torch.float64)))) if isinstance(stop, Prophet) else None,
        remasking=remasking,
        draw=draw,
        one_based=isinstance(stop, Prophet) and stop.one_based,
        reduce=min if isinstance(stop, Prophet) and stop.reduce == "min" else lambda gaps: math.fsum(gaps) / len(gaps),
    )


@settings(max_examples=300, deadline=None)
@given(cases())
def test_agrees_with_algorithm_1(case: tuple[str, int, Request, str]) -> None:
    kind, seed, request, remasking = case
    model = Double(model_of(kind, seed))
    oracle = expected(model, request, remasking)
    state, steps = run(model, [request])
    assert state.window[0].tolist() == oracle.tokens
    assert int(state.step[0]) == oracle.steps
    assert [step.filled[0].nonzero().squeeze(1).tolist() for step in steps] == oracle.filled
    assert [i for i, step in enumerate(steps) if step.settled[0]] == ([] if oracle.exit is None else [oracle.exit])


@pytest.mark.parametrize("kind", ["toy", "network"])
def test_exits_differ_across_thresholds(kind: str) -> None:
    """The agreement above would be empty if every threshold stopped at the same step."""
    layout = Layout.with_suffix(24, [3, 4], 3)
    seen = set()
    for seed in (3, 4, 5):
        model, exits = Double(model_of(kind, seed)), []
        for high in (1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 9.0, math.inf):
            request = Request((1, 2), layout, Recipe(block_length=8, stop=Prophet(Linear(high, high))))
            _, steps = run(model, [request])
            assert len(steps) == expected(model, request, "confidence").steps
            exits.append(len(steps))
        assert exits == sorted(exits)
        assert exits[-1] == 22  # 24 positions, 2 of them pinned
        seen |= set(exits)
    assert len(seen) >= 5


def test_remaskings_fill_in_different_orders() -> None:
    model = model_of("network", seed=3)
    orders = set()
    for score in SCORES.values():
        _, steps = run(model, [Request((1,), Layout(16), Recipe(block_length=16, score=score))])
        orders.add(tuple(int(step.filled[0].int().argmax()) for step in steps))
    assert len(orders) >= 3


@pytest.mark.parametrize("budget", [1, 3, 8, 16])
def test_a_truncated_budget_is_kept(budget: int) -> None:
    """T < N: several masks a step, and never more than T steps."""
    state, steps = run(model_of("toy", 1), [Request((1,), Layout(16), Recipe(steps=budget, block_length=4))])
    assert len(steps) == budget
    assert not state.blank.any()
    sizes = [int(step.filled.sum()) for step in steps]
    assert sum(sizes) == 16
    if 16 % budget == 0 and budget >= 4:
        assert set(sizes) == {16 // budget}


def test_a_batch_shares_nothing_but_its_recipe() -> None:
    """Different prompt lengths, pins, regions and seeds, each row on its own clock."""
    recipe = Recipe(block_length=8, score=Random(), stop=Prophet(Linear(5, 2)))
    layouts = [Layout.with_suffix(16, [5, 6], 2), Layout(16, ((0, 7),), (8, 3)), Layout(16), Layout(16, (), (0, 16))]
    requests = [Request(tuple(range(1, 2 + 3 * i)), one, recipe, seed=i) for i, one in enumerate(layouts)]
    model = model_of("toy", 9)
    together, _ = run(model, requests)
    assert len(set(together.step.tolist())) > 1
    for row, request in enumerate(requests):
        alone, _ = run(model, [request])
        assert alone.window[0].tolist() == together.window[row].tolist()
        assert int(alone.step[0]) == int(together.step[row])
    shuffled, _ = run(model, requests[::-1])
    assert torch.equal(shuffled.window.flip(0), together.window)


def test_infinite_threshold_is_never() -> None:
    for seed in range(5):
        request = Request((1, 2), Layout.with_suffix(12, [3], 4), Recipe(block_length=6), seed=seed)
        never, _ = run(model_of("network", seed), [request])
        for tau in (Linear(math.inf, math.inf), Staged(math.inf, math.inf, math.inf)):
            patient = replace(request, recipe=replace(request.recipe, stop=Prophet(tau, over="masked")))
            state, steps = run(model_of("network", seed), [patient])
            assert torch.equal(never.canvas, state.canvas)
            assert not any(step.settled.any() for step in steps)


def test_gaps_of_a_half_precision_model_are_not_rounded() -> None:
    """In bfloat16 neighbouring logits are 1/16 apart or more; the gap that a rule reads is not."""
    request = Request((1, 2), Layout(8, answer=(0, 8)), Recipe(stop=Prophet()))
    rough, state = network(4).bfloat16(), lay_out([request], 0)
    gap = denoise_step(rough, state, request.recipe).beliefs.gap
    assert gap.dtype == torch.float32
    assert (gap >= 0).all()
    assert ((gap * 16) % 1 != 0).any()


@pytest.mark.parametrize(
    "text",
    [
        *("full", "prophet stop.reduce=min", "dream", "random", "margin", "sure", "stable", "sched", "swift", "jot"),
        *("entropy-bound", "factor", "frechet", "fast-dllm-prophet", "prefix", "delayed", "drift", "streaming"),
        *("full sample=gumbel(2.0) guidance=1.5", "dual sample=nucleus(2.0,0.9,5) guidance=1.5 ban_eos=true"),
        *("full score=deferred stop_at_eos=true", "prophet verify=recheck region=whole stop.tau.high=1"),
    ],
)
def test_a_head_needs_no_column_for_the_mask(text: str) -> None:
    """Without it, a decoding gives what it gives with it, where the mask is never proposed."""
    vocab, recipe = 23, foretell.parse(f"{text} block_length=4")
    whole = network(3, vocab=vocab + 1, mask_id=vocab)
    short = Transformer(replace(whole.config, outputs=vocab)).double()
    short.load_state_dict(
        {name: weight[:vocab] if name == "head.weight" else weight for name, weight in whole.state_dict().items()}
    )
    requests = [Request(prompt, Layout(10, ((5, 3),), (6, 3)), recipe) for prompt in ((4, 9), (1, 2, 7, 8))]
    states = [run(model, requests, end_ids=(2,))[0] for model in (whole, short.requires_grad_(False))]
    assert torch.equal(states[0].window, states[1].window)
    assert torch.equal(states[0].step, states[1].step)
    assert (states[1].window < vocab).all()
