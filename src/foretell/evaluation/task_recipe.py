"""How a recipe's text is read on a benchmark: the benchmark's layout and the paper's thresholds for it come first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from foretell.engine.engine import Engine
from foretell.engine.options import RequestTemplate
from foretell.evaluation.benchmark import Benchmark, Example
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.recipes.presets import PRESETS, parse
from foretell.recipes.recipe import Recipe

LAYOUT = ("max_new_tokens", "answer_length", "answer_start", "remasking")  # words of `generate`, not of a recipe
_LAYOUT_WORD = re.compile(rf"(?:^|(?<=\s))({'|'.join(LAYOUT)})=([^\s()]+)(?=\s|$)")


@dataclass(frozen=True, slots=True)
class TaskRecipe:
    """One way to decode a benchmark."""

    name: str  # the text that was asked for
    recipe: Recipe
    options: Mapping[str, Any]  # for `generate`

    @classmethod
    def of(cls, text: str, benchmark: Benchmark, asked: Mapping[str, Any] | None = None) -> TaskRecipe:
        """Read `text`: a recipe, in which `max_new_tokens=48` and the like may stand as well.

        The preset `prophet` takes the benchmark's thresholds, every preset its block length and budget; what the
        text says goes over that. Another window without a number of steps gets one step a position. What is `asked`
        goes over the benchmark's own options; a stopping rule there replaces the recipe's, if it has one.
        """
        changes = {name: _number(value) for name, value in _LAYOUT_WORD.findall(text)}
        options = {**benchmark.options, **(asked or {})}
        settings = {name: options.pop(name) for name in ("steps", "block_length") if name in options}
        if "max_new_tokens" in changes:
            settings.pop("steps", None)

        def prefer(preset: Recipe) -> Recipe:
            if preset == PRESETS["prophet"].recipe:
                preset = replace(preset, stop=Prophet(tau=benchmark.thresholds))
            return replace(preset, **settings)

        recipe = parse(_LAYOUT_WORD.sub("", text), prefer)
        if recipe.stop == Never():
            options.pop("stop", None)
        return cls(text, recipe, options | changes)

    def template(self, engine: Engine, example: Example, seed: int) -> RequestTemplate:
        """What this example is decoded with. Its noise is its own, and the same whatever it is decoded beside."""
        asked = engine.template(recipe=self.recipe, **(dict(self.options) | dict(example.options)))
        return replace(asked, seed=seed_of(seed, example.id))


def seed_of(seed: int, example: str) -> int:
    return int.from_bytes(blake2b(f"{seed} {example}".encode(), digest_size=4).digest(), "big") >> 1


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text
