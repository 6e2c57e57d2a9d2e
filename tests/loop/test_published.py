"""Published decoders: the recipes of docs/parity.md against plain loops, token for token."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from math import exp
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import foretell
from foretell.engine.request import Layout, Request, lay_out
from foretell.loop.decode import denoise_step
from foretell.loop.noise import draw_many, draw_uniform
from foretell.loop.wrappers import Shifted
from foretell.models.transformer import Transformer
from foretell.recipes.recipe import Recipe
from tests.helpers import PLAIN_AND_PACKED, logits_of, network, run
from tests.references import dream, fast_dllm, llada
from tests.references.distributions import Row, cut, without

PAGE = (Path(__file__).parents[2] / "docs" / "parity.md").read_text(encoding="utf8")
ENDS = (2, 5)  # an end of text, and one of a turn
VOCAB = 12
PINS = {5: 4, 6: 6}


def published(text: str, *changes: str) -> Recipe:
    """A recipe that stands in docs/parity.md, with its numbers changed to suit a small window."""
    assert f"`{text}`" in PAGE
    return foretell.parse(" ".join([text, *changes]))


def prompt_of(seed: int) -> list[int]:
    return [3 + (seed + i) % (VOCAB - 3) for i in range(2 + seed % 3)]


def every_column(model: Transformer, canvas: list[int]) -> list[Row]:
    rows: list[Row] = logits_of(model, canvas, len(canvas)).tolist()
    return rows


def draws(stream: int, seed: int) -> Callable[[int, int], float]:
    """The library's own random numbers, so that what is compared is what is made of them."""
    state = lay_out([Request((1,), Layout(64), seed=seed)], 0)

    def draw(step: int, position: int) -> float:
        state.step[:] = step
        return float(draw_uniform(state, torch.tensor([0]), torch.tensor([position]), stream))

    return draw


def noises(seed: int) -> Callable[[int, int], list[float]]:
    state = lay_out([Request((1,), Layout(64), seed=seed)], 0)

    def draw(step: int, position: int) -> list[float]:
        state.step[:] = step
        row: list[float] = draw_many(state, torch.tensor([0]), torch.tensor([position]), 1, VOCAB)[0].tolist()
        return row

    return draw


def decoded(model: Any, seed: int, recipe: Recipe, length: int, pins: dict[int, int]) -> tuple[list[int], int]:
    layout = Layout(length, tuple(sorted(pins.items())))
    state, steps = run(model, [Request(tuple(prompt_of(seed)), layout, recipe, seed=seed)], ENDS)
    return state.window[0].tolist(), len(steps)


LLADA: list[tuple[str, dict[str, Any]]] = [
    ("full", {}),
    ("random", {"random": partial(draws, 3)}),
    ("full sample=gumbel(1.0)", {"noise": noises, "temperature": 1.0}),
    ("full guidance=1.5 guidance_pins=true", {"cfg_scale": 1.5}),
    ("full ban_eos=first", {"logits_eos_inf": ENDS[0]}),
    ("full score=deferred(renormalize=true)", {"confidence_eos_eot_inf": ENDS}),
]


@PLAIN_AND_PACKED
@pytest.mark.parametrize(("text", "options"), LLADA, ids=[text for text, _ in LLADA])
@pytest.mark.parametrize("steps", [12, 6])
def test_llada(text: str, options: dict[str, Any], steps: int, packed: bool) -> None:
    recipe, plain = (published(one, f"steps={steps}", "block_length=4", "transfer.idle=true") for one in (text, "full"))
    different = 0
    for seed in range(4):
        model, pins = network(seed, VOCAB, packed=packed), PINS if seed % 2 else {}
        given = {name: value(seed) if callable(value) else value for name, value in options.items()}
        expected = llada.generate(
            partial(every_column, model), prompt_of(seed), 12, 0, steps=steps, block=4, pins=pins, **given
        )
        window, _ = decoded(model, seed, recipe, 12, pins)
        assert window == expected.window
        different += window != decoded(model, seed, plain, 12, pins)[0]
    assert (different > 0) == bool(options)


@pytest.mark.parametrize(
    ("text", "weaker"),
    [
        ("full guidance=1.5 guidance_pins=true", "full guidance=1.5"),
        ("full ban_eos=first", "full ban_eos=true"),
        ("full score=deferred(renormalize=true)", "full score=deferred"),
    ],
)
def test_the_options_differ_from_their_neighbours(text: str, weaker: str) -> None:
    """A released option is not what the option of a similar name does."""
    texts = [
        [decoded(network(seed, VOCAB), seed, foretell.parse(f"{one} block_length=6"), 12, PINS)[0] for seed in range(4)]
        for one in (text, weaker)
    ]
    assert texts[0] != texts[1]


RELEASED = "prophet region=after(length=5,skip=1) stop.one_based=true transfer.idle=true guidance_pins=true"
CASES = [  # thresholds and pins; the answer goes beyond the window, and not
    ((4.0, 2.5, 1.0), PINS),
    ((50.0, 3.0, 1.0), {0: 3, 1: 4}),
    ((50.0, 50.0, 2.0), {2: 3, 4: 4}),
]


@PLAIN_AND_PACKED
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_prophet_as_released(scale: float, packed: bool) -> None:
    """Tokens and steps; and each of the options that make it the released code is needed for that."""
    options = ["region.skip=0", "region.length=1", "stop.one_based=false", "transfer.idle=false"]
    options += ["guidance_pins=false"] if scale else []
    exits, needed = set(), set()
    for seed, (thresholds, pins) in product(range(2), CASES):
        model = network(seed, VOCAB, packed=packed)
        every = partial(every_column, model)
        expected = llada.generate(
            every, prompt_of(seed), 12, 0, steps=12, block=4, pins=pins, cfg_scale=scale, prophet=thresholds
        )
        exits.add(expected.exit)
        changes = ["block_length=4", f"guidance={scale}"]
        changes += [f"stop.tau.{name}={tau}" for name, tau in zip(("high", "mid", "low"), thresholds, strict=True)]
        for option in ["", *options]:
            found = decoded(model, seed, published(RELEASED, *changes, option), 12, pins)
            if found != (expected.window, expected.steps):
                needed.add(option)
    assert needed == set(options)
    assert len(exits) >= 2


DREAM: list[tuple[str, dict[str, Any]]] = [
    ("dream sample=greedy score=filtered(confidence)", {"alg": "maskgit_plus"}),
    ("dream sample=greedy score=filtered(margin)", {"alg": "topk_margin"}),
    ("dream sample=greedy score=filtered(entropy)", {"alg": "entropy"}),
    ("dream sample=greedy transfer=timesteps(independent=true)", {"alg": "origin"}),
    ("dream sample=greedy score=noisy(filtered(entropy),0.1)", {"alg": "entropy", "alg_temp": 0.1}),
    (
        "dream sample=nucleus(0.2,0.95,50) score=filtered(entropy,0.2,0.95,50)",
        {"alg": "entropy", "temperature": 0.2, "top_p": 0.95},
    ),
    (
        "dream sample=nucleus(0.2,0.95,50) score=filtered(confidence,0.2,0.95,50)",
        {"alg": "maskgit_plus", "temperature": 0.2, "top_p": 0.95},
    ),
    (
        "dream sample=nucleus(0.2,0.95,50) transfer=timesteps(independent=true)",
        {"alg": "origin", "temperature": 0.2, "top_p": 0.95},
    ),
]


@PLAIN_AND_PACKED
@pytest.mark.parametrize(("text", "options"), DREAM, ids=[text for text, _ in DREAM])
@pytest.mark.parametrize(("steps", "eps"), [(14, 1e-3), (5, 0.1)])
def test_dream(text: str, options: dict[str, Any], steps: int, eps: float, packed: bool) -> None:
    hot: dict[str, Any] = {"temperature": 1.5, "top_p": 0.8} if "temperature" in options else {}
    changes = [f"steps={steps}", f"transfer.eps={eps}"]
    inner = "score.score" if "noisy" in text else "score"
    changes += [f"{inner}.top_k=4"] if "filtered" in text else []
    changes += [f"{inner}.{name}={value}" for name, value in hot.items() if "filtered" in text]
    changes += [f"sample.{name}={value}" for name, value in (hot | {"top_k": 4}).items() if hot]
    recipe = published(text, *changes)
    for seed in range(3):
        model = network(seed, VOCAB, packed=packed)
        expected = dream.generate(
            *(partial(every_column, model), prompt_of(seed), 14, 0),
            uniform={name: draws(stream, seed) for name, stream in (("token", 2), ("order", 5), ("coin", 6))},
            **{**options, **hot, "steps": steps, "eps": eps, "top_k": 4},
        )
        assert decoded(Shifted(model), seed, recipe, 14, {})[0] == expected


def test_every_option_of_dream_changes_something() -> None:
    base = "dream sample=nucleus(1.5,0.8,4) score=filtered(entropy,1.5,0.8,4) steps=5"
    changes = ["score.top_k=2", "score.top_p=0.4", "score.temperature=0.3", "score.score=confidence", "score=entropy"]
    changes += ["score=noisy(filtered(entropy,1.5,0.8,4),0.1)", "transfer.eps=0.3", "transfer.independent=true"]
    texts = {}
    for change in ["", *changes]:
        recipe = foretell.parse(f"{base} {change}")
        texts[change] = tuple(
            tuple(decoded(Shifted(network(seed, VOCAB)), seed, recipe, 14, {})[0]) for seed in range(3)
        )
    assert len(set(texts.values())) == len(texts)


FAST: list[tuple[str, str, str, fast_dllm.Rule]] = [
    ("threshold", "off", "", fast_dllm.threshold(0.7)),
    ("factor transfer.last=true", "off", "", fast_dllm.factor(1.0)),
    ("prefix", "prefix", "", fast_dllm.one),
    ("prefix transfer=threshold", "prefix", "", fast_dllm.threshold(0.7)),
    ("prefix transfer=factor(last=true)", "prefix", "", fast_dllm.factor(1.0)),
    ("dual", "dual", "", fast_dllm.one),
    ("fast-dllm", "dual", "", fast_dllm.threshold(0.7)),
    ("dual transfer=factor(last=true)", "dual", "", fast_dllm.factor(1.0)),
    (
        "prefix cache.lead=false score=filtered(confidence) transfer=opening(threshold(by=score))",
        *("prefix", "dream"),
        fast_dllm.threshold(0.7),
    ),
    (
        "dual cache.lead=false score=filtered(confidence) transfer=opening(threshold(by=score))",
        *("dual", "dream"),
        fast_dllm.threshold(0.7),
    ),
    (
        "prefix cache.lead=false score=filtered(entropy) transfer=opening(timesteps)",
        "prefix",
        "dream",
        fast_dllm.timesteps(4, 1e-3),
    ),
    (
        "dual cache.lead=false score=filtered(entropy) transfer=opening(timesteps)",
        "dual",
        "dream",
        fast_dllm.timesteps(4, 1e-3),
    ),
]


@PLAIN_AND_PACKED
@pytest.mark.parametrize(("text", "cache", "family", "rule"), FAST, ids=[f"{one[2]} {one[0]}" for one in FAST])
def test_fast_dllm(text: str, cache: str, family: str, rule: fast_dllm.Rule, packed: bool) -> None:
    changes, length = ["block_length=4"], 10 if rule is fast_dllm.one else 12  # also with a shorter last block
    if "threshold" in text or text == "fast-dllm":
        changes += ["transfer.transfer.value=0.7" if family else "transfer.value=0.7"]
    changes += ["score.top_k=3"] if family else []
    recipe, stale, parallel = published(text, *changes), 0, 0
    for seed in range(4):
        model = network(seed, VOCAB, spread=2.5, packed=packed)
        expected = fast_dllm.generate(
            model, prompt_of(seed), length, 4, cache, rule, dream=bool(family), top_k=3 if family else 0
        )
        assert decoded(Shifted(model) if family else model, seed, recipe, length, {}) == expected
        exact, _ = fast_dllm.generate(
            model, prompt_of(seed), length, 4, "off", rule, dream=bool(family), top_k=3 if family else 0
        )
        stale += exact != expected[0]
        parallel += expected[1] < length
    assert (stale > 0) == (cache != "off")  # a stale key can change a token: what is compared is the cache
    assert (parallel > 0) == (rule is not fast_dllm.one and "timesteps" not in text)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("factor transfer.last=true", "transfer.last=false"),
        ("dual cache.lead=false score=filtered(confidence) transfer=opening(threshold(by=score))", "cache.lead=true"),
        (
            "dual cache.lead=false score=filtered(confidence) transfer=opening(threshold(by=score))",
            "transfer.transfer.by=confidence",
        ),
        (
            "dual cache.lead=false score=filtered(confidence) transfer=opening(threshold(by=score))",
            "transfer=threshold(by=score)",
        ),
    ],
)
def test_every_option_of_fast_dllm_changes_something(text: str, change: str) -> None:
    wraps: Any = Shifted if "opening" in text else (lambda model: model)
    small = ["block_length=4", *(["score.top_k=3"] if "filtered" in text else [])]
    small += ["transfer.transfer.value=0.7"] if "opening" in text else []
    recipes = [published(text, *small), published(text, *small, change)]
    one, other = (
        [decoded(wraps(network(seed, VOCAB, spread=2.5)), seed, recipe, 12, {}) for seed in range(4)]
        for recipe in recipes
    )
    assert one != other


def test_a_noisy_order_is_drawn_without_replacement() -> None:
    """The first two of three masks, over many seeds, against the product of their shares."""
    recipe = foretell.parse("full score=noisy(confidence,0.5) steps=3")
    rows = 2000
    state = lay_out([Request((1,), Layout(3), recipe, seed=seed) for seed in range(rows)], 0)
    sure = torch.tensor([0.2, 0.5, 0.9]).expand(rows, 3)
    seen: Any = SimpleNamespace(confidence=sure)
    orders = recipe.score(seen, state).argsort(dim=1, descending=True)
    weight = [exp(c / 0.5) for c in (0.2, 0.5, 0.9)]
    for first, second in ((0, 1), (1, 2), (2, 0), (2, 1)):
        share = weight[first] / sum(weight) * weight[second] / (sum(weight) - weight[first])
        drawn = ((orders[:, 0] == first) & (orders[:, 1] == second)).double().mean()
        assert abs(float(drawn) - share) < 4 * 0.5 / rows**0.5


def test_changes_of_the_logits_add_up() -> None:
    """Without the end tokens first, and then the two best of what is left."""
    recipe = foretell.parse("full score=deferred(filtered(confidence,top_k=2),renormalize=true) block_length=8")
    model, state = network(1, VOCAB), lay_out([Request((3, 4), Layout(8), recipe)], 0, ENDS)
    rows = [without(row, 0) for row in every_column(model, [3, 4, *[0] * 8])[2:]]
    beliefs = denoise_step(model, state, recipe).beliefs
    ends = [row.index(max(row)) in ENDS for row in rows]
    expected = [max(cut(without(row, *ENDS), 0.0, 1.0, 2)) for row in rows]
    fresh = lay_out([Request((3, 4), Layout(8), recipe)], 0, ENDS)
    scores = recipe.score(beliefs, fresh)[0].tolist()
    assert True in ends
    for score, end, sure in zip(scores, ends, expected, strict=True):
        assert score == pytest.approx(torch.finfo(torch.float64).min if end else sure)


def test_a_noisy_score_keeps_what_is_deferred_last() -> None:
    recipe = foretell.parse("full score=noisy(deferred,0.01)")
    state = lay_out([Request((1,), Layout(3), recipe)], 0, ENDS)
    for dtype in (torch.float32, torch.float64):
        seen: Any = SimpleNamespace(confidence=torch.tensor([[0.2, 0.5, 0.9]], dtype=dtype))
        seen.tokens = torch.tensor([[4, 4, ENDS[1]]])
        scores = recipe.score(seen, state)[0]
        assert scores[2] == torch.finfo(scores.dtype).min
        assert (scores[:2].abs() < 200).all()


def test_the_page_lists_recipes_that_exist() -> None:
    equal, _ = PAGE.split("## Differences")
    rows = [line.split("|") for line in equal.splitlines() if line.startswith("| ") and "`" in line]
    texts = [text for row in rows for text in re.findall(r"`([^`]+)`", row[2])]
    assert len(texts) > 30
    for text in texts:
        foretell.parse(text)
