"""Several devices: which worker decodes where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from foretell.engine.engine import Engine, load
from foretell.evaluation import run as module
from foretell.evaluation.devices import device_of, list_devices
from foretell.evaluation.records import parts
from foretell.evaluation.run import Evaluation, evaluate


def test_names_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_devices("cuda") == ("cuda",)
    assert list_devices("cuda:1, cuda:3") == ("cuda:1", "cuda:3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert list_devices("all") == ("auto",)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert list_devices("all") == ("cuda:0", "cuda:1", "cuda:2")
    assert [device_of("all", worker) for worker in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]


def test_each_worker_has_its_own_device(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []
    started: list[int] = []

    def load_anywhere(model: str, device: str, *others: Any, **options: Any) -> Engine:
        devices.append(device)
        return load(model, "cpu", *others, **options)

    @contextmanager
    def offload(_: Engine) -> Iterator[None]:
        devices.append("offloaded")
        yield

    def run_here(work: Callable[[int], None], count: int, *_: Any) -> None:
        started.append(count)
        for worker in range(count):
            work(worker)

    monkeypatch.setattr(module, "load", load_anywhere)
    monkeypatch.setattr(module, "run_workers", run_here)
    monkeypatch.setattr(Engine, "offloaded", offload)
    evaluation = Evaluation(
        str(checkpoint), "sudoku", ("full",), tmp_path, limit=4, batch_size=1, device="cuda:2,cuda:5"
    )
    assert len(evaluate(evaluation)) == 4
    assert started == [2], "one worker per device, although workers=1"
    assert devices == ["cuda:2", "offloaded", "cuda:2", "cuda:5"], "first for the checks in this process"
    assert len(parts(tmp_path)) == 2


def test_offloaded_weights_are_in_host_memory(checkpoint: Path) -> None:
    engine = load(checkpoint)
    network: Any = engine.model
    engine.device = torch.device("meta")  # stands for a device that this machine does not have
    with engine.offloaded():
        assert {weight.device.type for weight in network.parameters()} == {"cpu"}
    assert {weight.device.type for weight in network.parameters()} == {"meta"}
