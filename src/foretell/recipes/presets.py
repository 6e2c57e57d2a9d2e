"""Published decoders by name, each as a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from foretell.errors import RecipeError, unknown
from foretell.policies.cache.delayed import Delayed
from foretell.policies.cache.drift import Drift
from foretell.policies.cache.dual import Dual
from foretell.policies.cache.prefix import Prefix
from foretell.policies.region.masked import Masked
from foretell.policies.region.whole import Whole
from foretell.policies.sample.nucleus import Nucleus
from foretell.policies.score.entropy import Entropy
from foretell.policies.score.margin import Margin
from foretell.policies.score.random import Random
from foretell.policies.stop.combined import All
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Exponential, Linear
from foretell.policies.stop.stable import Stable
from foretell.policies.stop.sure import Sure
from foretell.policies.transfer.entropy_bound import EntropyBound
from foretell.policies.transfer.entropy_threshold import EntropyThreshold
from foretell.policies.transfer.factor import Factor
from foretell.policies.transfer.frechet import Frechet
from foretell.policies.transfer.jot import JoT
from foretell.policies.transfer.threshold import Threshold
from foretell.policies.transfer.timesteps import Timesteps
from foretell.policies.visible.near import Near
from foretell.recipes.plugins import load_plugins
from foretell.recipes.recipe import Recipe, split_recipe


class Preset(NamedTuple):
    recipe: Recipe
    about: str


CAUTIOUS = "full transfer=threshold(0.99) stop_at_eos=true"  # for models whose thresholds are not known
_FULL = Recipe()
PRESETS: dict[str, Preset] = {
    "full": Preset(_FULL, "LLaDA's decoder: all steps, most confident masks first"),
    "prophet": Preset(
        replace(_FULL, stop=Prophet()), "commit everything once the answer's mean gap reaches a staged threshold"
    ),
    "prophet-linear": Preset(
        replace(_FULL, stop=Prophet(tau=Linear())),
        "commit everything once the answer's mean gap reaches a threshold that falls linearly",
    ),
    "sched": Preset(
        replace(_FULL, region=Masked(), stop=All((Prophet(tau=Exponential()), Stable(entropy=float("inf"))))),
        "SchED: commit everything once the mean gap of all masks is large enough and no draft token changes",
    ),
    "dream": Preset(
        Recipe(block_length=None, sample=Nucleus(temperature=0.2, top_p=0.95), score=Entropy(), transfer=Timesteps()),
        "Dream's decoder: nucleus sampling, masks with the lowest entropy first, Dream's timesteps",
    ),
    "random": Preset(replace(_FULL, score=Random()), "all steps, masks in random order"),
    "margin": Preset(replace(_FULL, score=Margin()), "all steps, masks with the largest probability margin first"),
    "sure": Preset(replace(_FULL, stop=Sure()), "commit everything once the answer's mean entropy is low"),
    "persistent": Preset(
        replace(_FULL, stop=Persistent()), "commit everything once the answer has not changed for 8 steps"
    ),
    "stable": Preset(
        replace(_FULL, region=Whole(), stop=Stable()),
        "DiffusionGemma's rule: commit everything once no draft token changes and the mean entropy is very low",
    ),
    "threshold": Preset(
        replace(_FULL, transfer=Threshold()),
        "Fast-dLLM: fill every mask with a confidence of at least 0.9, or else the most confident one",
    ),
    "threshold-prophet": Preset(
        replace(_FULL, transfer=Threshold(), stop=Prophet(clock="tokens")),
        "threshold and prophet together; progress counts filled tokens",
    ),
    "swift": Preset(
        replace(_FULL, transfer=Threshold(0.995), stop=Prophet(reduce="min", clock="tokens"), stop_at_eos=True),
        "fill every nearly certain mask; commit everything once the answer's least certain token has a large gap",
    ),
    "factor": Preset(
        replace(_FULL, transfer=Factor()),
        "Fast-dLLM's other rule: the more masks are filled at once, the more certain each has to be",
    ),
    "frechet": Preset(
        replace(_FULL, transfer=Frechet()), "Fast-dLLM++: fill as many masks at once as are likely to be right together"
    ),
    "entropy-bound": Preset(
        replace(_FULL, score=Entropy(), transfer=EntropyBound()),
        "the EB sampler: fill as many masks at once as an entropy budget allows",
    ),
    "med": Preset(
        replace(_FULL, score=Entropy(), transfer=EntropyThreshold()), "MED: fill every mask with a low entropy"
    ),
    "jot": Preset(
        replace(_FULL, transfer=JoT()),
        "JoT: fill every mask whose best token is clearly better than the second; less clearly next to filled tokens",
    ),
    "prefix": Preset(
        replace(_FULL, cache=Prefix()),
        "Fast-dLLM's prefix cache: everything before the block is computed once per block",
    ),
    "dual": Preset(
        replace(_FULL, cache=Dual()), "Fast-dLLM's dual cache: everything except the block is computed once per block"
    ),
    "fast-dllm": Preset(replace(_FULL, cache=Dual(), transfer=Threshold()), "dual and threshold together"),
    "fast-dllm-prophet": Preset(
        replace(_FULL, cache=Dual(), transfer=Threshold(), stop=Prophet(clock="tokens")),
        "dual, threshold and prophet together; the answer is computed along with the block",
    ),
    "streaming": Preset(
        replace(_FULL, stop_at_eos=True, cache=Dual(visible=Near()), transfer=Threshold(relax=0.3)),
        "Streaming-dLLM: leave out far masks and everything after the end of the text; the threshold falls",
    ),
    "delayed": Preset(replace(_FULL, cache=Delayed()), "dKV-Cache: cache a token one step after it was filled"),
    "drift": Preset(
        replace(_FULL, cache=Drift()), "a dual cache that is refreshed when drafts change, and not once per block"
    ),
}


def parse(text: str | Recipe, prefer: Callable[[Recipe], Recipe] | None = None) -> Recipe:
    """Parse a recipe: "prophet", "prophet steps=128 stop.tau.high=8", or what `str(recipe)` gives.

    `prefer` changes the preset before the settings of the text apply. A Recipe is returned unchanged.
    """
    if isinstance(text, Recipe):
        return text
    name, settings = split_recipe(text)
    if name not in PRESETS:
        raise RecipeError(unknown("recipe", name, PRESETS))
    preset = PRESETS[name].recipe
    return (preset if prefer is None else prefer(preset)).adjusted(*settings)


load_plugins()  # here: all policies are registered, and nothing has been parsed yet
