"""The regression guard: no ratio of docs/results/bench.json may get worse by more than a fifth."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "docs" / "results" / "bench.json"
KEPT = 0.8  # of a recorded ratio


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The modules of the bench, and torch's threads as they were."""
    monkeypatch.syspath_prepend(str(ROOT / "runs"))
    threads = torch.get_num_threads()
    yield {name: importlib.import_module(name) for name in ("bench", "bench_loops", "bench_page", "bench_sizes")}
    torch.set_num_threads(threads)


@pytest.mark.bench
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", ["a", "b", "d"])
def test_no_ratio_has_become_worse(part: str, bench: dict[str, Any]) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf8")) if RECORDED.exists() else {}
    if part not in recorded:
        pytest.skip(f"docs/results/bench.json has no part {part}: python runs/bench.py --parts {part}")
    sizes, big, thin = bench["bench_sizes"], bench["bench"].BIG, bench["bench"].THIN
    torch.set_num_threads(recorded[part]["threads"])
    measured = {
        "a": lambda: bench["bench_loops"].compare_with_loops(big, recorded[part]["steps"], rounds=2),
        "b": lambda: sizes.measure_shares(big, recorded[part]["steps"]),
        "d": lambda: sizes.measure_memory(thin, tuple(recorded[part]["windows"])),
    }[part]()
    now = bench["bench_page"].ratios({part: measured})
    for name, before in bench["bench_page"].ratios({part: recorded[part]}).items():
        assert now[name] >= KEPT * before, f"{name}: {now[name]:.3f} now, {before:.3f} recorded"
