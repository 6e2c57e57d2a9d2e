"""`foretell reproduce`: the plan, and end to end on random checkpoints in both formats of the paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.evaluation.benchmarks.source import VARIABLE, data_folder
from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.records import read_records
from foretell.reproduce.paper import NAMES
from foretell.reproduce.plan import TABLES
from tests.cli.conftest import Run
from tests.evaluation.levels import BEST_LEVEL
from tests.reproduce.test_plan import write_data


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "tables.json").read_text())
    return found


def test_a_dry_run_needs_no_model(run: Run, tmp_path: Path) -> None:
    data = write_data(tmp_path, "gsm8k", "sudoku4x4")
    words = ("--model", "GSAI-ML/LLaDA-8B-Instruct", "--out", tmp_path / "out", "--data", data, "--dry-run")
    shown = run("reproduce", *words, "--tables", "main,sdtt", "--student", "x")
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    text = " ".join(shown.stdout.split())
    assert "gsm8k: prophet 2 problems, 512 passes at most, 314 as in the paper; main, sdtt" in text
    assert "gsm8k: full steps=128 (student) 2 problems, 256 passes at most, 256 as in the paper; sdtt" in text
    assert "main 1,072 860" in text
    assert "together 1,840 1,532 (tables share decodings)" in text
    assert "mmlu is left out: no data for mmlu" in shown.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("model", "named"), [("literate", "LLaDA-8B"), ("literate_dream", "Dream-7B")])
def test_end_to_end(model: str, named: str, run: Run, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    data, out = write_data(tmp_path, "mmlu", "sudoku4x4"), tmp_path / "out"
    words = ("--model", request.getfixturevalue(model), "--out", out, "--data", data, "--limit", "1")
    shown = run("reproduce", *words, "--tables", "main", "--tasks", "mmlu,sudoku4x4,piqa", "--batch-size", "2")
    assert shown.stdout == (out / "tables.md").read_text()
    assert f"those of {named}" in shown.stdout
    assert "4 of 4: sudoku4x4, prophet" in shown.stderr
    assert "piqa is left out" in shown.stderr
    found = results(out)["tables"]["main"]
    assert [one["found"] and one["found"]["n"] for one in found] == [1, 1, None, None, 1, 1]


def test_the_bundled_models_format(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    words = ("--model", checkpoint, "--out", tmp_path, "--limit", "1", "--tasks", "word", "--tables", "schedules,sdtt")
    more = ("--student", checkpoint, "--seed", "5", "--batch-size", "3", "--dtype", "bfloat16")
    shown = run("reproduce", *words, *more).stdout
    assert "# Counterparts of the paper's tables" in shown
    used = read_manifest(tmp_path / "decodings" / "student" / "word" / "prophet_steps=32")
    assert (used["seed"], used["batch_size"], used["dtype"], used["limit"]) == (5, 3, "bfloat16", 1)
    assert [len(rows) for rows in results(tmp_path)["tables"].values()] == [3, 5]


def test_requests_that_cannot_be_fulfilled(run: Run, tmp_path: Path) -> None:
    words = ("reproduce", "--model", "tiny", "--out", tmp_path)
    assert "unknown table 'mian'; did you mean 'main'" in run(*words, "--tables", "mian", code=2).stderr
    assert "unknown task 'words'; did you mean 'word'" in run(*words, "--tasks", "words", code=2).stderr


def check_everything(run: Run, model: Path, out: Path, *words: str | Path) -> dict[str, Any]:
    """Decode one problem for every row of every table and check the records of every task."""
    common = ("--model", model, "--student", model, "--out", out, "--limit", "1", "--allow-code-execution")
    run("reproduce", *common, "--sandbox", BEST_LEVEL, *words)
    found = results(out)
    assert set(found["tables"]) == set(TABLES)
    for rows in found["tables"].values():
        assert all(row["found"]["n"] == 1 for row in rows if row["row"]["decoding"]["task"] not in found["skipped"])
    for folder in out.glob("decodings/model/*/full"):
        (record,) = read_records(folder)
        assert record.gold
        assert record.finish == "complete"
        assert (record.sandbox == BEST_LEVEL) == (folder.parent.name in {"humaneval", "mbpp"})
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["literate", "literate_dream"])
def test_every_benchmark_and_table(model: str, run: Run, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    data = write_data(tmp_path, *NAMES)
    found = check_everything(run, request.getfixturevalue(model), tmp_path / "out", "--data", data)
    assert found["skipped"] == {}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.timeout(1800)
@pytest.mark.skipif(data_folder() is None, reason=f"the variable {VARIABLE} names no folder with benchmark files")
@pytest.mark.parametrize("model", ["literate", "literate_dream"])
def test_the_public_files(model: str, run: Run, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = check_everything(run, request.getfixturevalue(model), tmp_path)
    assert set(found["skipped"]) <= {"gpqa"}, "everyone brings their own copy of gpqa"
