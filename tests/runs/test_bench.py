"""runs/bench.py at small sizes: what it measures, what it writes, and its goals."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch

RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.syspath_prepend(str(RUNS))
    yield {name: importlib.import_module(name) for name in ("bench", "bench_page", "bench_sizes", "bench_queue")}
    plt.close("all")
    torch.set_num_threads(1)


def test_all_parts_make_a_page(modules: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, small = modules["bench"], modules["bench_sizes"].Size(64, 1, 640, 8, 64, 8)
    for name in ("BIG", "THIN", "SMALL"):
        monkeypatch.setattr(bench, name, small)
    monkeypatch.setattr(bench, "WINDOWS", (64, 128, 256))
    monkeypatch.setattr(bench, "VARIED", {"rows": (1, 2), "window": (16, 32), "vocabulary": (640, 1280)})
    monkeypatch.setitem(bench.PARTS, "f", lambda _: {"size": vars_of(small), "steps": 4, "bundled": None})
    queue = modules["bench_queue"]
    monkeypatch.setattr(queue, "TASK", "sudoku")  # the shortest
    few = {queue.FULL: "full steps=3", queue.PROPHET: "full steps=3 stop=prophet(tau=linear(-1,-1))"}
    monkeypatch.setattr(queue, "recipes", lambda _: few | {queue.STACK: "threshold cache=dual"})
    words = ["--rounds", "1", "--steps", "8", "--requests", "3", "--batch-size", "2", "--threads", "1"]
    folder = ["--out", str(tmp_path)]
    for parts in (["a", "b", "d", "e", "f"], ["c"]):
        monkeypatch.setattr(sys, "argv", ["bench", "--parts", *parts, *words, *folder])
        bench.main()
    page = " ".join((tmp_path / "bench.md").read_text().split())
    found = json.loads((tmp_path / "bench.json").read_text())
    assert [name for name in found if name in bench.PARTS] == list("abcdef"), "earlier parts stay"
    for loop in ("LLaDA", "Prophet", "Fast-dLLM"):
        assert found["a"][loop]["same"] == 1.0
        assert 0 < found["a"][loop]["own"] < 1
        assert all(one > 0 for kind in found["a"][loop]["ratios"]["float32"].values() for one in kind.values())
    assert 0 < found["b"]["prophet"]["check"] < found["b"]["prophet"]["beside"] < 1
    assert all(one["same"] == 1.0 for one in found["c"]["ways"].values())
    assert (
        found["c"]["ways"]["prophet, continuous"]["columns_needed"]
        < found["c"]["ways"]["full, continuous"]["columns_needed"]
    )
    assert "best stack, synchronous" not in found["c"]["ways"]
    for words_of_it in ("## (a)", "## (f)", "| full, one by one | 1.00x | 100.0 |", "torchao is not installed"):
        assert words_of_it in page
    assert page.count("Goal:") == 10
    assert (tmp_path / "bench.png").exists()
    assert "[bench](bench.md)" in (tmp_path / "README.md").read_text()
    ratios = modules["bench_page"].ratios(found)
    assert len(ratios) == 5 + 2 * 4
    assert all(one > 0 for one in ratios.values())


def vars_of(size: Any) -> dict[str, Any]:
    return {name: getattr(size, name) for name in ("layers", "width", "vocabulary")}


def test_memory_is_flat_in_the_window(modules: dict[str, Any]) -> None:
    """The vocabulary is so large that each chunk of the statistics is one row."""
    sizes = modules["bench_sizes"]
    thin = sizes.Size(16, 1, 1 << 18, 8, 64, 8)
    found = sizes.measure_memory(thin, (64, 128, 256))["rows"]
    read = 8 + sizes.ANSWER  # the block and the answer
    assert found["full"][-1] == pytest.approx(8, abs=2.5)
    assert found["prophet"][-1] == pytest.approx(read, abs=2.5)
    for name in ("early commit", "observed"):
        assert found[name][-1] == pytest.approx(read + 64, abs=4)
    assert min(modules["bench_page"].flatness({"rows": found}).values()) > 0.95


def test_operations_grow_as_they_should(modules: dict[str, Any]) -> None:
    size = modules["bench_sizes"].Size()
    assert replace(size, rows=2).operations() == 2 * size.operations()
    head = size.block * size.width * size.vocabulary * 2
    assert replace(size, vocabulary=2 * size.vocabulary).operations() == size.operations() + head


def test_the_stack_is_the_one_that_was_searched(modules: dict[str, Any], tmp_path: Path) -> None:
    queue = modules["bench_queue"]
    assert queue.recipes(tmp_path)[queue.STACK] == queue.UNSEARCHED
    (tmp_path / "stack.json").write_text(json.dumps({"best": {"word": {"recipe": "full cache=dual"}}}))
    assert queue.recipes(tmp_path)[queue.STACK] == "full cache=dual"
