"""A rule that was calibrated in float32 on the model in other formats."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.runs.test_study import RUNS, Run, numbers, run

__all__ = ["run"]


def test_every_format_is_decoded_and_compared(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    page = run("numerics", checkpoint, "--tasks", "sudoku", "--limit", "4", "--taught", "1")
    assert "Calibrated again, the risk is kept in 6 of 6 cases" in page
    rows = numbers(tmp_path, "numerics")["rows"]
    assert {(row["family"], row["format"]) for row in rows} == {
        (family, name) for family in ("prophet-min", "log-odds", "ranks") for name in ("float32", "bfloat16", "int8")
    }
    (small,) = tmp_path.glob("work/*-int8/model.safetensors")
    before, after = load_file(checkpoint / "model.safetensors"), load_file(small)
    changed = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert changed == {name for name, weight in before.items() if weight.dim() == 2}
    for name in changed:
        step = before[name].abs().amax(dim=1, keepdim=True) / 127
        assert ((after[name] - before[name]).abs() <= 0.51 * step).all()
        assert len({*after[name][0].tolist()}) <= 255


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_calibrating_again_keeps_the_risk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """The bundled model, on a task that it does well: with 200 problems a half, a risk of 2% can be shown."""
    monkeypatch.syspath_prepend(str(RUNS))
    run("numerics", Path("tiny"), "--tasks", "sudoku", "--limit", "400", "--taught", "40")
    rows = numbers(tmp_path, "numerics")["rows"]
    assert all(row["again"]["above_all"] <= 0.05 for row in rows), "calibrated again, the promise is kept"
    assert any(row["again"]["speedup"] > 1.5 for row in rows), "and not by never stopping"
    assert any(row["without"] != row["again"] for row in rows), "float32's rule is another one in another format"
