"""A judge's head on disk and at work: a linear layer, or two with a tanh between, over standardised features."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretell.errors import RecipeError, unknown
from foretell.policies.stop.features import FEATURES

FORMAT = 1
DIGITS = 12  # of the file's sha256 that name it


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """Features in, log-odds out that committing now emits the final answer."""

    names: tuple[str, ...]
    mean: Tensor  # [F]
    scale: Tensor  # [F]
    layers: tuple[tuple[Tensor, Tensor], ...]  # weight [out, in] and bias [out] of each
    trained: Mapping[str, Any] = field(default_factory=dict)  # on what, for whoever asks

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in FEATURES:
                raise RecipeError(unknown("feature", name, FEATURES))
        if not self.names or not self.layers:
            raise RecipeError("a head needs a feature and a layer at least")
        width = len(self.names)
        if not self.mean.shape == self.scale.shape == (width,) or not (self.scale > 0).all():
            raise RecipeError(f"{width} features need as many means and positive scales")
        for weight, bias in self.layers:
            if weight.dim() != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
                raise RecipeError(f"a layer takes {width} numbers, got a weight of {tuple(weight.shape)}")
            width = len(weight)
        if width != 1:
            raise RecipeError(f"the last layer must give one number, got {width}")

    def __call__(self, values: Tensor) -> Tensor:
        """Log-odds [B] from features [B, F]."""
        hidden = (values - self.mean.to(values.device)) / self.scale.to(values.device)
        for index, (weight, bias) in enumerate(self.layers):
            hidden = (hidden.tanh() if index else hidden) @ weight.to(values.device).T + bias.to(values.device)
        return hidden.squeeze(1)

    def text(self) -> str:
        """As a file holds it."""
        layers = [{"weight": _plain(weight), "bias": _plain(bias)} for weight, bias in self.layers]
        whole = {
            "foretell_judge": FORMAT,
            "features": list(self.names),
            "mean": _plain(self.mean),
            "scale": _plain(self.scale),
            "layers": layers,
            "trained": dict(self.trained),
        }
        lines = (f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in whole.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"


def read_head(path: str | Path) -> tuple[Head, str]:
    """The head in a file, and the first digits of the file's sha256."""
    try:
        written = Path(path).read_bytes()
    except OSError as error:
        raise RecipeError(f"cannot read the judge {path}: {error.strerror}") from error
    except ValueError as error:  # no file can have such a name
        raise RecipeError(f"cannot read the judge {str(path)!r}: {error}") from error
    try:
        return _head(json.loads(written)), hashlib.sha256(written).hexdigest()[:DIGITS]
    except (ValueError, RecursionError) as error:  # also what a head itself refuses
        raise RecipeError(f"{path} holds no judge: {error}") from error


def _head(value: Any) -> Head:
    if not isinstance(value, dict) or "foretell_judge" not in value:
        raise RecipeError('expected an object with "foretell_judge"')
    if value["foretell_judge"] != FORMAT:
        raise RecipeError(f"its format is {value['foretell_judge']!r}; this release reads {FORMAT}")
    for name in ("features", "mean", "scale", "layers", "trained"):
        if name not in value:
            raise RecipeError(f"{name!r} is missing")
    names, trained = _texts("features", value["features"]), value["trained"]
    if not isinstance(trained, dict):
        raise RecipeError(f"'trained' must be an object, got {trained!r:.60}")
    _texts("examples", trained.get("examples", []))  # by which calibration knows them again
    mean, scale = _numbers("mean", value["mean"]), _numbers("scale", value["scale"])
    return Head(names, mean, scale, _layers(value["layers"]), trained)


def _layers(value: Any) -> tuple[tuple[Tensor, Tensor], ...]:
    if not isinstance(value, list) or not all(
        isinstance(one, dict) and {"weight", "bias"} <= one.keys() for one in value
    ):
        raise RecipeError(f"'layers' must be a list of objects with a weight and a bias, got {value!r:.60}")
    return tuple((_numbers("weight", one["weight"]), _numbers("bias", one["bias"])) for one in value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise RecipeError(f"{name!r} must be a list of texts, got {value!r:.60}")
    return tuple(value)


def _numbers(name: str, value: Any) -> Tensor:
    try:
        found = torch.tensor(value, dtype=torch.float32)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:  # torch has all of these for what is none
        raise RecipeError(f"{name!r} must be a list of numbers: {error}") from error
    if not found.isfinite().all():
        raise RecipeError(f"every number of {name!r} must be finite")
    return found


def _plain(values: Tensor) -> Any:
    """As nested lists of short numbers, which are exactly the ones that are read back."""
    if values.dim():
        return [_plain(one) for one in values]
    number = float(values)
    digits = next((d for d in range(6, 9) if torch.tensor(float(f"{number:.{d}g}")) == values), 9)
    return float(f"{number:.{digits}g}") if math.isfinite(number) else number
