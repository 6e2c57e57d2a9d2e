"""A recipe for one benchmark: its text, combined with the benchmark's layout and the paper's thresholds for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.engine.certificate import Certificate, recipe_of
from foretell.engine.engine import Engine
from foretell.engine.masked_text import MaskedText
from foretell.engine.options import RequestTemplate, adapt_to_fills
from foretell.evaluation.benchmark import Benchmark, Example
from foretell.evaluation.benchmarks.fill import Fill
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.recipes.presets import PRESETS, parse
from foretell.recipes.recipe import Recipe

LAYOUT = ("max_new_tokens", "answer_length", "answer_start", "remasking")  # options of `generate`, not of a recipe
_LAYOUT_WORD = re.compile(rf"(?:^|(?<=\s))({'|'.join(LAYOUT)})=([^\s()]+)(?=\s|$)")


@dataclass(frozen=True, slots=True)
class TaskRecipe:
    """A recipe together with the options with which it decodes a benchmark."""

    name: str  # the text that the user gave, or the name of the file
    recipe: Recipe
    options: Mapping[str, Any]  # options of `generate`
    certificate: Certificate | None = None  # of the file that the recipe comes from

    @classmethod
    def of(cls, text: str, benchmark: Benchmark, given: Mapping[str, Any] | None = None) -> TaskRecipe:
        """Parse `text`, a recipe that may also set the options in `LAYOUT`, such as `max_new_tokens=48`.

        The preset `prophet` takes the benchmark's thresholds, and every preset takes its block length and steps, unless
        the text sets them. If the text sets the window but no steps, there is one step per position. `given` overrides
        the benchmark's options; a stopping rule in it replaces the recipe's, if the recipe has one. If `text` names the
        file of a certificate, its recipe is complete and takes nothing but the window.
        """
        given_recipe = recipe_of(text)
        changes = {name: _parse_number(value) for name, value in _LAYOUT_WORD.findall(text)}
        options = {**benchmark.options, **(given or {})}
        settings = {name: options.pop(name) for name in ("steps", "block_length") if name in options}
        if "max_new_tokens" in changes:
            settings.pop("steps", None)

        if isinstance(given_recipe, Certificate):
            return cls(Path(text).name, given_recipe.chosen, options, given_recipe)

        def adapt(preset: Recipe) -> Recipe:
            if preset == PRESETS["prophet"].recipe:
                preset = replace(preset, stop=Prophet(tau=benchmark.thresholds))
            return replace(adapt_to_fills(preset) if isinstance(benchmark, Fill) else preset, **settings)

        recipe = parse(_LAYOUT_WORD.sub("", text), adapt)
        # What to do on a mismatch is for recipes with a certificate, their own or that of the rule.
        drop = {"stop", "on_mismatch"} if recipe.stop == Never() or "stop" not in options else set()
        options = {name: value for name, value in options.items() if name not in drop}
        return cls(text, recipe, options | changes)

    def template(self, engine: Engine, example: Example, seed: int) -> RequestTemplate:
        """Return the template for one example."""
        # All recipes of an evaluation have the same window, so that of a certificate is not taken.
        recipe = self.recipe if self.certificate is None else replace(self.certificate, options={})
        make = engine.fill_template if isinstance(example.prompt, MaskedText) else engine.template
        return make(recipe=recipe, **{**self.options, **example.options, "seed": seed})


def _parse_number(text: str) -> int | str:
    return int(text) if text.isdigit() else text
