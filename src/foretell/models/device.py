"""Choose the device and the dtype that a model runs in."""

from __future__ import annotations

import torch

from foretell.errors import RequestError, unknown

AUTO = "auto"
SMALL = 50_000_000  # parameters up to which a model runs in float32 and, on a CPU, on one thread
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ALIASES = {"float": "float32", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_MAC_WITH_BFLOAT16 = (14, 0)


def choose_device(device: torch.device | str = AUTO) -> torch.device:
    """Return the device; "auto" is CUDA, then MPS, then the CPU. Raises RequestError if it cannot be used here."""
    if device == AUTO:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        target = torch.device(device)
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise RequestError(f"device {str(device)!r} cannot be used here: {reason}") from problem
    return target


def parse_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype of this name, such as bfloat16 or bf16; None for "auto"."""
    name = str(AUTO if dtype is None else dtype).removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name == AUTO:
        return None
    if name not in DTYPES:
        raise RequestError(unknown("dtype", name, (*DTYPES, AUTO)))
    return DTYPES[name]


def choose_dtype(device: torch.device, stored: torch.dtype, parameters: int) -> torch.dtype:
    """Return the dtype for weights that are stored in another: bfloat16 only where the hardware multiplies it.

    Small models run in float32 everywhere: it costs little, and their numbers are the same on every machine.
    """
    if stored == torch.float32 or parameters <= SMALL:
        return torch.float32
    if device.type == "cpu":
        return torch.bfloat16 if stored == torch.bfloat16 and multiplies_bfloat16(device) else torch.float32
    return stored if stored == torch.float16 or multiplies_bfloat16(device) else torch.float16


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether this device has instructions that multiply bfloat16.

    Without them torch still computes in bfloat16, but several times slower than in float32. Arm CPUs count as
    without, because there it depends on how torch was built.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "mps":
        return torch.backends.mps.is_macos_or_newer(*_MAC_WITH_BFLOAT16)
    able = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(able.get("avx512_bf16") or able.get("amx_bf16"))
