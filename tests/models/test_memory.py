"""Free memory, what a model needs, and the message for one that does not fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import foretell
from foretell.errors import ModelError
from foretell.models import memory
from foretell.models.load import load_model
from foretell.models.memory import Footprint, format_bytes, free_memory, row_values
from foretell.models.transformer import TransformerConfig

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GB = 1_000_000_000
# LLaDA-8B: 8 billion parameters, most of them in the blocks.
EIGHT = Footprint("llada", 8 * GB, 7 * GB, 0, torch.bfloat16)


def pretend(monkeypatch: pytest.MonkeyPatch, *, bf16: bool = True, **free: float) -> None:
    """Pretend that the devices have this much free memory, in GB."""
    sizes = {name: int(size * GB) for name, size in free.items()}
    monkeypatch.setattr(memory, "free_memory", lambda device: sizes.get(device.type))
    monkeypatch.setattr(memory, "multiplies_bfloat16", lambda _: bf16)


def test_units() -> None:
    assert [format_bytes(size) for size in (-5, 8.2e6, 999e6, 1e9, 16.06e9)] == [
        *("0 MB", "8 MB", "999 MB"),
        *("1.0 GB", "16.1 GB"),
    ]


def test_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 5000)
    assert free_memory(CPU) == 5000
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    assert free_memory(CPU) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # as on macOS
    monkeypatch.delattr(os, "sysconf")
    assert free_memory(CPU) is None  # as on Windows
    assert free_memory(torch.device("meta")) is None


def test_free_memory_of_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7 if device.index == 1 else 5, 9))
    assert free_memory(torch.device("cuda:1")) == 7
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 9)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 2)
    assert free_memory(torch.device("mps")) == 7


def test_a_row_holds_keys_values_states_and_logits() -> None:
    config = TransformerConfig(100, 1, dim=8, layers=3, heads=4, kv_heads=2, hidden=16)
    assert row_values(config, 10) == 2 * 3 * 2 * 2 * 10 + 10 * (6 * 8 + 3 * 16) + 2 * 64 * 100


@pytest.mark.parametrize(
    ("device", "dtype", "free", "bf16", "says"),
    [
        (
            *(CPU, torch.float32, {"cpu": 24}, True),
            'in float32 on cpu, with one row of text, and 24.0 GB are free; dtype="bfloat16" needs 16.0 GB; dtype="bf',
        ),
        (CPU, torch.float32, {"cpu": 17}, False, 'dtype="bfloat16" needs 16.0 GB, but is slower on this CPU'),
        (CPU, torch.bfloat16, {"cpu": 10}, True, 'free; dtype="bfloat16" with quantize="int8" needs 9.0 GB'),
        (CPU, torch.bfloat16, {"cpu": 4}, True, "4.0 GB are free; no other dtype fits either"),
        (
            *(CUDA, torch.bfloat16, {"cuda": 8, "cpu": 64}, True),
            'and 8.0 GB are free; device="cpu" needs 16.0 GB, and 64.0 GB are free there',
        ),
        (CUDA, torch.float32, {"cuda": 24, "cpu": 8}, False, 'free; dtype="float16" needs 16.0 GB'),
        (CUDA, torch.bfloat16, {"cuda": 8, "cpu": 20}, False, "no other dtype fits"),  # 32 GB on that CPU
    ],
)
def test_a_model_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, dtype: torch.dtype, free: Any, bf16: bool, says: str
) -> None:
    pretend(monkeypatch, bf16=bf16, **free)
    with pytest.raises(ModelError) as refused:
        EIGHT.check(device, dtype)
    assert says in str(refused.value)
    assert str(refused.value).startswith("llada: its 8 billion parameters need ")


def test_a_model_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cpu=16.01, cuda=16.01)
    EIGHT.check(CPU, torch.bfloat16)
    EIGHT.check(torch.device("mps"), torch.float32)  # nothing is known about its memory
    pretend(monkeypatch, cpu=10, cuda=10)
    EIGHT.check(CPU, torch.bfloat16, "int8")  # the originals stay in their file
    with pytest.raises(ModelError):
        EIGHT.check(CUDA, torch.bfloat16, "int8")  # the originals are copied first
    pretend(monkeypatch, cpu=16.01)
    with pytest.raises(ModelError):
        Footprint("x", 8 * GB, row=GB, stored=torch.bfloat16).check(CPU, torch.bfloat16)


def test_loading_checks_the_memory_first(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[int, int]] = []
    pretend(monkeypatch, cpu=0.0001)
    with pytest.raises(ModelError, match="0 MB are free"):
        load_model(checkpoint, progress=lambda *counts: loaded.append(counts))
    assert not loaded


def test_progress_of_a_load(checkpoint: Path) -> None:
    seen: list[tuple[int, int]] = []
    engine = foretell.load(checkpoint, progress=lambda *counts: seen.append(counts))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (engine.weight_bytes, engine.weight_bytes)
    assert engine.weight_bytes == 4 * engine.size


def test_an_engine_says_what_runs_where(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("foretell.engine.engine.free_memory", lambda _: 4 * GB)
    with caplog.at_level("INFO", "foretell"):
        engine = foretell.load(checkpoint)
    line = "random: 0.0256M parameters, float32 on cpu (1 thread), 0 MB used, 4.0 GB free"
    assert engine.describe() == line
    assert line in caplog.text
    assert engine.free_bytes == 4 * GB - engine.weight_bytes
    engine.size, engine.threads, engine.device, engine.free_bytes = 8_015_581_184, None, torch.device("cuda:0"), None
    assert engine.describe() == "random: 8.02B parameters, float32 on cuda:0, 0 MB used"


def test_rows_that_fit(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = foretell.load(checkpoint)
    values = row_values(engine.model.config, 256)  # type: ignore[attr-defined]  # the context of this checkpoint
    engine.free_bytes = 5 * 4 * values + 7
    assert engine.count_rows(64) == 5
    engine.free_bytes = -1
    assert engine.count_rows(64) == 0
    engine.free_bytes = None
    assert engine.count_rows(64) is None


def test_int8_weights_are_counted_as_they_are_stored(checkpoint: Path) -> None:
    pytest.importorskip("torchao", reason="int8 weights need torchao")
    plain, rounded = foretell.load(checkpoint), foretell.load(checkpoint, quantize="int8")
    assert rounded.weight_bytes < 0.7 * plain.weight_bytes
