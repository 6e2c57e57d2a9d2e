"""Damaged trace files: each ends in a TraceError or in exactly the stored traces, and none takes much memory."""

from __future__ import annotations

import io
import json
import os
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foretell.engine import trace_files
from foretell.engine.request import Layout
from foretell.engine.trace import STATISTICS, Trace
from foretell.engine.trace_files import load_traces, save_traces
from foretell.errors import StorageError, TraceError
from tests.engine.test_trace import trace_of

Change = Callable[[dict[str, Any], dict[str, Any]], object]  # of the header and of the arrays


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.npz"
    save_traces(path, [trace_of(seed=1, layout=Layout(5, ((0, 3), (4, 2)), (1, 1)))])
    return path


def rewrite(path: Path, change: Change) -> None:
    with np.load(path) as stored:
        arrays: dict[str, Any] = dict(stored)
    header = json.loads(str(arrays.pop("header")))
    change(header, arrays)
    with path.open("wb") as file:
        np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)


def is_same(one: Trace, other: Trace) -> bool:
    plain = all(getattr(one, name) == getattr(other, name) for name in ("request", "mask_id", "settled", "words"))
    return plain and all(torch.equal(getattr(one, n), getattr(other, n)) for n in ("tokens", "filled_at", *STATISTICS))


def test_a_flipped_bit_is_noticed_or_harmless(small: Path) -> None:
    (trace,), raw, rng = load_traces(small), small.read_bytes(), random.Random(0)
    refused = 0
    for place in rng.sample(range(8 * len(raw)), 800):
        small.write_bytes(raw[: place // 8] + bytes([raw[place // 8] ^ 1 << place % 8]) + raw[place // 8 + 1 :])
        try:
            (found,) = load_traces(small)
        except TraceError:
            refused += 1
        else:
            assert is_same(trace, found)
    assert 400 < refused < 800


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda header, _: header["traces"][0].update(steps="3"), "must be a whole number, got '3'"),
        (lambda header, _: header["traces"][0].update(steps=0), "`int` >= 1|whole number >= 1"),
        (lambda header, _: header["traces"][0].update(steps=2), r"must be an array of shape \(4, 10\)"),
        (lambda header, _: header["traces"][0].update(prompt=[1, -2]), "prompt.* >= 0, got -2"),
        (lambda header, _: header["traces"][0].update(prompt=[2**40]), "prompt.* got 1099511627776"),
        (lambda header, _: header["traces"][0].update(seed=2**70), "seed"),
        (lambda header, _: header["traces"][0].update(words={"one": "1"}), "pattern|words"),
        (lambda header, _: header["traces"][0].update(recipe="nothing"), "nothing"),
        (lambda header, _: header["traces"][0].pop("mask_id"), "'mask_id' is missing"),
        (lambda header, _: header["traces"][0]["layout"].update(length=-5), "length.* >= 1, got -5"),
        (lambda header, _: header["traces"][0]["layout"].update(length=10**4000), "length"),
        (lambda header, _: header["traces"][0]["layout"].update(pins=[[9, 1]]), r"pinned offsets must lie in 0\.\.4"),
        (lambda header, _: header["traces"][0]["layout"].update(pins=[]), "out of range"),
        (lambda header, _: header["traces"][0]["layout"].update(answer=[4, 2]), "does not fit a window of 5"),
        (lambda header, _: header.update(traces={}), "'traces' must be a list"),
        (lambda header, _: header.pop("version"), 'expected an object with "version"'),
        (lambda _, arrays: arrays["tokens"].__setitem__(3, 255), "out of range"),  # the sign
        (lambda _, arrays: arrays["filled_at"].__setitem__(0, 99), "out of range"),
        (lambda _, arrays: arrays.pop("gap"), "'gap' must be an array"),
        (lambda _, arrays: arrays.update(gap=np.zeros(3)), "'gap' must be an array"),
        (lambda _, arrays: arrays.update(gap=arrays["gap"].astype("<i8")), "'gap' must have 60 bytes, got 480"),
    ],
)
def test_a_wrong_value_is_refused(small: Path, change: Change, says: str) -> None:
    rewrite(small, change)
    with pytest.raises(TraceError, match=rf"small\.npz is not a trace file that foretell .* can read: .*({says})"):
        load_traces(small)


def test_an_unread_position_may_have_any_statistic(small: Path) -> None:
    rewrite(small, lambda _, arrays: arrays.update(gap=np.full_like(arrays["gap"], 255)))
    assert load_traces(small)[0].gap.isnan().all()


def test_a_deep_header_is_refused(small: Path) -> None:
    with small.open("wb") as file:
        np.savez_compressed(file, header=np.array("[" * 100_000))
    with pytest.raises(TraceError, match="nested too deeply"):
        load_traces(small)


def bomb(size: int, **settings: Any) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.npy", b"\0" * size, **settings)
    return memory.getvalue()


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "ALWAYS_UNPACKED", 1000)
    size = 20_000_000
    honest = bomb(size)
    stated, small = size.to_bytes(4, "little"), (1000).to_bytes(4, "little")
    assert honest.count(stated) == 2
    for content, says in (
        (honest, "unpacks to 20,000,000 bytes; of a file of its size, at most 1,9"),
        (honest.replace(stated, small), "is not a complete trace file"),  # the directory lies
        (bomb(size, compress_type=zipfile.ZIP_BZIP2).replace(stated, small), "is not a trace file that"),
    ):
        (tmp_path / "bomb.npz").write_bytes(content)
        tracemalloc.start()
        try:
            with pytest.raises(TraceError, match=says):
                load_traces(tmp_path / "bomb.npz")
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.timeout(20)
def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path, tmp_path / ("x" * 300)):
        with pytest.raises(TraceError, match="cannot read the trace file"):
            load_traces(path)


@pytest.mark.parametrize("name", ["x" * 300, "missing/one.npz", "a\0b", "."])
def test_a_file_that_cannot_be_written_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        save_traces(tmp_path / name, [])
    assert list(tmp_path.iterdir()) == []
