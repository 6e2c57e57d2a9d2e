"""Early-commit decoding for diffusion language models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from foretell.version import __version__ as __version__

if TYPE_CHECKING:
    from foretell.certify.calibrate import calibrate
    from foretell.certify.train_judge import train_judge
    from foretell.certify.train_judge import train_judge as teach
    from foretell.certify.tune import tune
    from foretell.decide.answers import Decision
    from foretell.decide.objects import Object
    from foretell.decide.plan import DecisionPlan
    from foretell.decide.questions import Choice, Integer, Predicate, Question, Score, Text
    from foretell.engine.certificate import Certificate
    from foretell.engine.engine import Completion, Engine, Failure, Frame, load
    from foretell.engine.folder import DecisionTemplate
    from foretell.engine.masked_text import MaskedText
    from foretell.engine.options import Options, RequestTemplate
    from foretell.engine.request import Layout, Request, lay_out
    from foretell.engine.trace import Recorder, Trace
    from foretell.engine.trace_files import load_traces, save_traces
    from foretell.errors import (
        ContextLengthError,
        ForetellError,
        LayoutError,
        MissingExtraError,
        ModelError,
        PermissionNeededError,
        RecipeError,
        RequestError,
        RowsFailedError,
        SandboxError,
        StorageError,
        TraceError,
        VocabularyError,
    )
    from foretell.evaluation.run import Evaluation, evaluate
    from foretell.loop.decode import Step, denoise_step
    from foretell.loop.protocols import Beliefs, Verdict
    from foretell.loop.spelling import Spelling
    from foretell.loop.spelling import Spelling as Words
    from foretell.loop.view import StateView
    from foretell.policies import POLICIES
    from foretell.recipes.presets import PRESETS, parse
    from foretell.recipes.recipe import Recipe

__all__ = [
    "POLICIES",
    "PRESETS",
    "Beliefs",
    "Certificate",
    "Choice",
    "Completion",
    "ContextLengthError",
    "Decision",
    "DecisionPlan",
    "DecisionTemplate",
    "Engine",
    "Evaluation",
    "Failure",
    "ForetellError",
    "Frame",
    "Integer",
    "Layout",
    "LayoutError",
    "MaskedText",
    "MissingExtraError",
    "ModelError",
    "Object",
    "Options",
    "PermissionNeededError",
    "Predicate",
    "Question",
    "Recipe",
    "RecipeError",
    "Recorder",
    "Request",
    "RequestError",
    "RequestTemplate",
    "RowsFailedError",
    "SandboxError",
    "Score",
    "Spelling",
    "StateView",
    "Step",
    "StorageError",
    "Text",
    "Trace",
    "TraceError",
    "Verdict",
    "VocabularyError",
    "Words",
    "calibrate",
    "denoise_step",
    "evaluate",
    "lay_out",
    "load",
    "load_traces",
    "parse",
    "save_traces",
    "teach",
    "train_judge",
    "tune",
]
_ERRORS = (
    "ContextLengthError",
    "ForetellError",
    "LayoutError",
    "MissingExtraError",
    "ModelError",
    "PermissionNeededError",
    "RecipeError",
    "RequestError",
    "RowsFailedError",
    "SandboxError",
    "StorageError",
    "TraceError",
    "VocabularyError",
)
# Names are loaded when first asked for, so that `foretell --help` does not wait for torch.
_MODULES = {
    **dict.fromkeys(_ERRORS, "errors"),
    **dict.fromkeys(("Completion", "Engine", "Failure", "Frame", "load"), "engine.engine"),
    **dict.fromkeys(("Layout", "Request", "lay_out"), "engine.request"),
    **dict.fromkeys(("Recorder", "Trace"), "engine.trace"),
    **dict.fromkeys(("load_traces", "save_traces"), "engine.trace_files"),
    **dict.fromkeys(("Step", "denoise_step"), "loop.decode"),
    **dict.fromkeys(("PRESETS", "parse"), "recipes.presets"),
    **dict.fromkeys(("Options", "RequestTemplate"), "engine.options"),
    **dict.fromkeys(("Evaluation", "evaluate"), "evaluation.run"),
    **dict.fromkeys(("Beliefs", "Verdict"), "loop.protocols"),
    **dict.fromkeys(("Choice", "Integer", "Predicate", "Question", "Score", "Text"), "decide.questions"),
    "Decision": "decide.answers",
    "DecisionPlan": "decide.plan",
    "Object": "decide.objects",
    "DecisionTemplate": "engine.folder",
    "POLICIES": "policies",
    "StateView": "loop.view",
    "Certificate": "engine.certificate",
    "MaskedText": "engine.masked_text",
    "Recipe": "recipes.recipe",
    "Spelling": "loop.spelling",
    "calibrate": "certify.calibrate",
    "train_judge": "certify.train_judge",
    "tune": "certify.tune",
}
_OLD_NAMES = {"Words": "Spelling", "teach": "train_judge"}  # names of version 0.1.0 that still work


def __getattr__(name: str) -> Any:
    name = _OLD_NAMES.get(name, name)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
