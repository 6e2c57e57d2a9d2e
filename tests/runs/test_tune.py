"""runs/tune.py with few problems: the code of `tune` on splits of a pool, and a page that says what it measured."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runs.test_study import RUNS, numbers


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RUNS))
    made = importlib.import_module("tune")
    for name, value in {"DRAWS": 20, "LIVE": 4}.items():
        monkeypatch.setattr(made, name, value)
    return made


def test_the_page(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = ["--pool", "56", "--pilot", "16", "--calibration", "24", "--splits", "1", "--risks", "0.3"]
    places = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(sys, "argv", ["tune.py", "--tasks", "sudoku", "--page", *sizes, *places])
    script.main()
    found = numbers(tmp_path, "tune")["tasks"]["sudoku"]
    (row,) = found["rows"]
    ways = row["ways"]
    assert {one["n"] for one in ways.values()} == {16}, "measured on what is held out"
    assert ways["tune"]["speedup"] > ways["stopping rules alone"]["speedup"] >= 1
    live = found["live"]
    assert (live["n"], live["same"], live["compared"]) == (4, 16, 16), "replays equal live decodings, in every way"
    assert live["clock"]["tune"] > 1
    assert found["draws"][0]["above"] <= 1
    page = (tmp_path / "out" / "tune.md").read_text(encoding="utf8")
    assert "These 4 per task, decoded live, equal their replays in 16 of 16 cases." in " ".join(page.split())
    assert "are measured:" not in page, "nothing is missing"
    stored = next((tmp_path / "work" / "tiny" / "sudoku" / "results").glob("56-0-*.json"))
    assert json.loads(stored.read_text(encoding="utf8"))["ways"] == ways, "and a second run reads it"
    asked = [
        "tune.py",
        "--tasks",
        "sudoku",
        "word",
        "--page",
        "--stored",
        *sizes[:-2],
        "--risks",
        "0.3",
        "0.4",
        *places,
    ]
    monkeypatch.setattr(sys, "argv", asked)
    script.main()
    assert numbers(tmp_path, "tune")["tasks"] == {"sudoku": found}, "nothing is decoded, and the same is shown"
    page = (tmp_path / "out" / "tune.md").read_text(encoding="utf8")
    assert "Not all 2 pairs of split and risk are measured: sudoku 1, word 0." in " ".join(page.split())


def test_published_rows_stay_until_they_are_measured_again(script: Any, tmp_path: Path) -> None:
    def rows(*names: tuple[float, str]) -> list[dict[str, Any]]:
        return [{"split": 0, "eps": eps, "recipe": recipe} for eps, recipe in names]

    old = {"rows": rows((0.01, "old"), (0.02, "old")), "draws": [], "live": {"n": 1}}
    published = {"tasks": {"word": old, "choice": old}, "antibodies": {"vh": ["old"], "vl": ["old"]}}
    (tmp_path / "tune.json").write_text(json.dumps(published), encoding="utf8")
    found = {"word": {"rows": rows((0.01, "new")), "draws": [], "live": None}}
    filled = {"vh": ["new"]}
    script.keep_published(found, filled, argparse.Namespace(out=tmp_path))
    assert found["word"] == {"rows": rows((0.01, "new"), (0.02, "old")), "draws": [], "live": {"n": 1}}
    assert found["choice"] == old
    assert filled == {"vh": ["new"], "vl": ["old"]}
    script.keep_published(found, filled, argparse.Namespace(out=tmp_path / "absent"))
    assert set(found) == {"word", "choice"}
