"""`foretell study`, `plot`, and `trace replay` of a folder: from a rule of your own to a table and pictures."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from foretell import POLICIES
from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.records import read_records
from foretell.recipes.plugins import VARIABLE
from tests.cli.conftest import Run

RULE = """
from dataclasses import dataclass
import foretell

@dataclass(frozen=True, slots=True)
class Third:
    at: int = 3

    def reads(self, state):
        return state.answer

    def __call__(self, beliefs, state):
        return foretell.Verdict(state.step + 1 >= self.at)

foretell.POLICIES["stop"]["third"] = Third
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("own") / "mine.py"
    file.write_text(RULE)
    return file


@pytest.fixture(scope="module")
def studied(run_once: Run, checkpoint: Path, mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `foretell study` with a rule from a file, which no other test knows."""
    out = tmp_path_factory.mktemp("study") / "out"
    before, known = os.environ.get(VARIABLE), dict(POLICIES["stop"])
    try:
        words = ("--task", "choice", "--limit", "3", "--import", mine, "--recipe", "full stop=third", "--out", out)
        run_once("study", checkpoint, *words, "--recipe", "swift")
        assert os.environ[VARIABLE].endswith(str(mine)), "worker processes import it, too"
    finally:
        os.environ.pop(VARIABLE) if before is None else os.environ.update({VARIABLE: before})
        POLICIES["stop"].clear()
        POLICIES["stop"].update(known)
    return out


def test_a_study_writes_a_table_and_two_pictures(studied: Path) -> None:
    assert list(read_manifest(studied)["recipes"]) == ["full", "full stop=third", "swift"], "full is always there"
    table = (studied / "report.md").read_text()
    assert "Accuracy with Wilson's 95% interval" in table
    assert "| full stop=third | 3 |" in table
    assert {one.steps for one in read_records(studied) if one.recipe == "full stop=third"} == {3}
    for name in ("frontier", "convergence"):
        assert (studied / f"{name}.png").stat().st_size > 1000


def test_plot_draws_the_folder_again(run: Run, studied: Path, tmp_path: Path) -> None:
    done = run("plot", studied, "--out", tmp_path, "--format", "svg")
    assert f"wrote {tmp_path / 'frontier.svg'}" in done.stderr.replace("\n", "")
    assert (tmp_path / "convergence.svg").exists()
    assert "unknown format 'gif'" in run("plot", studied, "--format", "gif", code=2).stderr


def test_plot_says_what_it_cannot_draw(run: Run, tmp_path: Path) -> None:
    assert "does not exist" in run("plot", tmp_path / "none", code=2).stderr
    assert "holds nothing to draw" in run("plot", tmp_path, code=2).stderr


def test_a_folder_is_replayed(run: Run, studied: Path, run_once: Run, checkpoint: Path, tmp_path: Path) -> None:
    shown = run("trace", "replay", studied, "--stop", "prophet(tau=linear(0.9,0.2))").stdout
    assert shown.startswith("full\n")
    assert "same answer in" in shown
    run("eval", checkpoint, "--task", "choice", "--limit", "1", "--recipe", "full", "--out", tmp_path)
    assert "holds no traces" in run("trace", "replay", tmp_path, code=2).stderr


def test_a_calibration_is_drawn(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    words = ("--task", "choice", "--limit", "6", "--family", "prophet", "--batch-size", "64")
    run("calibrate", checkpoint, *words, "--out", tmp_path / "rule.json")
    for shown in (tmp_path / "rule.json", tmp_path):
        out = tmp_path / "pictures"
        run("plot", shown, "--out", out)
        assert (out / "rule.png").exists()
        assert (out / "convergence.png").exists() is (shown.suffix != ".json")
        shutil.rmtree(out)


def test_a_file_that_cannot_be_imported_is_an_error(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    words = ("study", checkpoint, "--task", "choice", "--limit", "1", "--out", tmp_path / "out", "--import")
    assert "ZeroDivisionError" in run(*words, tmp_path / "bad.py", code=2).stderr
    assert "no such file" in run(*words, tmp_path / "none.py", code=2).stderr
    assert VARIABLE not in os.environ


def test_a_sweep_of_rules_decodes_once(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    words = ("--task", "choice", "--limit", "2", "--vary", "stop.tau.high=1,2", "--out")
    done = run("sweep", checkpoint, *words, tmp_path / "a")
    assert "decoded: prophet stop=never; replayed: prophet, prophet stop.tau.high=1, " in done.stderr
    assert "8/8" in done.stderr
    live = run("sweep", checkpoint, *words, tmp_path / "b", "--live")
    assert "replayed" not in live.stderr
    assert "6/6" in live.stderr
    replayed, decoded = ({one.key: one for one in read_records(tmp_path / name)} for name in "ab")
    assert {key: (one.exit, one.text) for key, one in replayed.items()} == {
        key: (one.exit, one.text) for key, one in decoded.items()
    }
