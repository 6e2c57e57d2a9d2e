"""Running a plan and its tables: results are kept and shared, and the paper's numbers stand beside ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretell.engine.certificate import model_hash
from foretell.engine.engine import Engine, load
from foretell.engine.folder import folder_of
from foretell.evaluation import run as evaluation
from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.records import Record
from foretell.evaluation.run import PreparedEvaluation, Watch
from foretell.reproduce import paper
from foretell.reproduce.plan import Decoding, Plan, Subject, make_plan
from foretell.reproduce.run import Reproduction, run_plan
from foretell.reproduce.tables import HEADINGS, save_tables
from tests.reproduce.test_plan import write_data

FULL, PROPHET = Decoding("sudoku", "full"), Decoding("sudoku", "prophet")


class Log:
    """Counts what is decoded, and raises after `patience` results."""

    def __init__(self, patience: int = 1000) -> None:
        self.started: list[Decoding] = []
        self.count, self.patience = 0, patience

    @contextmanager
    def __call__(self, decoding: Decoding, prepared: PreparedEvaluation, there: list[Record]) -> Iterator[Watch]:
        self.started.append(decoding)
        assert len(there) < prepared.total
        yield self.add

    def add(self, _: Record) -> None:
        self.count += 1
        if self.count == self.patience:
            raise KeyboardInterrupt


def reproduction(model: Path, out: Path, limit: int = 3, data: Path | None = None) -> Reproduction:
    return Reproduction(str(model), out, str(model), data, {"limit": limit, "batch_size": 2})


def planned(*tables: str, limit: int = 3, task: str = "sudoku") -> Plan:
    return make_plan(Subject(paper.LLADA, counterparts=True, student=True), tables, [task], limit=limit)


def run(what: Reproduction, plan: Plan, log: Log) -> str:
    run_plan(what, plan, log, lambda: save_tables(what, plan))
    return (what.out / "tables.md").read_text()


def cells(page: str, setting: str, decoder: str) -> dict[str, str]:
    """Return the first row of this setting and decoder, by heading."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {setting} | {decoder} |"))
    return dict(zip(HEADINGS, (cell.strip() for cell in line.strip("|").split("|")), strict=True))


def test_a_run_resumes_and_grows(checkpoint: Path, tmp_path: Path) -> None:
    what, plan, log = reproduction(checkpoint, tmp_path), planned("main"), Log(patience=2)
    with pytest.raises(KeyboardInterrupt):
        run(what, plan, log)
    assert not (tmp_path / "tables.md").exists()
    log = Log()
    page = run(what, plan, log)
    assert (log.started, log.count) == ([FULL, PROPHET], 4), "the two first results are kept"
    spent = sum(record.wall for one in (FULL, PROPHET) for record in what.records(one)) / 3600
    assert json.loads((tmp_path / "tables.json").read_text())["hours"] == pytest.approx(spent)
    assert f"Decoding took {spent:.2f} CPU hours" in page
    log = Log()
    assert run(what, plan, log) == page
    assert log.started == []
    log = Log()
    larger = run(reproduction(checkpoint, tmp_path, limit=4), planned("main", limit=4), log)
    assert log.count == 2
    assert cells(larger, "sudoku (paper: Sudoku)", "Prophet")["n"] == "4"


def test_counterparts_are_no_reproduction(checkpoint: Path, tmp_path: Path) -> None:
    page = run(reproduction(checkpoint, tmp_path, 1), planned("main", limit=1), Log())
    assert page.startswith("# Counterparts of the paper's tables")
    assert "This is no reproduction" in page
    row = cells(page, "sudoku (paper: Sudoku)", "Prophet")
    assert (row["paper, %"], row["here - paper"], row["paper's change"]) == ("38.0", "", "+3.0")


def test_tables_share_decodings_and_the_student_has_its_own(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def load_counted(model: Any, *more: Any, **given: Any) -> Engine:
        loaded.append(Path(model).name)
        return load(model, *more, **given)

    monkeypatch.setattr(evaluation, "load", load_counted)
    what = replace(reproduction(checkpoint, tmp_path, 1), student="tiny-sdtt")
    plan, log = planned("sdtt", "schedules", limit=1, task="word"), Log()
    run(what, plan, log)
    half = Decoding("word", "full steps=32")
    assert len(log.started) == len(set(log.started)) == 6
    assert {half, replace(half, student=True)} <= set(log.started)
    assert loaded == [checkpoint.name, "tiny-sdtt", checkpoint.name]
    for decoding in log.started:
        used = folder_of("tiny-sdtt") if decoding.student else checkpoint
        assert read_manifest(what.folder(decoding))["model_sha256"] == model_hash(used), decoding


@pytest.fixture
def finished(checkpoint: Path, literate: Path, tmp_path: Path) -> tuple[Reproduction, Plan]:
    """Public Sudokus, decoded, and the plan of the main table and of Fast-dLLM's."""
    data = write_data(tmp_path, "sudoku4x4", "gsm8k")
    plan = make_plan(Subject(paper.LLADA), ["main", "fast-dllm"], ["sudoku4x4", "gpqa", "gsm8k"], data=data, limit=1)
    what = reproduction(literate, tmp_path / "out", 1, data)
    run_plan(what, make_plan(Subject(paper.LLADA), ["main"], ["sudoku4x4"], data=data, limit=1), Log(), lambda: None)
    return what, plan


def rewrite(what: Reproduction, decoding: Decoding, right: int, count: int, steps: int, wall: float = 1.0) -> None:
    """Replace the results of a decoding by `count` invented ones, of which the first `right` are right."""
    (folder,) = {what.folder(decoding)}
    record = json.loads((folder / "results-0.jsonl").read_text().splitlines()[0])
    rows = [
        record | {"id": str(index), "correct": index < right, "steps": steps, "wall": wall} for index in range(count)
    ]
    (folder / "results-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_papers_numbers_stand_beside_ours(finished: tuple[Reproduction, Plan]) -> None:
    what, plan = finished
    rewrite(what, Decoding("sudoku4x4", "full"), right=50, count=100, steps=24, wall=36)
    rewrite(what, Decoding("sudoku4x4", "prophet"), right=40, count=100, steps=8, wall=36)
    page = save_tables(what, plan)
    full, prophet = (cells(page, "Sudoku", name) for name in ("full", "Prophet"))
    assert full["here, %"] == "50.0 (40.4 to 59.6)"
    assert full["here - paper"] == "+15.0 (+5.4 to +24.6)"
    assert full["change here"] == full["paper's change"] == ""
    assert prophet["here - paper"].startswith("+2.0 (-")
    assert prophet["change here"].startswith("-10.0 (-")
    assert prophet["paper's change"] == "+3.0"
    assert (prophet["steps"], prophet["paper's speedup"], prophet["speedup"]) == ("8.0", "2.46x", "3.00x")
    assert "Decoding took 2.00 CPU hours" in page
    assert cells(page, "GPQA", "full")["n"] == "no data"
    assert "Not decoded: gpqa. no data for gpqa: it needs gpqa_main.csv" in page
    assert cells(page, "GSM8K", "Prophet")["n"] == "not decoded yet"
    assert "- sudoku4x4: L = 24, T = 24, B = 24; thresholds 7.5, 5, 2.5, changing at 33% and 67%" in page
    numbers = json.loads((what.out / "tables.json").read_text())
    assert numbers["tables"]["main"][-1]["found"]["step_speedup"] == 3.0
    assert numbers["tables"]["main"][-1]["row"]["paper"] == [38.0, 2.46, None]


def test_devices_other_than_the_cpu_spend_gpu_hours(finished: tuple[Reproduction, Plan]) -> None:
    what, plan = finished
    file = what.folder(Decoding("sudoku4x4", "full")) / "manifest.json"
    file.write_text(file.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    assert "GPU hours" in save_tables(what, plan)


def test_fast_dllms_speedup_is_of_time(checkpoint: Path, tmp_path: Path) -> None:
    what, plan = reproduction(checkpoint, tmp_path, 1), planned("fast-dllm", limit=1, task="word")
    run(what, plan, Log())
    rewrite(what, Decoding("word", "full"), 1, 2, steps=60, wall=4.0)
    rewrite(what, Decoding("word", "fast-dllm"), 1, 2, steps=60, wall=0.5)
    assert cells(save_tables(what, plan), "word", "Fast-dLLM")["speedup"] == "8.00x"
