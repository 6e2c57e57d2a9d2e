"""A rule that was calibrated in float32, used on the model in other formats."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foretell.certify.coverage import CoverageResult
from foretell.certify.outcomes import Outcomes
from foretell.engine.trace_files import load_traces
from foretell.evaluation.manifest import read_manifest
from tests.runs.test_study import RUNS, Run, numbers, run

__all__ = ["run"]

FORMATS = ("float32", "bfloat16", "int8")


def test_every_format_is_decoded_and_compared(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="int8 weights need torchao")
    run("numerics", checkpoint, "--tasks", "sudoku", "--limit", "4", "--taught", "1")
    rows = numbers(tmp_path, "numerics")["rows"]
    assert {(row["family"], row["format"]) for row in rows} == {
        (family, name) for family in ("prophet-min", "log-odds", "ranks") for name in FORMATS
    }
    folders = [path.parent for path in tmp_path.glob("work/*/traced/sudoku/full/5/manifest.json")]
    decoded = {(one["dtype"], one["quantize"]): folder for folder in folders for one in [read_manifest(folder)]}
    assert {*decoded} == {("float32", None), ("bfloat16", None), ("float32", "int8")}
    gaps = [next(folder.glob("traces/*.npz")) for folder in decoded.values()]
    first, *others = (load_traces(file)[0].gap[0] for file in gaps)
    assert not any(torch.equal(first, other) for other in others), "each was decoded by the model in its own format"


@dataclass(frozen=True)
class Planted:
    """A thousand problems; the faster of two rules changes no answer, except every tenth in int8."""

    task: str
    options: argparse.Namespace

    @property
    def records(self) -> list[Any]:
        return [SimpleNamespace(answer=index) for index in range(1000)]

    def replay(self, _family: object) -> Outcomes:
        changed = np.zeros((2, 1000), dtype=bool)
        changed[1] = (np.arange(1000) % 10 == 0) & (self.options.quantize == "int8")
        return Outcomes(np.array([[8] * 1000, [2] * 1000]), np.full(1000, 16), changed, changed)


def test_what_calibrating_again_is_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(RUNS))
    script = importlib.import_module("numerics")
    monkeypatch.setattr(script, "Pool", Planted)
    monkeypatch.setattr(script, "make_families", lambda _: dict.fromkeys(script.RULES))
    options = argparse.Namespace(decodings=tmp_path, quantize=None, dtype=None)
    for row in script.measure("sudoku", options):
        assert row.without.speedup == 8.0, "float32's rule is the bold one, in every format"
        broken = row.format == "int8"
        assert row.without.violations == row.without.above == (1.0 if broken else 0.0)
        assert row.again.violations == row.again.above == 0.0
        assert row.again.speedup == (2.0 if broken else 8.0)
        assert row.agrees == 1.0


def test_the_page_says_how_it_was_made(run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's own defaults appear in `--help` and are left out of the command."""
    script = importlib.import_module("numerics")
    kept = CoverageResult(speedup=1.5, risk=0.01, above=0.1, violations=0.03, stops=1.0)
    row = script.FormatResult("sudoku", "ranks", "int8", 1.0, kept, kept)
    monkeypatch.setattr(script, "measure", lambda *_: [row])
    page = run("numerics", checkpoint, "--tasks", "sudoku")
    assert "400 held-out problems per task" in page
    assert "fitted on 100 other problems" in page
    assert "`python runs/numerics.py --model random --tasks sudoku`" in page
    assert "delta is kept in 1 of 1 cases (a task, a rule, a format): at most 3.0% of the draws" in page
    assert "--taught 7" in run("numerics", checkpoint, "--tasks", "sudoku", "--taught", "7")
    shown = script.make_rules_parser("", script.LIMIT, script.TAUGHT, script.TASKS).format_help()
    assert "(default: 400)" in shown
    assert "(default: 100)" in shown
    assert "default: choice sudoku;" in shown


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_calibrating_again_keeps_the_risk(tmp_path: Path, run: Run) -> None:
    """The bundled model, on a task that it does well: with 200 problems per half, a risk of 2% can be shown."""
    pytest.importorskip("torchao", reason="int8 weights need torchao")
    run("numerics", Path("tiny"), "--tasks", "sudoku", "--limit", "400", "--taught", "40")
    rows = numbers(tmp_path, "numerics")["rows"]
    assert all(row["again"]["violations"] <= 0.05 for row in rows), "calibrated again, the promise is kept"
    assert any(row["again"]["speedup"] > 1.5 for row in rows), "and not by never stopping"
    assert any(row["without"] != row["again"] for row in rows), "float32's rule is another one in another format"
