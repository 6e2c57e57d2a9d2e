"""Recipes: random policies with random parameters, their texts, damaged texts, and what they decode."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
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
from tests.fuzz.mutate import DEEP, TEXTS, mutate_text, odd_number, odd_text
from tests.helpers import run as run_loop

PATTERNS = ("a", r"\d+", "(a)(.)", "(.+)+\0", "(a|a)*b", "(x+x+)+y", "(", "[", "", "^$", "(?<=a+)b", r"\1")
NUMBERS = (0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 1.0, 2.5, 8.0)
SETTINGS = (
    "none", "true", "false", "inf", "-inf", "nan", "1e999", "1_0", "0x10", "1j", "b'a'", "...", "[1]", "-1", "1e308",
    "0", "1", "2", "4", "2147483648", "9007199254740993", "9223372036854775808", "9" * 400, "9" * 5000, "--1", "not 1",
)  # fmt: skip
DEEP_TEXTS = ("full stop=" + "all(" * DEEP, "full stop.tau" + ".x" * DEEP + "=1", "full steps=" + "-" * DEEP + "1")


def random_recipe(rng: Random) -> Recipe:
    """Return a recipe of random policies. Raises RecipeError if they cannot be combined."""
    hints = hints_of(Recipe)
    return Recipe(**{name: _value(rng, hints[name], name) for name in rng.sample(sorted(hints), rng.randrange(5))})


def good_recipe(rng: Random) -> Recipe:
    while True:
        try:
            return random_recipe(rng)
        except ForetellError:
            continue


def _value(rng: Random, hint: Any, name: str, depth: int = 0) -> Any:
    if hint in (int, float) and rng.random() < 0.02:
        return odd_number(rng)
    if hint in KINDS:
        return _policy(rng, KINDS[hint], depth + 1)
    if get_origin(hint) in (Union, UnionType):
        choices = [one for one in get_args(hint) if one is not NoneType]
        return None if rng.random() < 0.2 else _value(rng, rng.choice(choices), name, depth)
    if get_origin(hint) is Literal:
        return rng.choice(get_args(hint))
    if get_origin(hint) is tuple:
        return tuple(_value(rng, get_args(hint)[0], name, depth + 1) for _ in range(rng.choice((2, 2, 3))))
    judge = str(world.judge_file())
    texts = {
        "regex": PATTERNS,
        "path": (judge, judge, judge + "x", "/dev/zero", "\0", "answer", "a.0"),
        "sha256": ("",),
    }
    values = {bool: (True, False), int: (0, 1, 1, 2, 3, 4, 8), float: NUMBERS}
    return rng.choice(values[hint] if hint in values else texts.get(name, (*TEXTS, "is", "The answer is", "=")))


def _policy(rng: Random, kind: str, depth: int) -> Any:
    cls = foretell.POLICIES[kind][rng.choice(sorted(foretell.POLICIES[kind]))]
    hints = hints_of(cls)
    names = {field.name for field in fields(cls) if field.default is MISSING}
    if depth < 4:
        names |= set(rng.sample(sorted(hints), rng.randrange(len(hints) + 1)))
    return cls(**{name: _value(rng, hints[name], name, depth) for name in sorted(names)})


def random_text(rng: Random) -> str:
    """Return the text of a recipe, often damaged."""
    if rng.random() < 0.003:
        return rng.choice(DEEP_TEXTS)
    if rng.random() < 0.5:
        text = str(random_recipe(rng))
    else:
        text = rng.choice(sorted(foretell.PRESETS))
        recipe = foretell.PRESETS[text].recipe
        text += "".join(f" {_path(rng, recipe)}={_setting(rng)}" for _ in range(rng.randrange(4)))
    return mutate_text(rng, text) if rng.random() < 0.4 else text


def _path(rng: Random, value: Any) -> str:
    """Return a dotted path to a parameter of a policy."""
    name = rng.choice(sorted(hints_of(type(value))))
    inner = getattr(value, name)
    if is_dataclass(inner) and fields(inner) and rng.random() < 0.6:
        return f"{name}.{_path(rng, inner)}"
    return rng.choice((name, name, name, name, name, odd_text(rng), f"{name}.x"))


def _setting(rng: Random) -> str:
    kind = rng.choice(sorted(foretell.POLICIES))
    if rng.random() < 0.3:
        return format_value(_policy(rng, kind, 1))
    return rng.choice((*SETTINGS, rng.choice(sorted(foretell.POLICIES[kind])), repr(odd_text(rng))))


def run(rng: Random) -> None:
    recipe = foretell.parse(random_text(rng))
    assert foretell.parse(str(recipe)) == recipe, "a recipe's text reads back as another recipe"
    rng.choice((_decode_one, _decode_batch, _run_loop))(rng, recipe)


def _prompt(rng: Random, size: int) -> list[int]:
    return [rng.randrange(200) for _ in range(size)]


def _decode_one(rng: Random, recipe: Recipe) -> None:
    engine, prompt = rng.choice((world.engine, world.double_engine))(), _prompt(rng, rng.randrange(1, 9))
    given = rng.choice((world.WINDOW, world.ANSWERED)) | {"recipe": recipe, "seed": rng.randrange(99)}
    done = engine.generate(prompt, trace=True, **given)
    world.check_completion(engine, engine.template(**given), done)
    assert done.trace is not None
    assert list(done.trace.request.prompt) == prompt
    if rng.random() < 0.2:
        last = [*engine.stream(prompt, **given)][-1].completion
        assert last is not None
        assert last.tokens == done.tokens, "a stream ends in another text"


def _decode_batch(rng: Random, recipe: Recipe) -> None:
    engine, prompts = world.double_engine(), [_prompt(rng, rng.randrange(1, 9)) for _ in range(3)]
    given = rng.choice((world.WINDOW, world.ANSWERED)) | {"recipe": recipe}
    together = engine.generate(prompts, **given)
    for done in together:
        world.check_completion(engine, engine.template(**given), done)
    alone = engine.generate(prompts[1], **given)
    assert alone.tokens == together[1].tokens, "a batch decodes another text than a single request"


def _run_loop(rng: Random, recipe: Recipe) -> None:
    """Without the engine, to see the canvas: nothing may write into the prompt."""
    model, prompts = world.double_engine().model, [_prompt(rng, 4) for _ in range(2)]
    requests = [Request(tuple(prompt), Layout(6, ((1, 7),), (3, 2)), recipe) for prompt in prompts]
    after, steps = run_loop(model, requests, end_ids=(9,))
    assert torch.equal(after.canvas[:, :4], torch.tensor(prompts)), "the prompt changed"
    assert not (after.canvas == model.mask_id).any(), "a mask is left"
    assert len(steps) <= requests[0].budget + recipe.verify.passes
