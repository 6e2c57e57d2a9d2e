"""Files that earlier versions wrote are read as they were meant, or refused with a message that names the version."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import foretell
from foretell.engine.certificate import NO_DIGEST, read_certificate
from foretell.engine.options import GenerateOptions
from foretell.errors import RequestError, StorageError, TraceError
from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.records import lines, read_records
from foretell.evaluation.report import report
from foretell.evaluation.run import Evaluation, evaluate
from foretell.policies.stop.never import Never

OLD = Path(__file__).parent / "stored" / "0.1.0"
DUAL = "prophet cache=dual(window=near(8))"
NOW = f"foretell {foretell.__version__} reads format 1"


def text_of(trace: foretell.Trace) -> str:
    return "".join(trace.words[int(token)] for token in trace.tokens[-1]).partition("<|endoftext|>")[0]


def test_traces() -> None:
    first, second = foretell.load_traces(OLD / "traces.npz")
    assert (len(first), first.settled, text_of(first)) == (23, True, "81 - 52 = 29 .29 + 18 = 47 .")
    assert first.request.recipe == foretell.parse("prophet block_length=16")
    assert first.replay(first.request.recipe.stop) == 22
    assert (len(second), second.settled) == (29, False)
    assert second.request.recipe == foretell.parse("full block_length=16 cache=dual(visible=near(8))")
    assert first.request.layout == foretell.Layout(32, ((28, 55), (29, 59), (30, 94)), (31, 1))
    assert float(first.gap.sum()) == pytest.approx(7926.6274)


def test_a_certificate() -> None:
    found = read_certificate(OLD / "rule.json")
    assert (found.version, found.certified, found.examples, found.risk) == ("0.1.0", True, 40, 0.3)
    assert found.rule == foretell.parse("full stop=prophet(tau=staged(0.9375,0.625,0.3125),reduce=min)").stop
    assert replace(found.chosen, stop=Never()) == found.compared_with == foretell.parse("full block_length=16")
    assert (found.rungs, found.rung, found.ladder) == ([found.recipe], 0, "prophet-min")
    assert (found.cost, found.look, found.delta, found.options, found.sealed) == ("steps", 1, 0.05, {}, False)


def test_a_certified_recipe() -> None:
    """The rule was written before whole recipes were certified, by the same command."""
    rule, tuned = (read_certificate(OLD.parent / "0.2.0" / name) for name in ("rule.json", "tuned.json"))
    assert (tuned.recipe, tuned.rung, len(tuned.rungs)) == (rule.recipe, 56, 57)
    assert tuned.options == {"max_new_tokens": 32, "suffix": "The answer is", "answer_length": 1}
    new = {name: getattr(tuned, name) for name in ("options", "device", "compile", "torch", "rungs", "rung")}
    assert replace(rule, **new) == tuned
    differs = foretell.load("tiny").template(recipe=replace(tuned, torch=None, version=foretell.__version__)).notes
    assert differs == ()


def test_a_certificate_holds_for_the_model_of_then() -> None:
    engine = foretell.load("tiny")
    asked: GenerateOptions = {
        "recipe": "prophet",
        "layout": "choice",
        "stop": OLD / "rule.json",
        "on_mismatch": "fail",
    }
    version = f"certified with foretell 0.1.0, not {foretell.__version__}; in rare cases this changes a token"
    assert engine.template(**asked).notes == (NO_DIGEST, version)
    del asked["stop"]
    assert engine.template(**asked | {"recipe": OLD / "rule.json"}).notes == (NO_DIGEST, version)


def test_results() -> None:
    assert read_manifest(OLD / "results")["versions"]["foretell"] == "0.1.0"
    records = read_records(OLD / "results")
    assert [one.recipe for one in records] == ["full"] * 3 + [DUAL] * 3
    assert [one.answer == one.gold for one in records] == [one.correct for one in records] == [True] * 6
    assert (records[0].columns_needed, records[0].columns_computed, records[0].response_tokens) == (2349, 2552, 13)
    assert records[0].fallback is None
    assert all(one.value is not None for one in records if one.exit is not None)
    for one in records:
        assert one.trace is not None
        assert one.trace_index is not None
        assert len(foretell.load_traces(OLD / "results" / one.trace)[one.trace_index]) == one.steps
    rows = json.loads((OLD / "results" / "report.json").read_text())["rows"]
    for row, old in zip(report(OLD / "results").rows, rows, strict=True):
        assert (row.recipe, row.n, row.accuracy, row.steps) == tuple(
            old[name] for name in ("recipe", "n", "accuracy", "steps")
        )


def test_results_of_another_version_are_not_continued(tmp_path: Path) -> None:
    shutil.copytree(OLD / "results", tmp_path / "results")
    again = Evaluation("tiny", "choice", ("full", DUAL), tmp_path / "results", limit=3, trace=True)
    with pytest.raises(RequestError, match=r"versions\.foretell: \"0\.1\.0\" before, \"0\.2\.0\" now"):
        evaluate(again)


def test_recipes() -> None:
    lines = [line.split("\t") for line in (OLD / "recipes.txt").read_text().splitlines()]
    assert {name: foretell.parse(text) for name, text in lines if name} == {
        name: preset.recipe for name, preset in foretell.PRESETS.items() if name in dict(lines)
    }
    assert len(lines) == 26
    assert lines[-1] == ["", "full cache=off(window=near(suffix=4))"]
    assert str(foretell.parse(lines[-1][1])) == "full cache=off(visible=near(suffix=4))"


def test_another_format_is_refused(tmp_path: Path) -> None:
    with np.load(OLD / "traces.npz") as stored:
        arrays = dict(stored)
    arrays["header"] = np.array(json.dumps(json.loads(str(arrays["header"])) | {"version": 2}))
    np.savez(tmp_path / "traces.npz", **arrays)
    with pytest.raises(TraceError, match=f"traces.npz .*: its format is 2; {NOW}"):
        foretell.load_traces(tmp_path / "traces.npz")
    rule = json.loads((OLD / "rule.json").read_text())
    (tmp_path / "rule.json").write_text(json.dumps(rule | {"foretell_rule": "new"}))
    with pytest.raises(StorageError, match=f"its format is 'new'; {NOW}"):
        read_certificate(tmp_path / "rule.json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"recpies": {}}, "unknown key 'recpies'; did you mean 'recipes'"),
        ({"examples": "3"}, "'examples' must be a whole number, got '3'"),
        ({"order": None}, "'order' must be a list, got None"),
        ({"recipes": {"full": {"recipe": "full"}}}, r"'options' is missing in 'recipes\[\.\.\.\]'"),
    ],
)
def test_a_damaged_manifest_is_refused(change: dict[str, object], says: str, tmp_path: Path) -> None:
    manifest = read_manifest(OLD / "results")
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(StorageError, match=rf"manifest\.json is not a manifest that foretell 0\.2\.0 can read: {says}"):
        read_manifest(tmp_path)
    for text in ("{", "[" * 100_000):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(StorageError, match=r"manifest\.json is not valid JSON"):
            read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"corect": True}, "unknown key 'corect'; did you mean 'correct'"),
        ({"steps": "3"}, "'steps' must be a whole number, got '3'"),
        ({"correct": 1}, "'correct' must be true or false, got 1"),
        ("[]", r"it must be an object, got \[\]"),
        ("{", "it is not valid JSON"),
        ("[" * 100_000, "it is not valid JSON: it is nested too deeply"),
        ("\0", "it is not valid JSON"),
    ],
)
def test_a_damaged_result_is_refused(change: dict[str, object] | str, says: str, tmp_path: Path) -> None:
    first, second, *_ = (OLD / "results" / "results-0.jsonl").read_text().splitlines()
    bad = change if isinstance(change, str) else json.dumps(json.loads(second) | change)
    file = tmp_path / "results-0.jsonl"
    file.write_text(f"{first}\n{bad}\n")
    problem = rf"results-0\.jsonl, line 2: foretell 0\.2\.0 cannot read it: {says}"
    with pytest.raises(StorageError, match=problem):
        read_records(tmp_path)
    with pytest.raises(StorageError, match=problem):
        list(lines(file, start=len(first) + 1))
    file.write_text(f"{first}\n{bad}")
    assert len(read_records(tmp_path)) == 1, "a kill may leave half a line"
