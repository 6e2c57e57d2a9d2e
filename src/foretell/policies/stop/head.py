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
        if len(self.mean) != len(self.names) or len(self.scale) != len(self.names) or not (self.scale > 0).all():
            raise RecipeError(f"{len(self.names)} features need as many means and positive scales")
        width = len(self.names)
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
    try:
        return _head(json.loads(written)), hashlib.sha256(written).hexdigest()[:DIGITS]
    except (ValueError, KeyError, TypeError) as error:  # also what a head itself refuses
        raise RecipeError(f"{path} holds no judge: {error}") from error


def _head(value: Any) -> Head:
    if not isinstance(value, dict) or "foretell_judge" not in value:
        raise RecipeError('expected an object with "foretell_judge"')
    if value["foretell_judge"] != FORMAT:
        raise RecipeError(f"its format is {value['foretell_judge']!r}; this release reads {FORMAT}")
    for name in ("features", "mean", "scale", "layers", "trained"):
        if name not in value:
            raise RecipeError(f"{name!r} is missing")
    layers = tuple((_numbers(one["weight"]), _numbers(one["bias"])) for one in value["layers"])
    return Head(tuple(value["features"]), _numbers(value["mean"]), _numbers(value["scale"]), layers, value["trained"])


def _numbers(values: Any) -> Tensor:
    found = torch.tensor(values, dtype=torch.float32)
    if not found.isfinite().all():
        raise RecipeError("every number of it must be finite")
    return found


def _plain(values: Tensor) -> Any:
    """As nested lists of short numbers, which are exactly the ones that are read back."""
    if values.dim():
        return [_plain(one) for one in values]
    number = float(values)
    digits = next((d for d in range(6, 9) if torch.tensor(float(f"{number:.{d}g}")) == values), 9)
    return float(f"{number:.{digits}g}") if math.isfinite(number) else number
