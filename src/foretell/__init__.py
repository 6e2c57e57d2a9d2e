"""Early-commit decoding for diffusion language models."""

from foretell.decode import Step, decode, denoise_step
from foretell.engine.engine import Completion, Engine, Frame, load
from foretell.engine.files import load_traces, save_traces
from foretell.engine.trace import Recorder, Trace
from foretell.errors import (
    ForetellError,
    LayoutError,
    ModelError,
    RecipeError,
    RequestError,
    TraceError,
    VocabularyError,
)
from foretell.layout import Layout, Request, lay_out
from foretell.presets import PRESETS, recipe
from foretell.recipe import Recipe

__all__ = [
    "PRESETS",
    "Completion",
    "Engine",
    "ForetellError",
    "Frame",
    "Layout",
    "LayoutError",
    "ModelError",
    "Recipe",
    "RecipeError",
    "Recorder",
    "Request",
    "RequestError",
    "Step",
    "Trace",
    "TraceError",
    "VocabularyError",
    "decode",
    "denoise_step",
    "lay_out",
    "load",
    "load_traces",
    "recipe",
    "save_traces",
]
__version__ = "0.1.0"
