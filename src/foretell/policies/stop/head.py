"""The network of a judge and its file: one linear layer, or two with a tanh between, over standardised features."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from foretell.errors import ForetellError, RecipeError, StorageError, unknown
from foretell.policies.stop.features import FEATURES
from foretell.storage import check_format, convert, parse_json, read_file

FORMAT = 1
LARGEST = 1 << 24  # bytes of a file; the judges that `foretell judge` trains have about 10 KB
DIGITS = 12  # leading digits of the sha256 that identify the file


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """Maps features to the log-odds that committing now emits the final answer."""

    names: tuple[str, ...]
    mean: Tensor  # [F]
    scale: Tensor  # [F]
    layers: tuple[tuple[Tensor, Tensor], ...]  # weight [out, in] and bias [out] per layer
    trained: Mapping[str, Any] = field(default_factory=dict)  # what it was trained on

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in FEATURES:
                raise RecipeError(unknown("feature", name, FEATURES))
        if not self.names or not self.layers:
            raise RecipeError("a head needs a feature and a layer")
        width = len(self.names)
        if not self.mean.shape == self.scale.shape == (width,) or not (self.scale > 0).all():
            raise RecipeError(f"{width} features need {width} means and {width} positive scales")
        for weight, bias in self.layers:
            if weight.dim() != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
                raise RecipeError(f"a layer takes {width} numbers, got a weight of {tuple(weight.shape)}")
            width = len(weight)
        if width != 1:
            raise RecipeError(f"the last layer must give one number, got {width}")

    def __call__(self, values: Tensor) -> Tensor:
        """Return log-odds [B] for features [B, F]."""
        hidden = (values - self.mean.to(values.device)) / self.scale.to(values.device)
        for index, (weight, bias) in enumerate(self.layers):
            hidden = (hidden.tanh() if index else hidden) @ weight.to(values.device).T + bias.to(values.device)
        return hidden.squeeze(1)

    def text(self) -> str:
        """Return the text of the head's file."""
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


class Layer(msgspec.Struct, forbid_unknown_fields=True):
    """The numbers of one layer in a file."""

    weight: list[list[float]]
    bias: list[float]


class HeadFile(msgspec.Struct, forbid_unknown_fields=True):
    """The shape of a head's file."""

    foretell_judge: int
    features: list[str]
    mean: list[float]
    scale: list[float]
    layers: list[Layer]
    trained: dict[str, Any]


class Training(msgspec.Struct):
    """The part of `trained` that calibration reads: the examples it must not use again."""

    examples: list[str] = []


def read_head(path: str | Path) -> tuple[Head, str]:
    """Load a head, and the first digits of its file's sha256. Raises StorageError if it is missing or damaged."""
    written = read_file(path, "judge", limit=LARGEST)
    try:
        return _head(parse_json(written, "it")), hashlib.sha256(written).hexdigest()[:DIGITS]
    except ForetellError as error:
        raise StorageError(f"{path} is not a judge: {error}") from error


def _head(value: Any) -> Head:
    check_format(value, "foretell_judge", FORMAT)
    file = convert(value, HeadFile)
    convert({"examples": file.trained.get("examples", [])}, Training)
    layers = tuple((_tensor("weight", one.weight), _tensor("bias", one.bias)) for one in file.layers)
    return Head(tuple(file.features), _tensor("mean", file.mean), _tensor("scale", file.scale), layers, file.trained)


def _tensor(name: str, values: Sequence[Any]) -> Tensor:
    try:
        found = torch.tensor(values, dtype=torch.float32)
    except ValueError as error:  # rows of different lengths
        raise StorageError(f"{name!r} must be a matrix: {error}") from error
    if not found.isfinite().all():
        raise StorageError(f"every number of {name!r} must be finite")
    return found


def _plain(values: Tensor) -> Any:
    """Return nested lists of the shortest numbers that read back exactly."""
    if values.dim():
        return [_plain(one) for one in values]
    number = float(values)
    digits = next((d for d in range(6, 9) if torch.tensor(float(f"{number:.{d}g}")) == values), 9)
    return float(f"{number:.{digits}g}") if math.isfinite(number) else number
