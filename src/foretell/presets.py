"""Published decoders by name, each one a row of answers to the six questions."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from foretell.policies.region.masked import Masked
from foretell.policies.sample.nucleus import Nucleus
from foretell.policies.score.entropy import Entropy
from foretell.policies.score.margin import Margin
from foretell.policies.score.random import Random
from foretell.policies.stop.combined import All
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Exponential, Linear
from foretell.policies.stop.stable import Stable
from foretell.policies.transfer.timesteps import Timesteps
from foretell.recipe import Recipe, spelled


class Preset(NamedTuple):
    recipe: Recipe
    about: str


_FULL = Recipe()
PRESETS: dict[str, Preset] = {
    "full": Preset(_FULL, "LLaDA's decoder: the whole budget, the surest masks first"),
    "prophet": Preset(
        replace(_FULL, stop=Prophet()), "commit all once the answer's mean gap reaches a staged threshold"
    ),
    "prophet-linear": Preset(
        replace(_FULL, stop=Prophet(tau=Linear())), "the same with a threshold that falls in a straight line"
    ),
    "sched": Preset(
        replace(_FULL, region=Masked(), stop=All((Prophet(tau=Exponential()), Stable(entropy=float("inf"))))),
        "SchED: the gap over every mask, a smooth threshold, and no draft changed",
    ),
    "dream": Preset(
        Recipe(block_length=None, sample=Nucleus(temperature=0.2, top_p=0.95), score=Entropy(), transfer=Timesteps()),
        "Dream's decoder: nucleus sampling, lowest entropy first, its own timesteps",
    ),
    "random": Preset(replace(_FULL, score=Random()), "the whole budget, masks in random order"),
    "margin": Preset(replace(_FULL, score=Margin()), "the whole budget, the clearest winners first"),
}


def parse(text: str | Recipe) -> Recipe:
    """The recipe that `text` spells: "prophet", "prophet steps=128 stop.tau.high=8", or what `str(recipe)` gives."""
    if isinstance(text, Recipe):
        return text
    return spelled(text, {name: preset.recipe for name, preset in PRESETS.items()})
