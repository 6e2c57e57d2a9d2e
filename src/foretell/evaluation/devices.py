"""Several devices for one evaluation: each worker process has its own."""

from __future__ import annotations

import torch

ALL = "all"


def list_devices(named: str) -> tuple[str, ...]:
    """Return the devices of "cuda:0,cuda:1"; "all" is every CUDA device, or the device of "auto" if there is none."""
    if named == ALL:
        return tuple(f"cuda:{index}" for index in range(torch.cuda.device_count())) or ("auto",)
    return tuple(one.strip() for one in named.split(","))


def device_of(named: str, worker: int) -> str:
    """Return the device of one worker; if there are more workers than devices, they share them evenly."""
    devices = list_devices(named)
    return devices[worker % len(devices)]
