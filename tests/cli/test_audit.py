"""`generate --audit` and `foretell audit`: the answers do not change, alarms are raised, and nothing is lost."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.certify.audit import read_log
from foretell.certify.supervise import Supervisor
from foretell.engine.certificate import Certificate
from foretell.engine.engine import Engine
from tests.cli.conftest import Run

SAFE, BOLD = "threshold transfer.value=0.99999", "threshold transfer.value=0.0"


@pytest.fixture(autouse=True)
def _choose_the_same_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda size: "7" * size)


def make_certificate(engine: Engine, recipe: str, *, fills: bool = False, **more: Any) -> Certificate:
    template = engine.fill_template(recipe=recipe) if fills else engine.template(recipe=recipe)
    full = engine.fill_template() if fills else engine.template()
    layout = template.layout
    device: dict[str, Any] = {"device": "cpu", "compile": False, "torch": engine.backend.torch}
    made = Certificate(
        recipe=str(template.recipe), certified=True, says="it holds", against=str(full.recipe), fills=fills,
        window=None if fills else layout.length, answer=list(layout.answer or ()) or None, options={},
        pins=[list(pin) for pin in layout.pins], model=engine.name, model_sha256=engine.fingerprint, dtype=engine.dtype,
        **device, task=None, examples_sha256="0", examples=400, pilot=0, seed=0, loss="answer", risk=0.01,
        confidence=0.95, look=1, delta=0.05, empirical_risk=0.0, upper_bound=0.01, cost="forwards", speedup=2.0,
        ladder="x", rungs=[str(template.recipe)], rung=0, version=foretell.__version__,
    )  # fmt: skip
    return replace(made, **more)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Engine:
    return foretell.load(checkpoint)


@pytest.fixture
def save(engine: Engine, tmp_path: Path) -> Callable[..., Path]:
    def write(recipe: str, **more: Any) -> Path:
        make_certificate(engine, recipe, **more).save(tmp_path / "tuned.json")
        return tmp_path / "tuned.json"

    return write


def write_prompts(path: Path, count: int, **more: Any) -> Path:
    names = ("Tom", "Ann", "Ben", "Eva")
    lines = [
        {"prompt": f"{names[number % 4]} has {number % 23} boxes with {number % 7} apples each .", **more}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) | {"seconds": 0} for line in path.read_text().splitlines()]


def test_an_audit_changes_no_answer(run: Run, checkpoint: Path, tmp_path: Path, save: Callable[..., Path]) -> None:
    tuned, file = save(SAFE), write_prompts(tmp_path / "p.jsonl", 40)
    words = ("generate", checkpoint, "--file", file, "--recipe", tuned)
    run(*words, "--out", tmp_path / "plain.jsonl")
    result = run(*words, "--out", tmp_path / "out.jsonl", "--audit", "0.5")
    assert rows(tmp_path / "out.jsonl") == rows(tmp_path / "plain.jsonl")
    state = read_log(tmp_path / "out.jsonl.audit.jsonl")
    assert 8 <= state.audits <= 32
    assert f"audited {state.audits} · changed " in result.stderr
    assert "with confidence 0.95 · no alarm" in result.stderr
    assert state.forwards[1][1] == 21 * state.audits
    shown = run("audit", tmp_path / "out.jsonl.audit.jsonl").stdout
    assert "risk at most 0.01 (answer) with confidence 0.95, against full" in " ".join(shown.split())
    assert "no alarm" in shown
    (made,) = map(json.loads, run("audit", tmp_path / "out.jsonl.audit.jsonl", "--json").stdout.splitlines())
    assert made["groups"][0]["audits"] == state.audits
    assert made["events"] == []


def test_an_alarm_warns(run: Run, checkpoint: Path, tmp_path: Path, save: Callable[..., Path]) -> None:
    tuned, file = save(BOLD), write_prompts(tmp_path / "p.jsonl", 40, label="sums")
    out = tmp_path / "out.jsonl"
    result = run("generate", checkpoint, "--file", file, "--recipe", tuned, "--out", out, "--audit", "1")
    assert "warning: alarm after" in result.stderr
    assert "audits for requests with the label 'sums': the risk of full" in result.stderr
    assert "2 alarms" in result.stderr
    assert all(row["forwards"] < 21 for row in rows(out))  # it only warns
    assert "sums" in run("audit", f"{out}.audit.jsonl").stdout


def test_after_an_alarm_requests_are_decoded_in_full(
    run: Run, checkpoint: Path, tmp_path: Path, save: Callable[..., Path]
) -> None:
    tuned, file = save(BOLD), write_prompts(tmp_path / "p.jsonl", 24)
    words = ("generate", checkpoint, "--file", file, "--batch-size", "2")
    result = run(*words, "-r", tuned, "--out", tmp_path / "out.jsonl", "--audit", "1", "--on-drift", "full")
    assert "; later requests are decoded in full" in result.stderr
    run(*words, "--out", tmp_path / "full.jsonl")
    made, full = rows(tmp_path / "out.jsonl"), rows(tmp_path / "full.jsonl")
    fell = [row["forwards"] == 21 for row in made]
    first = fell.index(True)
    assert 2 <= first <= 18
    assert fell == [False] * first + [True] * (24 - first)
    notes = ["decoded in full, because an audit raised an alarm"]
    assert made[first:] == [row | {"notes": notes} for row in full[first:]]
    again = run(*words, "-r", tuned, "--out", tmp_path / "two.jsonl", "--audit-log", tmp_path / "out.jsonl.audit.jsonl",
                "--audit", "1", "--on-drift", "full")  # fmt: skip
    assert all(row["forwards"] == 21 for row in rows(tmp_path / "two.jsonl"))  # the log remembers it
    assert "warning: alarm" not in again.stderr


def test_an_interrupted_audit_is_completed(
    run: Run, checkpoint: Path, tmp_path: Path, save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after any result, the same requests are audited, each once, and the answers are the same."""
    tuned, file = save(SAFE), write_prompts(tmp_path / "p.jsonl", 24)
    out, log = tmp_path / "out.jsonl", tmp_path / "log.jsonl"
    words = ("generate", checkpoint, "--file", file, "-r", tuned, "--out", out, "--audit", "0.5", "--audit-log", log)
    run(*words)
    expected, audits = rows(out), read_log(log).audits
    header, *lines = log.read_text().splitlines()
    for limit in (3, 20, 30):
        log.write_text(header + "\n")
        out.unlink()
        left, record = limit, Supervisor.record

        def dies(*given: Any, record: Any = record) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return record(*given)

        with monkeypatch.context() as patch:
            patch.setattr(Supervisor, "record", dies)
            run(*words, code=130)
        run(*words)
        assert rows(out) == expected
        assert sorted(log.read_text().splitlines()) == sorted([header, *lines])
        assert read_log(log).audits == audits
    run(*words)  # everything has been audited
    assert read_log(log).audits == audits


def test_fills_are_audited(run: Run, checkpoint: Path, tmp_path: Path, save: Callable[..., Path]) -> None:
    tuned, file = save(BOLD, fills=True, loss="tokens"), tmp_path / "texts.txt"
    file.write_text("".join(f"Tom has {number} boxes with [MASK*4] each .\n" for number in range(12)))
    run("fill", checkpoint, "--file", file, "-r", tuned, "--out", tmp_path / "out.jsonl", "--audit", "1")
    losses = read_log(tmp_path / "out.jsonl.audit.jsonl").losses[1]
    assert len(losses) == 12
    assert any(0 < loss < 1 for loss in losses)


def test_answers_of_the_file_grade_an_audit(
    run: Run, checkpoint: Path, tmp_path: Path, save: Callable[..., Path], engine: Engine
) -> None:
    """The loss `success` counts only right answers that are lost."""
    tuned, file, words = save(BOLD, loss="success"), tmp_path / "p.jsonl", "Tom has 3 boxes ."
    right = engine.generate(words).answer
    assert right != engine.generate(words, recipe=BOLD).answer
    file.write_text("".join(json.dumps({"prompt": words, "answer": answer}) + "\n" for answer in (right, "wrong")))
    out = tmp_path / "out.jsonl"
    run("generate", checkpoint, "--file", file, "-r", tuned, "--out", out, "--audit", "1")
    assert read_log(tmp_path / "out.jsonl.audit.jsonl").losses[1] == [1.0, 0.0]
    file.write_text(json.dumps({"prompt": words}) + "\n")
    result = run("generate", checkpoint, "--file", file, "-r", tuned, "--out", out, "--audit", "1", code=2)
    assert 'p.jsonl, line 1: the loss success needs an "answer" in every line' in result.stderr


def test_a_request_that_fails_is_no_evidence(
    run: Run, checkpoint: Path, tmp_path: Path, save: Callable[..., Path]
) -> None:
    tuned, file = save(SAFE), tmp_path / "p.jsonl"
    file.write_text('{"prompt": "Tom has 3 boxes ."}\n{"prompt": "quux"}\n')
    run("generate", checkpoint, "--file", file, "-r", tuned, "--out", tmp_path / "o.jsonl", "--audit", "1", code=1)
    state = read_log(tmp_path / "o.jsonl.audit.jsonl")
    assert (state.audits, state.failed) == (1, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipe", "swift", "--audit", "0.1"], "--audit needs a certified recipe"),
        (["--recipe", "TUNED", "--audit", "2"], "--audit must be from 0 to 1, got 2.0"),
        (["--recipe", "TUNED", "--audit", "0.1", "--on-drift", "stop"], "unknown --on-drift 'stop'"),
        (["--recipe", "TUNED", "--audit", "0.1", "--temperature", "1"], "differ by chance if tokens are sampled"),
        (["--recipe", "TUNED", "--audit", "0.1", "--watch"], "--watch shows one request at a time"),
        (["--recipe", "TUNED", "--audit", "0.1", "--loss", "text"], "certified for the loss answer, not text"),
        (["--recipe", "TUNED", "--on-drift", "full"], "--on-drift needs --audit without --risk"),
        (["--recipe", "TUNED", "--dtype", "bfloat16", "--on-mismatch", "full", "--audit", "1"], "nothing to audit"),
    ],
)
def test_what_cannot_be_audited(
    run: Run, checkpoint: Path, tmp_path: Path, save: Callable[..., Path], words: list[str], message: str
) -> None:
    tuned, file = save(SAFE), write_prompts(tmp_path / "p.jsonl", 2)
    given = [str(tuned) if word == "TUNED" else word for word in words]
    result = run("generate", checkpoint, "--file", file, "--out", tmp_path / "out.jsonl", *given, code=2)
    assert message in result.stderr
    assert not (tmp_path / "out.jsonl.audit.jsonl").exists()


def test_a_log_needs_a_place(run: Run, checkpoint: Path, save: Callable[..., Path]) -> None:
    result = run("generate", checkpoint, "Tom has 3 .", "-r", save(SAFE), "--audit", "1", code=2)
    assert "audits need a file for their log" in result.stderr
