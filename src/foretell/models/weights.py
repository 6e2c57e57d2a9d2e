"""Read the tensors of a checkpoint folder by name, from one safetensors file or from shards with an index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.overrides import TorchFunctionMode

from foretell.errors import ModelError, show
from foretell.models.family import read_json
from foretell.storage import is_file

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_NO_WEIGHTS = "training_args.bin"
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}  # as a file's header names them
_SHOWN = 5  # names in an error message
# Tied tensors share memory, which safetensors refuses, so each tensor is copied.
CONVERT = (
    'python -c "import glob, torch; from safetensors.torch import save_file; '
    "save_file({{name: tensor.contiguous().clone() for file in sorted(glob.glob('{pattern}')) "
    "for name, tensor in torch.load(file, map_location='cpu', weights_only=True).items()}}, "
    "'{single}', {{'format': 'pt'}})\""
)


@dataclass(frozen=True, slots=True)
class Weights:
    """The location of every tensor. A tensor is read only when it is requested."""

    listing: Path  # the file that lists the tensors: the index, or the single file
    files: dict[Path, Any]  # open safetensors files
    file_of: dict[str, Path]  # the file of each tensor

    @classmethod
    def locate(cls, folder: Path) -> Weights:
        if (folder / SINGLE).is_file():
            path = folder / SINGLE
            opened = _open(path)
            return cls(path, {path: opened}, dict.fromkeys(opened.keys(), path))
        if (folder / INDEX).is_file():
            return cls._locate_shards(folder / INDEX)
        raise missing_weights(folder)

    @classmethod
    def _locate_shards(cls, index: Path) -> Weights:
        file_of: dict[str, Path] = {}
        for tensor, shard in _weight_map(index).items():
            path = index.parent / shard
            if path.parent != index.parent or path.suffix != ".safetensors":
                raise ModelError(
                    f"{index}: puts tensor {tensor} in {show(shard)}; it must be a .safetensors file of the same folder"
                )
            if not is_file(path):
                raise ModelError(f"{path}: missing, though {index.name} says that it holds {tensor}")
            file_of[tensor] = path
        files = {path: _open(path) for path in sorted(set(file_of.values()))}
        for path, opened in files.items():
            # List tensors that are missing from the index too, so that they can be refused.
            file_of |= {tensor: path for tensor in opened.keys() if tensor not in file_of}  # noqa: SIM118
        return cls(index, files, file_of)

    def refuse_unexpected(self, expected: set[str], ignored: tuple[str, ...]) -> None:
        """Raise ModelError if a tensor belongs to no parameter; names that end in one of `ignored` are skipped."""
        extra = sorted(name for name in self.file_of if name not in expected and not name.endswith(ignored))
        if extra:
            more = f" and {len(extra) - _SHOWN} more" if len(extra) > _SHOWN else ""
            raise ModelError(
                f"{self.file_of[extra[0]]}: unexpected tensor {', '.join(extra[:_SHOWN])}{more}; the network that "
                f"config.json describes has no such weight"
            )

    def read(self, name: str) -> Tensor:
        """Return a memory-mapped tensor: its pages are read when they are used."""
        path = self._find_file(name)
        with _explain_errors(path, name):
            tensor: Tensor = self.files[path].get_tensor(name)
        return tensor

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ModelError unless the tensor has this shape and a dtype that can be run, as the file's header says."""
        path, found = self._find_file(name), self.shape(name)
        if found != shape:
            raise ModelError(f"{path}: tensor {name} has the shape {found}; config.json says that it must be {shape}")
        self.dtype(name)

    def shape(self, name: str) -> tuple[int, ...]:
        path = self._find_file(name)
        with _explain_errors(path, name):
            return tuple(self.files[path].get_slice(name).get_shape())

    def size(self) -> int:
        """Return the number of stored values."""
        return sum(prod(self.shape(name)) for name in self.file_of)

    def rows(self, name: str) -> int:
        """Return the number of rows of a matrix."""
        shape = self.shape(name)
        if len(shape) != 2:
            raise ModelError(f"{self._find_file(name)}: tensor {name} has the shape {shape}; it must be a matrix")
        return shape[0]

    def dtype(self, name: str) -> torch.dtype:
        path = self._find_file(name)
        with _explain_errors(path, name):
            stored = self.files[path].get_slice(name).get_dtype()
        if stored not in _DTYPES:
            raise ModelError(
                f"{path}: tensor {name} is stored as {stored}; it must be {', '.join(_DTYPES)} (float32, bfloat16, "
                f"float16); quantised checkpoints cannot be run"
            )
        return _DTYPES[stored]

    def sizes(self) -> dict[str, int]:
        """Return the number of values of each tensor, from the headers of the files."""
        return {name: prod(self.shape(name)) for name in self.file_of}

    def _find_file(self, name: str) -> Path:
        if name not in self.file_of:
            raise ModelError(f"{self.listing}: tensor {name} is missing")
        return self.file_of[name]


class SkipInitialisation(TorchFunctionMode):
    """Skips the random initialisation of a network whose weights are about to be replaced.

    Initialisation on the meta device does nothing but import torch's compiler, which takes seconds and 80 MB.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("kaiming_uniform_", "normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def missing_weights(folder: Path) -> ModelError:
    """Return the error for a folder without safetensors, with a command that converts its pickled weights."""
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES and path.name != _NO_WEIGHTS)
    if not pickles:
        return ModelError(f"{folder}: has neither {SINGLE} nor {INDEX}; weights in any other format are never read")
    # A pattern, because a command must not contain an untrusted file name.
    is_usual = any(name.startswith("pytorch_model") for name in pickles)
    pattern = "pytorch_model*.bin" if is_usual else f"*{Path(pickles[0]).suffix}"
    command = CONVERT.format(pattern=pattern, single=SINGLE)
    return ModelError(
        f"{folder}: has {', '.join(pickles[:_SHOWN])} but no {SINGLE}; pickled weights can run code when they are "
        f"opened and are never read. To convert them without running code, run this in that folder: {command}"
    )


def _weight_map(index: Path) -> dict[str, str]:
    file_of = read_json(index).get("weight_map")
    if not isinstance(file_of, dict) or not all(isinstance(shard, str) for shard in file_of.values()):
        raise ModelError(f"{index}: its weight_map must be an object of tensor names and file names")
    return file_of


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, ValueError) as problem:
        raise ModelError(
            f"{path}: not a complete safetensors file ({problem}); it may be cut short: copy or download it again"
        ) from problem


@contextmanager
def _explain_errors(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except Exception as problem:  # for a damaged file, safetensors and torch raise nearly any type
        raise ModelError(f"{path}: tensor {name} is missing or unreadable ({problem})") from problem
