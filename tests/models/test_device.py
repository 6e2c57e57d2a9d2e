"""The device and the dtype that are chosen on machines with and without CUDA, MPS and bfloat16 instructions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from foretell.errors import RequestError
from foretell.models.device import SMALL, choose_device, choose_dtype, multiplies_bfloat16, parse_dtype

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda:1"), torch.device("mps")
LARGE = SMALL + 1
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Pretend to be a machine with this hardware."""

    def pretend(*, cuda: bool = False, mps: bool = False, gpu_bf16: bool = False, **capabilities: bool) -> None:
        def supports_bf16(including_emulation: bool = True) -> bool:
            return gpu_bf16 or including_emulation

        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", supports_bf16)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *_: gpu_bf16)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
        monkeypatch.setattr(torch, "empty", lambda *_, **__: None)

    return pretend


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_device_is_cuda_then_mps_then_the_cpu(machine: Machine, cuda: bool, mps: bool, chosen: str) -> None:
    machine(cuda=cuda, mps=mps)
    assert choose_device() == choose_device("auto") == torch.device(chosen)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device(CPU) == CPU


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(RequestError, match="device 'cuda:99' cannot be used here"):
        choose_device("cuda:99")


@pytest.mark.parametrize(
    ("device", "hardware", "stored", "chosen"),
    [
        (CPU, {"avx512_bf16": True}, "bfloat16", "bfloat16"),
        (CPU, {"amx_bf16": True}, "bfloat16", "bfloat16"),
        (CPU, {"avx512_f": True, "avx512_vnni": True}, "bfloat16", "float32"),  # emulated there, and slower
        (CPU, {"bf16": True}, "bfloat16", "float32"),  # Arm
        (CPU, {"avx512_bf16": True}, "float16", "float32"),
        (CPU, {"avx512_bf16": True}, "float32", "float32"),
        (CUDA, {"gpu_bf16": True}, "bfloat16", "bfloat16"),
        (CUDA, {"gpu_bf16": False}, "bfloat16", "float16"),
        (CUDA, {"gpu_bf16": True}, "float16", "float16"),
        (CUDA, {"gpu_bf16": True}, "float32", "float32"),
        (MPS, {"gpu_bf16": True}, "bfloat16", "bfloat16"),
        (MPS, {"gpu_bf16": False}, "bfloat16", "float16"),
    ],
)
def test_the_dtype_is_the_stored_one_where_the_hardware_multiplies_it(
    machine: Machine, device: torch.device, hardware: dict[str, bool], stored: str, chosen: str
) -> None:
    machine(**hardware)
    assert choose_dtype(device, getattr(torch, stored), LARGE) == getattr(torch, chosen)
    assert choose_dtype(device, getattr(torch, stored), SMALL) == torch.float32


def test_no_other_device_multiplies_bfloat16(machine: Machine) -> None:
    machine(avx512_bf16=True)
    assert multiplies_bfloat16(CPU)
    assert not multiplies_bfloat16(torch.device("meta"))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *((name, torch.bfloat16) for name in ("bf16", "bfloat16", "torch.bfloat16", torch.bfloat16)),
        *((name, torch.float16) for name in ("fp16", "half", "float16", torch.half)),
        *((name, torch.float32) for name in ("fp32", "float", "float32")),
        ("auto", None),
        (None, None),
    ],
)
def test_names_of_dtypes(given: Any, meant: torch.dtype | None) -> None:
    assert parse_dtype(given) == meant


def test_an_unknown_dtype() -> None:
    with pytest.raises(RequestError, match=r"unknown dtype 'bf15'.*available: auto, bfloat16, float16, float32"):
        parse_dtype("bf15")
