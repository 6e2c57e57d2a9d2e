"""Recipes: random policies with random parameters, their texts, damaged texts, and what they decode."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch

import foretell
from foretell.engine.request import Layout, Request
from foretell.errors import ForetellError
from foretell.recipes.recipe import Recipe
from foretell.recipes.text import KINDS, format_value, hints_of
from tests.fuzz import world
from tests.fuzz.mutate import NUMBERS, TEXTS, mutate_text, odd_number, odd_text
from tests.helpers import run as run_loop

PATTERNS = ("a", r"\d+", "(a)(.)", "(.+)+\0", "(a|a)*b", "(?:x+x+)+y", "(", "[", r"(?P<x>.)", "", "^$", "(?<=a+)b", r"\1", ".*")
FLOATS = (0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 1.0, 2.5, 8.0)


def random_recipe(rng: Random) -> Recipe:
    """Return a recipe of random policies. Raises RecipeError if they cannot be combined."""
    hints = hints_of(Recipe)
    names = rng.sample(sorted(hints), rng.randrange(5))
    return Recipe(**{name: _value(rng, hints[name], name) for name in names})


def _value(rng: Random, hint: Any, name: str, depth: int = 0) -> Any:
    if rng.random() < 0.01:
        return rng.choice((odd_number, odd_text))(rng)
    if hint in KINDS:
        return _policy(rng, KINDS[hint], depth)
    if get_origin(hint) in (Union, UnionType):
        choices = [one for one in get_args(hint) if one is not NoneType]
        return None if rng.random() < 0.2 else _value(rng, rng.choice(choices), name, depth)
    if get_origin(hint) is Literal:
        return rng.choice(get_args(hint))
    if get_origin(hint) is tuple:
        return tuple(_value(rng, get_args(hint)[0], name, depth + 1) for _ in range(rng.choice((2, 2, 3))))
    if hint is str:
        return _text(rng, name)
    return {bool: rng.random() < 0.5, int: rng.choice((0, 1, 1, 2, 3, 4, 8)), float: rng.choice(FLOATS)}[hint]


def _text(rng: Random, name: str) -> str:
    if name == "regex":
        return rng.choice(PATTERNS)
    if name == "path":
        missing = str(world.judge_file().with_name("missing.json"))
        return rng.choice((str(world.judge_file()), str(world.judge_file()), missing, "/dev/zero", "\0", "/", "answer", "a.b.0"))
    return "" if name == "sha256" else rng.choice((*TEXTS, "is", "The answer is", "="))


def _policy(rng: Random, kind: str, depth: int) -> Any:
    cls = foretell.POLICIES[kind][rng.choice(sorted(foretell.POLICIES[kind]))]
    if depth > 3:
        return cls()
    hints = hints_of(cls)
    needed = [field.name for field in fields(cls) if field.init and isinstance(field.default, type(fields(Recipe)[0].default_factory))]
    names = {*needed, *rng.sample(sorted(hints), rng.randrange(len(hints) + 1))}
    return cls(**{name: _value(rng, hints[name], name, depth + 1) for name in sorted(names)})


def random_text(rng: Random) -> str:
    """Return the text of a recipe, often damaged."""
    if rng.random() < 0.5:
        text = str(random_recipe(rng))
    else:
        text = rng.choice(sorted(foretell.PRESETS))
        recipe = foretell.PRESETS[text].recipe
        for _ in range(rng.randrange(4)):
            text += f" {_path(rng, recipe)}={_setting(rng)}"
    if rng.random() < 0.003:
        return rng.choice(("full stop=" + "all(" * 100_000, "full stop.tau" + ".x" * 100_000 + "=1", "full steps=" + "-" * 100_000 + "1"))
    return mutate_text(rng, text) if rng.random() < 0.5 else text


def _path(rng: Random, value: Any) -> str:
    """Return a dotted path to a parameter of a policy."""
    name = rng.choice(sorted(hints_of(type(value))))
    inner = getattr(value, name)
    if hasattr(inner, "__dataclass_fields__") and fields(inner) and rng.random() < 0.6:
        return f"{name}.{_path(rng, inner)}"
    return rng.choice((name, name, name, odd_text(rng), f"{name}.x"))


def _setting(rng: Random) -> str:
    makers = (
        lambda: str(rng.choice(FLOATS)),
        lambda: str(rng.choice(NUMBERS[:-14])),
        lambda: rng.choice(("none", "true", "false", "inf", "-inf", "nan", "1e999", "1_0", "0x10", "1j", "b'a'", "...", "[1]")),
        lambda: rng.choice(sorted(foretell.POLICIES[rng.choice(sorted(foretell.POLICIES))])),
        lambda: repr(odd_text(rng)),
        lambda: format_value(_policy(rng, rng.choice(sorted(foretell.POLICIES)), 1)),
    )
    return rng.choice(makers)()


def run(rng: Random) -> None:
    text = random_text(rng)
    recipe = foretell.parse(text)
    assert foretell.parse(str(recipe)) == recipe, "a recipe's text reads back as another recipe"
    kind = rng.randrange(3)
    if kind == 0:
        _decode_batch(rng, recipe)
    elif kind == 1:
        _decode_one(rng, recipe)
    else:
        _run_loop(rng, recipe)


def _decode_one(rng: Random, recipe: Recipe) -> None:
    engine = rng.choice((world.engine, world.double_engine))()
    given: dict[str, Any] = {**rng.choice((world.WINDOW, world.ANSWERED)), "seed": rng.randrange(99), "block_length": None}
    prompt = [rng.randrange(200) for _ in range(rng.randrange(1, 9))]
    template = engine.template(recipe=recipe, **given)
    done = engine.generate(prompt, recipe=recipe, trace=True, **given)
    world.check_completion(engine, prompt, template, done)
    if rng.random() < 0.2:
        last = [*engine.stream(prompt, recipe=recipe, **given)][-1].completion
        assert last is not None
        assert last.tokens == done.tokens, "a stream ends in another text"


def _decode_batch(rng: Random, recipe: Recipe) -> None:
    engine = world.double_engine()
    given: dict[str, Any] = {**rng.choice((world.WINDOW, world.ANSWERED)), "block_length": None}
    prompts = [[rng.randrange(200) for _ in range(rng.randrange(1, 9))] for _ in range(3)]
    together = engine.generate(prompts, recipe=recipe, **given)
    for prompt, done in zip(prompts, together, strict=True):
        world.check_completion(engine, prompt, engine.template(recipe=recipe, **given), done)
    alone = engine.generate(prompts[1], recipe=recipe, **given)
    assert alone.tokens == together[1].tokens, "a batch decodes another text than a single request"


def _run_loop(rng: Random, recipe: Recipe) -> None:
    """Without the engine, to see the canvas: nothing may write into the prompt."""
    model = world.double_engine().model
    requests = [Request(tuple(rng.randrange(200) for _ in range(4)), Layout(6, ((1, 7),), (3, 2)), recipe) for _ in range(2)]
    after, steps = run_loop(model, requests, end_ids=(9,))
    assert torch.equal(after.canvas[:, :4], torch.tensor([request.prompt for request in requests])), "the prompt changed"
    assert not (after.canvas == model.mask_id).any()
    assert len(steps) <= max(request.budget for request in requests)


def good_recipe(rng: Random) -> Recipe:
    """Return a random recipe that can be built."""
    while True:
        try:
            return random_recipe(rng)
        except (ForetellError, TypeError):  # TypeError: a policy that needs a parameter
            continue
