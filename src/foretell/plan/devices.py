"""Peak rates of common GPUs, from their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foretell.errors import RequestError, unknown, within

LARGEST = 1e9  # TFLOP/s, GB/s and GB that can be stated by hand


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates of one GPU. Arithmetic is dense (without structured sparsity) and accumulates in float32."""

    name: str
    half: float  # FLOP/s of bfloat16 and float16 matrix products
    single: float  # FLOP/s of float32 outside of tensor cores, torch's default
    bandwidth: float  # bytes per second between memory and processor
    memory: float | None  # bytes
    source: str

    def flops(self, dtype: torch.dtype) -> float:
        return self.single if dtype == torch.float32 else self.half


def _device(
    name: str, half: float, single: float, bandwidth: float, memory: float, source: str
) -> Device:  # in TFLOP/s, GB/s and GB
    return Device(name, half * 1e12, single * 1e12, bandwidth * 1e9, memory * 1e9, source)


_ADA = "NVIDIA Ada GPU Architecture whitepaper, V2.0"
_L = "NVIDIA {} Tensor Core GPU datasheet, 2023, half of the figure with sparsity"
DEVICES: dict[str, Device] = {
    "a10": _device("A10", 125, 31.2, 600, 24, "NVIDIA A10 Tensor Core GPU datasheet, 2021"),
    "l4": _device("L4", 121, 30.3, 300, 24, _L.format("L4")),
    "l40s": _device("L40S", 362, 91.6, 864, 48, "NVIDIA L40S datasheet, 2023"),
    "a100-40gb": _device("A100 SXM 40 GB", 312, 19.5, 1555, 40, "NVIDIA A100 Tensor Core GPU datasheet, 2021"),
    "a100": _device("A100 SXM 80 GB", 312, 19.5, 2039, 80, "NVIDIA A100 Tensor Core GPU datasheet, 2021"),
    "h100-pcie": _device("H100 PCIe", 756, 51, 2000, 80, _L.format("H100").replace("2023", "2022")),
    "h100": _device("H100 SXM", 989, 67, 3350, 80, _L.format("H100")),
    "h200": _device("H200 SXM", 989, 67, 4800, 141, _L.format("H200").replace("2023", "2024")),
    "b200": _device("B200 SXM", 2250, 75, 8000, 180, "NVIDIA HGX B200 datasheet, 2024, one of eight GPUs, no sparsity"),
    "mi300x": _device("MI300X", 1307, 163, 5300, 192, "AMD Instinct MI300X accelerator data sheet, 2023"),
    "rtx-3090": _device("RTX 3090", 71, 35.6, 936, 24, "NVIDIA Ampere GA102 GPU Architecture whitepaper, V2.1"),
    "rtx-4090": _device("RTX 4090", 165, 82.6, 1008, 24, _ADA),
    "rtx-5090": _device("RTX 5090", 210, 105, 1792, 32, "NVIDIA RTX Blackwell GPU Architecture whitepaper, V1.1"),
}


def device_named(name: str) -> Device:
    """Return a device of the table. Upper case, blanks and underscores do not matter."""
    key = name.lower().replace(" ", "-").replace("_", "-")
    if key not in DEVICES:
        raise RequestError(f"{unknown('device', name, DEVICES)}; for any other one give --tflops and --bandwidth")
    return DEVICES[key]


def own_device(tflops: float | None, bandwidth: float | None, memory: float | None) -> Device:
    """Return a device from TFLOP/s in the planned dtype, GB/s and, if known, GB."""
    if tflops is None or bandwidth is None:
        missing = "--tflops" if tflops is None else "--bandwidth"
        raise RequestError(f"a device is a name (--device h100), or --tflops and --bandwidth; {missing} is missing")
    for option, value in (("--tflops", tflops), ("--bandwidth", bandwidth), ("--memory", memory)):
        if value is not None:
            within(option, value, 1e-6, LARGEST, RequestError)
    rate = tflops * 1e12
    return Device("your device", rate, rate, bandwidth * 1e9, None if memory is None else memory * 1e9, "your numbers")
