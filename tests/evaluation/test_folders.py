"""A results folder can grow, a refused run leaves it unchanged, and it is checked before a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foretell.certify.calibrate import Calibration, calibrate
from foretell.certify.decodings import evaluation_for
from foretell.certify.replay import gather_cases
from foretell.certify.search import RiskGoal
from foretell.certify.train_judge import JudgeConfig, JudgeTraining
from foretell.cli.app import app
from foretell.engine.request import derive_seed
from foretell.engine.trace_files import load_traces
from foretell.errors import RequestError, StorageError
from foretell.evaluation.manifest import read_manifest, settle
from foretell.evaluation.records import Record, appending, read_records
from foretell.evaluation.report import report
from foretell.evaluation.run import Evaluation, PreparedEvaluation, evaluate, run
from tests.evaluation.test_report import record

RECIPES = ("full steps=6", "prophet stop.tau=staged(high=2,mid=2,low=1)")
GOAL: dict[str, Any] = {"risk": 0.2, "confidence": 0.9}
LAYOUT: dict[str, Any] = {"max_new_tokens": 12, "block_length": 6, "suffix": "The answer is", "answer_length": 2}
ASKED = [f"{name} has {number} boxes." for number in (2, 3, 4, 5) for name in ("Tom", "Ann", "Adam", "He")]


def plan(checkpoint: Path, out: Path, **changes: object) -> Evaluation:
    asked = Evaluation(str(checkpoint), "sudoku", RECIPES, out, limit=5, batch_size=4)
    return replace(asked, **changes)  # type: ignore[arg-type]


def lines(file: Path, prompts: list[str]) -> Path:
    file.write_text("".join(f"{json.dumps({'prompt': one, 'id': one})}\n" for one in prompts))
    return file


def repeatable(records: list[Record]) -> list[tuple[Any, ...]]:
    """Return what must be equal in every run."""
    return sorted((one.recipe, one.id, one.text, one.steps, one.finish) for one in records)


def kept(folder: Path) -> dict[Path, bytes]:
    """All of its files but the lock, which says nothing."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")}


def assert_traced(folder: Path, records: list[Record], seed: int = 0) -> None:
    for one in records:
        assert one.trace is not None
        assert one.trace_index is not None
        trace = load_traces(folder / one.trace)[one.trace_index]
        assert len(trace) == one.steps
        assert trace.request.seed == derive_seed(seed, trace.request.prompt), "its own, and no other example's"


def test_a_larger_limit_resumes(checkpoint: Path, tmp_path: Path) -> None:
    few = evaluate(plan(checkpoint, tmp_path / "a", trace=True))
    seen: list[Record] = []
    many = evaluate(plan(checkpoint, tmp_path / "a", trace=True, limit=9), seen.append)
    assert {one.key: one for one in few}.items() <= {one.key: one for one in many}.items(), "clock and all"
    assert (len(many), len(seen)) == (18, 8)
    assert repeatable(many) == repeatable(evaluate(plan(checkpoint, tmp_path / "b", trace=True, limit=9)))
    assert_traced(tmp_path / "a", many)
    found = read_manifest(tmp_path / "a")
    assert (found["limit"], found["examples"]) == (9, 9)
    made = report(tmp_path / "a")
    assert [row.n for row in made.rows] == [9, 9]
    assert made.title.endswith("n = 9")


def test_without_a_limit_the_examples_are_in_another_order(checkpoint: Path, tmp_path: Path) -> None:
    """Existing results keep their traces although the order of the examples changes."""
    out, file = tmp_path / "out", lines(tmp_path / "a.jsonl", ASKED)
    asked = {"task": "prompts", "source": file, "options": LAYOUT, "trace": True, "batch_size": 1, "seed": 1}
    few = evaluate(plan(checkpoint, out, limit=6, **asked))
    assert_traced(out, few, seed=1)
    assert ASKED[0] not in {one.id for one in few}, "there was another first one"
    many = evaluate(plan(checkpoint, out, limit=None, **asked))
    assert len(many) == 2 * len(ASKED)
    assert_traced(out, many, seed=1)
    assert read_manifest(out)["limit"] is None
    assert len(evaluate(plan(checkpoint, out, limit=100, **asked))) == 2 * len(ASKED), "all of them again"


def test_prompts_may_be_added_at_the_end(checkpoint: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out", list[Record]()
    asked = {"task": "prompts", "recipes": ("full",), "options": LAYOUT, "limit": None}
    evaluate(plan(checkpoint, out, source=lines(tmp_path / "a.jsonl", ASKED[:6]), **asked))
    more = plan(checkpoint, out, source=lines(tmp_path / "a.jsonl", ASKED[:8]), **asked)
    assert len(evaluate(more, seen.append)) == 8
    assert {one.id for one in seen} == {*ASKED[6:8]}
    other = plan(checkpoint, out, source=lines(tmp_path / "a.jsonl", ASKED[1:]), **asked)
    with pytest.raises(RequestError, match=r"another evaluation; .*\n  examples: 8 before, 15 now\n  examples_sha256"):
        evaluate(other)


def test_a_folder_of_a_version_that_did_not_state_its_dtype_is_resumed(checkpoint: Path, tmp_path: Path) -> None:
    evaluate(plan(checkpoint, tmp_path))
    file = tmp_path / "manifest.json"
    stated = json.loads(file.read_text())
    assert stated["dtype"] == "float32"
    file.write_text(json.dumps(stated | {"dtype": None}))
    assert len(evaluate(plan(checkpoint, tmp_path, dtype="fp32"))) == 10
    file.write_text(json.dumps(stated))
    with pytest.raises(RequestError, match='dtype: "float32" before, "bfloat16" now'):
        evaluate(plan(checkpoint, tmp_path, dtype="bf16"))


def test_a_run_killed_while_it_grows_is_resumed(checkpoint: Path, tmp_path: Path) -> None:
    """The manifest lists more examples than there are results, and the last line is incomplete."""
    few = evaluate(plan(checkpoint, tmp_path))
    evaluation = plan(checkpoint, tmp_path, limit=9)
    prepared = PreparedEvaluation.prepare(evaluation)
    settle(tmp_path, prepared.manifest(), prepared.extends)
    assert report(tmp_path).title.endswith("n = 5/5 of 9 (not complete)")
    (part,) = tmp_path.glob("results-*.jsonl")
    part.write_bytes(part.read_bytes()[:-9])
    seen: list[Record] = []
    many = evaluate(evaluation, seen.append)
    assert len(many) == 18
    assert len(seen) == 9
    assert set(repeatable(few)) < set(repeatable(many))


def test_half_a_chunk_of_traces_keeps_those_it_has(checkpoint: Path, tmp_path: Path) -> None:
    """If a run is killed while it writes a chunk, the next run must not overwrite the traces of the first results."""
    file = lines(tmp_path / "a.jsonl", ["Adam has 2 boxes.", "Tom has 2 boxes.", "He has 2 boxes."])
    evaluation = plan(
        checkpoint, tmp_path, task="prompts", source=file, options=LAYOUT, trace=True, recipes=RECIPES[:1]
    )
    assert [one.id[0] for one in evaluate(evaluation)] == ["H", "T", "A"], "the shortest first"
    (part,) = tmp_path.glob("results-*.jsonl")
    whole = part.read_bytes().splitlines(keepends=True)
    for count in range(1, len(whole)):
        part.write_bytes(b"".join(whole[:count]))
        assert_traced(tmp_path, evaluate(evaluation))


def test_a_folder_does_not_shrink(checkpoint: Path, tmp_path: Path) -> None:
    evaluate(plan(checkpoint, tmp_path))
    with pytest.raises(RequestError, match=r"another evaluation, of more examples; .*\n  limit: 5 before, 4 now"):
        evaluate(plan(checkpoint, tmp_path, limit=4))
    with pytest.raises(RequestError, match=r"another evaluation; .*\n  seed: 0 before, 1 now"):
        evaluate(plan(checkpoint, tmp_path, limit=9, seed=1))
    with pytest.raises(RequestError, match=r"another evaluation; [^\n]*\n(.*\n)*  batch_size: 4 before, 2 now"):
        evaluate(plan(checkpoint, tmp_path, limit=9, batch_size=2))
    assert read_manifest(tmp_path)["limit"] == 5


def test_it_grows_from_the_command_line(checkpoint: Path, tmp_path: Path) -> None:
    words = ["eval", str(checkpoint), "--task", "choice", "-r", "full steps=2", "--out", str(tmp_path)]
    for limit in (3, 5):
        done = CliRunner().invoke(app, [*words, "--limit", str(limit)])
        assert done.exit_code == 0, done.output
        assert f"{limit}/{limit}  full steps=2" in done.stderr
        assert json.loads((tmp_path / "report.json").read_text())["rows"][0]["n"] == limit
    less = CliRunner().invoke(app, [*words, "--limit", "4"])
    assert less.exit_code == 2
    assert "of more examples" in less.stderr


def test_a_calibration_can_grow(checkpoint: Path, tmp_path: Path) -> None:
    """A calibration that grows, with a second recipe to compare with, equals one that is run at once."""
    both = []
    for work, limits in (("a", (6, 14)), ("b", (14,))):
        for limit in limits:
            asked: dict[str, Any] = {"task": "choice", "limit": limit, "seed": 3, "work": tmp_path / work}
            made = calibrate(str(checkpoint), against="full steps=8", **asked, **GOAL)
            assert made.certificate.examples == limit
        both.append(made.certificate)
    same: dict[str, Any] = {"says": "", "look": 1, "delta": 0.08}  # growing is a second look at the same decodings
    assert replace(both[0], **same) == replace(both[1], **same)
    assert [one.look for one in both] == [2, 1]
    grown, fresh = (read_records(tmp_path / work) for work in "ab")
    assert repeatable(grown) == repeatable(fresh)
    assert repeatable(read_records(tmp_path / "a" / "against")) == repeatable(read_records(tmp_path / "b" / "against"))


def test_a_refused_call_leaves_what_was_there(checkpoint: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"work": tmp_path, "options": LAYOUT, **GOAL}
    made = calibrate(str(checkpoint), prompts=ASKED[:12], **asked)
    before = kept(tmp_path)
    with pytest.raises(RequestError, match="another evaluation"):
        calibrate(str(checkpoint), prompts=ASKED[2:14], **asked)
    assert before.items() <= kept(tmp_path).items()
    assert calibrate(str(checkpoint), prompts=ASKED[:12], **asked) == made
    more = calibrate(str(checkpoint), prompts=ASKED, **asked)
    assert more.certificate.examples == len(ASKED), "prompts may be added"


def test_another_evaluation_is_found_before_a_run(checkpoint: Path, tmp_path: Path) -> None:
    evaluate(plan(checkpoint, tmp_path, limit=1))
    other = PreparedEvaluation.prepare(plan(checkpoint, tmp_path, limit=1, recipes=("full steps=6",)))
    with pytest.raises(RequestError, match="holds another evaluation"):
        other.check()
    one = evaluation_for(str(checkpoint), "sudoku", None, "full steps=6", None, tmp_path, {}, limit=1)
    with pytest.raises(RequestError, match="holds another evaluation"):
        Calibration.prepare(one, RiskGoal())
    with pytest.raises(RequestError, match="holds another evaluation"):
        JudgeTraining.prepare(one, JudgeConfig())


def test_the_command_line_checks_before_it_prints(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(plan(checkpoint, tmp_path, limit=1))
    monkeypatch.setattr("foretell.evaluation.run.run", lambda *_: pytest.fail("it was run"))
    words = ["eval", str(checkpoint), "--task", "sudoku", "--limit", "1", "-r", "full", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "holds another evaluation" in done.stderr


def test_a_calibration_accepts_its_own_folder(checkpoint: Path, tmp_path: Path) -> None:
    """The recipe that is decoded differs from the one that was given."""
    one = evaluation_for(str(checkpoint), "choice", None, "prophet", None, tmp_path, {}, limit=2)
    Calibration.prepare(one, RiskGoal()).run()
    Calibration.prepare(one, RiskGoal())
    assert JudgeTraining.prepare(one, JudgeConfig()).bench.evaluation.recipes == tuple(read_manifest(tmp_path)["order"])


def test_results_without_a_manifest_are_not_adopted(checkpoint: Path, tmp_path: Path) -> None:
    """Another model or recipe may have written them."""
    evaluate(plan(checkpoint, tmp_path))
    before = (tmp_path / "results-0.jsonl").read_bytes()
    (tmp_path / "manifest.json").unlink()
    prepared = PreparedEvaluation.prepare(plan(checkpoint, tmp_path))
    for act in (prepared.check, lambda: evaluate(plan(checkpoint, tmp_path))):
        with pytest.raises(StorageError, match=r"has results but no manifest\.json, .*delete its results-\*\.jsonl"):
            act()
    assert (tmp_path / "results-0.jsonl").read_bytes() == before
    (tmp_path / "results-0.jsonl").write_bytes(b"")
    assert len(evaluate(plan(checkpoint, tmp_path))) == 10


def test_a_folder_that_cannot_be_written_is_named(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("x" * 300, "/dev/null/results"):
        prepared = PreparedEvaluation.prepare(plan(checkpoint, tmp_path / name))
        prepared.check()
        assert read_records(prepared.evaluation.out) == []
        with pytest.raises(StorageError, match="cannot write"):
            evaluate(prepared.evaluation)
        with pytest.raises(StorageError, match="holds no evaluation"):
            read_manifest(tmp_path / name)


def test_a_full_disk_ends_a_run_with_our_error(tmp_path: Path) -> None:
    (tmp_path / "results-0.jsonl").symlink_to("/dev/full")

    def write() -> None:
        with appending(tmp_path / "results-0.jsonl") as writer:
            writer.add([record("full", 1, True, 3)])

    with pytest.raises(StorageError, match=r"cannot write .*results-0\.jsonl: No space left"):
        write()


@pytest.mark.parametrize("change", [{"trace_index": 9}, {"trace_index": -1}, {"steps": 1}])
def test_a_row_with_the_wrong_trace_is_refused(change: dict[str, Any], checkpoint: Path, tmp_path: Path) -> None:
    prepared = PreparedEvaluation.prepare(plan(checkpoint, tmp_path, trace=True, recipes=("full",), limit=2))
    records = run(prepared)
    assert len(gather_cases(prepared, records).cases) == 2
    with pytest.raises(StorageError, match=r"\.npz does not hold the trace of"):
        gather_cases(prepared, [replace(one, **change) for one in records])
