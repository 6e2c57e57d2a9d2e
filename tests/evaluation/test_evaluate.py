"""An evaluation gives the same results if it is interrupted, run by several workers or batched differently."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foretell.cli.app import app
from foretell.engine.trace_files import load_traces
from foretell.errors import ForetellError, RequestError
from foretell.evaluation import records as stored
from foretell.evaluation.manifest import read_manifest, resized, settled
from foretell.evaluation.records import Record, parts, read_records
from foretell.evaluation.report import report
from foretell.evaluation.run import Evaluation, PreparedEvaluation, evaluate
from foretell.workers import chunk_size

RECIPES = ("full steps=6", "prophet stop.tau=staged(high=2,mid=2,low=1)")


def plan(checkpoint: Path, out: Path, **changes: object) -> Evaluation:
    asked = Evaluation(str(checkpoint), "sudoku", RECIPES, out, limit=20, batch_size=4)
    return replace(asked, **changes)  # type: ignore[arg-type]


def repeatable(records: list[Record]) -> list[Record]:
    """Return what must be equal in every run: everything but times and, up to rounding, what the rule measured."""
    plain = [
        replace(one, seconds=0.0, wall=0.0, value=None if one.value is None else round(one.value, 3)) for one in records
    ]
    return sorted(plain, key=lambda one: one.key)


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A run without interruption."""
    out = tmp_path_factory.mktemp("whole")
    return out, evaluate(plan(checkpoint, out))


def test_every_example_has_a_line_for_every_recipe(whole: tuple[Path, list[Record]]) -> None:
    out, records = whole
    assert len(records) == len({one.key for one in records}) == 40
    assert len({one.id for one in records}) == 20
    early = [one for one in records if one.finish == "settled"]
    assert early, "this model's gaps reach the thresholds of the test"
    for one in early:
        assert one.exit == one.steps - 1
        assert one.value is not None
        assert one.value >= 1
    assert all(one.exit is None and one.value is None for one in records if one.finish != "settled")
    assert {one.steps for one in records if one.recipe == RECIPES[0]} == {6}
    assert sum(one.wall for one in records) > 0
    assert json.loads(parts(out)[0].read_text().splitlines()[0])["id"].startswith("sudoku-")


def test_running_it_again_runs_nothing(checkpoint: Path, whole: tuple[Path, list[Record]]) -> None:
    out, records = whole
    before = parts(out)[0].read_bytes()
    seen: list[Record] = []
    assert repeatable(evaluate(plan(checkpoint, out), seen.append)) == repeatable(records)
    assert not seen
    assert parts(out)[0].read_bytes() == before


def test_a_killed_worker_is_named(checkpoint: Path, tmp_path: Path) -> None:
    seen: list[Record] = []

    def kill_one(record: Record) -> None:
        seen.append(record)
        multiprocessing.active_children()[0].kill()

    with pytest.raises(ForetellError, match=r"worker \d of 2 \(pid \d+\) was killed by signal 9") as error:
        evaluate(plan(checkpoint, tmp_path, workers=2, recipes=("full steps=100",), limit=400), kill_one)
    assert f"results are kept in {tmp_path}: run the same command again to resume" in str(error.value)
    assert 1 <= len(seen) <= len(read_records(tmp_path)) < 400
    assert not multiprocessing.active_children()


def test_no_worker_is_started_in_vain(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr("foretell.evaluation.run.run_workers", lambda _work, count, *_: started.append(count))
    evaluate(plan(checkpoint, tmp_path, workers=64, recipes=("full steps=1",)))
    assert started == [5]  # 20 examples in batches of 4


def test_a_half_written_line_is_done_again(checkpoint: Path, whole: tuple[Path, list[Record]], tmp_path: Path) -> None:
    out, records = whole
    (tmp_path / "manifest.json").write_bytes((out / "manifest.json").read_bytes())
    lines = parts(out)[0].read_bytes().splitlines(keepends=True)
    (tmp_path / "results-0.jsonl").write_bytes(b"".join(lines[:17]) + lines[17][:40])
    assert len(read_records(tmp_path)) == 17
    seen: list[Record] = []
    assert repeatable(evaluate(plan(checkpoint, tmp_path), seen.append)) == repeatable(records)
    assert len(seen) == 40 - 17
    assert len(parts(tmp_path)[0].read_bytes().splitlines()) == 40


def test_a_killed_run_is_resumed(checkpoint: Path, whole: tuple[Path, list[Record]], tmp_path: Path) -> None:
    """kill -9 a run with two workers, which must end too; then run the same command in one process."""
    command = [sys.executable, "-m", "tests.evaluation.run_evaluation", str(checkpoint), str(tmp_path), "2"]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 120
    while len(read_records(tmp_path)) < 6 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    there = len(read_records(tmp_path))
    assert there >= 6
    seen: list[Record] = []
    again = evaluate(plan(checkpoint, tmp_path), seen.append)
    assert repeatable(again) == repeatable(whole[1])
    lines = [line for path in parts(tmp_path) for line in path.read_bytes().splitlines()]
    assert len(lines) == 40, "nothing twice"
    assert len(seen) <= 40 - 6


def test_two_workers_give_what_one_gives(
    checkpoint: Path, whole: tuple[Path, list[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Record] = []
    shared = evaluate(plan(checkpoint, tmp_path, batch_size=1, workers=2), seen.append)
    assert repeatable(shared) == repeatable(whole[1])
    assert repeatable(seen) == repeatable(shared)
    assert [len(path.read_bytes().splitlines()) for path in parts(tmp_path)] == [22, 18]


@pytest.mark.parametrize(
    ("examples", "batch_size", "workers", "size"),
    [(1000, 32, 2, 128), (300, 32, 2, 64), (6, 32, 2, 32), (160, 32, 1, 64), (1000, 8, 1, 64), (1, 1, 1, 1)],
)
def test_every_worker_gets_chunks(examples: int, batch_size: int, workers: int, size: int) -> None:
    assert chunk_size(examples, batch_size, workers) == size


def test_a_finished_or_small_run_starts_no_processes(
    checkpoint: Path, whole: tuple[Path, list[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.evaluation.run.run_workers", lambda *_: pytest.fail("processes were started"))
    assert len(evaluate(plan(checkpoint, whole[0], workers=2))) == 40
    assert len(evaluate(plan(checkpoint, tmp_path, limit=4, workers=2))) == 8


def test_another_evaluation_in_the_folder_is_refused(checkpoint: Path, whole: tuple[Path, list[Record]]) -> None:
    out, _ = whole
    with pytest.raises(RequestError, match=r"seed: 0 before, 7 now"):
        evaluate(plan(checkpoint, out, seed=7))
    with pytest.raises(RequestError, match=r'order: \["full steps=6".*before, \["full steps=7"\] now'):
        evaluate(plan(checkpoint, out, recipes=("full steps=7",)))


def test_a_changed_model_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    model.mkdir()
    for path in checkpoint.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    evaluate(plan(model, out, limit=1, recipes=("full steps=1",)))
    with (model / "config.json").open("a") as file:
        file.write("\n")
    with pytest.raises(RequestError, match="model_sha256"):
        evaluate(plan(model, out, limit=1, recipes=("full steps=1",)))


def test_strict_and_other_results_never_mix(checkpoint: Path, whole: tuple[Path, list[Record]], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="strict: nothing before, true now"):
        evaluate(plan(checkpoint, whole[0], strict=True))
    evaluate(plan(checkpoint, tmp_path, strict=True, limit=1))
    with pytest.raises(RequestError, match="strict: true before, nothing now"):
        evaluate(plan(checkpoint, tmp_path, limit=1))


def test_a_strict_evaluation_reads_only_what_is_stated(literate: Path, tmp_path: Path) -> None:
    """The texts are equal; their last letters are fallbacks in one evaluation and no answers in the other."""
    asked = {"question": "One and one?", "subject": "sums", "choices": ["0", "1", "2", "3"], "answer": 2}
    source = tmp_path / "mmlu.jsonl"
    source.write_text("".join(f"{json.dumps(asked | {'question': f'{n} and 1?'})}\n" for n in range(6)))
    evaluation = Evaluation(str(literate), "mmlu-free", ("full steps=1",), tmp_path / "a", source=source)
    loose = evaluate(evaluation)
    firm = evaluate(replace(evaluation, out=tmp_path / "b", strict=True))
    assert [one.text for one in loose] == [one.text for one in firm]
    assert any(one.fallback for one in loose)
    assert [one.answer for one in firm] == [None if one.fallback else one.answer for one in loose]
    assert not any(one.fallback for one in firm)
    assert report(tmp_path / "a").rows[0].fallbacks == sum(bool(one.fallback) for one in loose) / len(loose)


def test_results_of_older_versions_are_read(whole: tuple[Path, list[Record]], tmp_path: Path) -> None:
    """Lines may lack a fallback, a reason and the generated tokens."""
    line = json.loads(parts(whole[0])[0].read_text().splitlines()[0])
    assert line.pop("fallback") is False
    assert line.pop("reason") is None
    assert tuple(line.pop("tokens")) == whole[1][0].tokens
    (tmp_path / "results-0.jsonl").write_text(json.dumps(line) + "\n")
    (found,) = read_records(tmp_path)
    assert found == replace(whole[1][0], fallback=None, tokens=None)


def test_a_line_of_version_0_1_0_is_read(whole: tuple[Path, list[Record]], tmp_path: Path) -> None:
    """Under the keys of that version, which later versions renamed."""
    record = replace(whole[1][0], tokens=None)
    renamed = {"value": "gap", "columns_needed": "computed", "columns_computed": "spent", "response_tokens": "tokens"}
    line = {renamed.get(name, name): value for name, value in asdict(record).items() if name != "tokens"}
    assert set(renamed.values()) <= set(line)
    (tmp_path / "results-0.jsonl").write_text(json.dumps(line) + "\n")
    assert read_records(tmp_path) == [record]


@pytest.mark.parametrize("package", ["python", "foretell", "numpy", "tokenizers", "torch"])
def test_results_of_other_versions_never_mix(package: str, whole: tuple[Path, list[Record]], tmp_path: Path) -> None:
    """The manifest names every version that may change a result, and another one is another evaluation."""
    wanted = read_manifest(whole[0])
    installed = platform.python_version() if package == "python" else version(package)
    assert wanted["versions"][package] == installed
    found = {**wanted, "versions": {**wanted["versions"], package: "0.0.1"}}
    (tmp_path / "manifest.json").write_text(json.dumps(found))
    with pytest.raises(RequestError, match=f'versions.{package}: "0.0.1" before, "{re.escape(installed)}" now'):
        settled(tmp_path, wanted, lambda _: False)
    assert not resized(found, wanted)


def test_one_run_at_a_time(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "PATIENCE", 0.1)
    with stored.alone(tmp_path), pytest.raises(RequestError, match="another run is writing"):
        evaluate(plan(checkpoint, tmp_path, limit=1))


def test_traces_are_kept_and_found(checkpoint: Path, tmp_path: Path) -> None:
    records = evaluate(plan(checkpoint, tmp_path, limit=5, trace=True))
    assert len(records) == 10
    for one in records:
        assert one.trace is not None
        assert one.trace_index is not None
        trace = load_traces(tmp_path / one.trace)[one.trace_index]
        assert len(trace) == one.steps
        assert (trace.replay(trace.request.recipe.stop) if one.exit is not None else None) == one.exit


def test_the_manifest_has_the_recipes_that_are_used(checkpoint: Path, tmp_path: Path) -> None:
    recipes = ("prophet", "prophet stop.reduce=min max_new_tokens=40", "prophet stop.tau.high=9", "full")
    prepared = PreparedEvaluation.prepare(plan(checkpoint, tmp_path, task="word", limit=1, recipes=recipes))
    used = prepared.manifest()["recipes"]
    assert used["prophet"]["recipe"] == "full stop=prophet"
    assert used["prophet"]["options"]["suffix"] == "The answer is"
    assert used["prophet stop.reduce=min max_new_tokens=40"] == {
        "recipe": "full stop=prophet(reduce=min)",
        "options": {"max_new_tokens": 40, "suffix": "The answer is", "answer_length": 2},
    }
    assert used["prophet stop.tau.high=9"]["recipe"] == "full stop=prophet(tau=staged(high=9.0))"
    assert not prepared.notes()
    free = PreparedEvaluation.prepare(plan(checkpoint, tmp_path, task="word-free", limit=1, recipes=("prophet",)))
    assert free.manifest()["recipes"]["prophet"]["recipe"] == "full stop=prophet"
    assert "no answer region" in " ".join(free.notes())


def test_from_the_command_line(checkpoint: Path, tmp_path: Path) -> None:
    words = [
        "eval",
        checkpoint,
        "--task",
        "choice",
        "-r",
        "full steps=2",
        "--limit",
        "3",
        "--strict",
        "--out",
        tmp_path,
    ]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert "choice" in done.stdout
    assert "3/3  full steps=2" in done.stderr
    assert read_manifest(tmp_path)["limit"] == 3
    assert read_manifest(tmp_path)["strict"] is True
    assert (tmp_path / "report.md").read_text().startswith("# choice")
    assert json.loads((tmp_path / "report.json").read_text())["rows"][0]["n"] == 3
    wrong = CliRunner().invoke(app, ["eval", str(checkpoint), "--task", "choic", "--out", str(tmp_path)])
    assert wrong.exit_code == 2
    assert "did you mean 'choice'?" in wrong.stderr


def test_a_sweep_from_the_command_line(checkpoint: Path, tmp_path: Path) -> None:
    words = ["sweep", checkpoint, "--task", "choice", "--base", "full steps=2", "--limit", "2", "--out", tmp_path]
    vary = ["--vary", "block_length=8,16", "--vary", "remasking=random"]
    done = CliRunner().invoke(app, [str(word) for word in (*words, *vary)])
    assert done.exit_code == 0, done.output
    used = read_manifest(tmp_path)["recipes"]
    assert list(used) == ["full steps=2", *(f"full steps=2 block_length={n} remasking=random" for n in (8, 16))]
    assert used["full steps=2 block_length=8 remasking=random"]["recipe"] == "full steps=2 block_length=8 score=random"


@pytest.mark.parametrize(
    "wrong",
    [
        {"recipes": ()},
        {"recipes": ("full", "full")},
        *({name: value} for name in ("limit", "workers", "batch_size", "threads") for value in (0, -1, 2.5, 2**70)),
        {"seed": -1},
        {"seed": 2**63},
        {"workers": 1025},
    ],
)
def test_invalid_arguments_are_refused(checkpoint: Path, tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        plan(checkpoint, tmp_path, **wrong)
