"""Early-commit decoding for diffusion language models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretell.decode import Step, denoise_step
    from foretell.engine.certificate import Certificate
    from foretell.engine.engine import Completion, Engine, Failure, Frame, load
    from foretell.engine.files import load_traces, save_traces
    from foretell.engine.trace import Recorder, Trace
    from foretell.errors import (
        ForetellError,
        LayoutError,
        MissingExtraError,
        ModelError,
        PermissionNeededError,
        RecipeError,
        RequestError,
        TraceError,
        VocabularyError,
    )
    from foretell.lab.calibrate import calibrate
    from foretell.lab.judge import teach
    from foretell.layout import Layout, Request, lay_out
    from foretell.presets import PRESETS, parse
    from foretell.recipe import Recipe
    from foretell.words import Words

__all__ = [
    "PRESETS",
    "Certificate",
    "Completion",
    "Engine",
    "Failure",
    "ForetellError",
    "Frame",
    "Layout",
    "LayoutError",
    "MissingExtraError",
    "ModelError",
    "PermissionNeededError",
    "Recipe",
    "RecipeError",
    "Recorder",
    "Request",
    "RequestError",
    "Step",
    "Trace",
    "TraceError",
    "VocabularyError",
    "Words",
    "calibrate",
    "denoise_step",
    "lay_out",
    "load",
    "load_traces",
    "parse",
    "save_traces",
    "teach",
]
__version__ = "0.1.0"

# Loaded when first asked for, so that `foretell --help` does not wait for torch.
_HOMES = {
    "decode": ("Step", "denoise_step"),
    "engine.certificate": ("Certificate",),
    "engine.engine": ("Completion", "Engine", "Failure", "Frame", "load"),
    "engine.files": ("load_traces", "save_traces"),
    "engine.trace": ("Recorder", "Trace"),
    "errors": (
        "ForetellError",
        "LayoutError",
        "MissingExtraError",
        "ModelError",
        "PermissionNeededError",
        "RecipeError",
        "RequestError",
        "TraceError",
        "VocabularyError",
    ),
    "lab.calibrate": ("calibrate",),
    "lab.judge": ("teach",),
    "layout": ("Layout", "Request", "lay_out"),
    "presets": ("PRESETS", "parse"),
    "recipe": ("Recipe",),
    "words": ("Words",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
