"""How much memory a model needs, how much is free, and what would fit instead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foretell.errors import ModelError, StorageError
from foretell.models.device import multiplies_bfloat16
from foretell.models.transformer import TransformerConfig
from foretell.storage import read_text

COLUMNS = 1024  # prompt and window of the row that an estimate assumes, if the model's context is not shorter
LOGITS = 64  # positions whose logits exist at the same time
# Where Linux states the limit of a container and what it has taken: version 2 of control groups, then version 1.
_LIMITS = (
    ("sys/fs/cgroup", "memory.max", "memory.current"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def format_bytes(count: float) -> str:
    """Return a number of bytes in the unit that fits: 812 MB, 16.1 GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(0.0, count) / 1e6:.0f} MB"


def tensor_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor, also of a quantised one, which holds smaller tensors."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return int(tensor.nbytes)
    parts, _ = tensor.__tensor_flatten__()
    return sum(tensor_bytes(getattr(tensor, part)) for part in parts)


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that a new model can use on this device; None if the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    if device.type != "cpu":
        return None
    available = available_memory()
    if available is not None:
        return available
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # all of it: macOS does not say what is free
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return None


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be allocated without swapping; None where the system does not say (not Linux)."""
    free = _numbers(root / "proc/meminfo").get("MemAvailable")
    if free is None:
        return None
    available = 1024 * free
    for folder, limit, taken in _LIMITS:
        most, now = (_numbers(root / folder / name).get("") for name in (limit, taken))
        if most is not None and now is not None:
            files = _numbers(root / folder / "memory.stat")  # their pages are given back when memory is needed
            available = min(available, most - now + files.get("active_file", 0) + files.get("inactive_file", 0))
    return max(0, available)


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a file with lines like "MemAvailable: 5 kB"; a number alone has the name ""."""
    try:
        lines = read_text(path, "memory statistics").splitlines()
    except StorageError:
        return {}
    found = {}
    for line in lines:
        name, _, value = f" {line}".removesuffix(" kB").rpartition(" ")
        if value.isdecimal():
            found[name.strip().rstrip(":")] = int(value)
    return found


def row_values(config: TransformerConfig, columns: int) -> int:
    """Return about how many numbers one row of a batch needs: keys and values, the states of one layer, and logits."""
    return stored_values(config, columns) + working_values(config, columns)


def stored_values(config: TransformerConfig, columns: int) -> int:
    """Return how many keys and values a cache stores for one row."""
    return 2 * config.layers * config.kv_heads * config.head_dim * columns


def working_values(config: TransformerConfig, columns: int) -> int:
    """Return about how many numbers one row needs while a pass runs: the states of one layer, and logits."""
    return columns * (6 * config.dim + 3 * config.hidden) + 2 * LOGITS * (config.outputs or config.vocab_size)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The sizes that decide whether a model fits: numbers, not bytes."""

    name: str  # its folder, for messages
    parameters: int
    rounded: int = 0  # of these, the parameters that quantize="int8" rounds
    row: int = 0  # for one row of a batch
    stored: torch.dtype = torch.float32

    def bytes_in(self, dtype: torch.dtype, quantize: str | None = None) -> int:
        """Return the bytes of the weights and of one row."""
        rounded = self.rounded if quantize is not None else 0
        return (self.parameters - rounded + self.row) * dtype.itemsize + rounded

    def check(self, device: torch.device, dtype: torch.dtype, quantize: str | None = None) -> None:
        """Raise ModelError if the model does not fit into the free memory, with what would fit."""
        free = free_memory(device)
        needed = self.bytes_in(dtype, quantize if self._is_mapped(device, dtype) else None)
        if free is None or needed <= free:
            return
        smaller = "; ".join(self._alternatives(device, dtype, free)) or "no other dtype fits either"
        raise ModelError(
            f"{self.name}: its {self.parameters / 1e9:.3g} billion parameters need {format_bytes(needed)} in "
            f"{str(dtype).removeprefix('torch.')} on {device}, with one row of text, and {format_bytes(free)} are "
            f"free; {smaller}"
        )

    def _is_mapped(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether the weights stay in their file, so that rounding them needs no memory for the originals."""
        return device.type == "cpu" and dtype == self.stored

    def _alternatives(self, device: torch.device, dtype: torch.dtype, free: int) -> Iterator[str]:
        half = torch.bfloat16 if multiplies_bfloat16(device) or device.type == "cpu" else torch.float16
        if dtype == torch.float32 and (needed := self.bytes_in(half)) <= free:
            slower = "" if device.type != "cpu" or multiplies_bfloat16(device) else ", but is slower on this CPU"
            yield f'dtype="{str(half).removeprefix("torch.")}" needs {format_bytes(needed)}{slower}'
        if self.rounded and device.type == "cpu" and (needed := self.bytes_in(self.stored, "int8")) <= free:
            name = str(self.stored).removeprefix("torch.")
            yield f'dtype="{name}" with quantize="int8" needs {format_bytes(needed)}'
        cpu = torch.device("cpu")
        room = free_memory(cpu) if device.type != "cpu" else None
        kind = torch.bfloat16 if multiplies_bfloat16(cpu) else torch.float32
        if room is not None and (needed := self.bytes_in(kind)) <= room:
            yield f'device="cpu" needs {format_bytes(needed)}, and {format_bytes(room)} are free there'
