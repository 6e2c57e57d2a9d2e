"""`generate --risk`: full decoding first, then what the requests have earned."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.certify.audit import key_of, read_log
from foretell.certify.losses import find_loss
from foretell.certify.supervise import Subject, Supervisor, can_replay
from foretell.engine.certificate import read_certificate
from foretell.engine.prompt_files import FilePrompt
from tests.cli.conftest import Run
from tests.cli.test_audit import rows, write_prompts

EASY = (
    "--risk",
    "0.4",
    "--confidence",
    "0.8",
    "--pilot",
    "4",
    "--explore",
    "0.6",
    "--batch-size",
    "4",
    "--loss",
    "tokens",
)


@pytest.fixture(autouse=True)
def _choose_the_same_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda size: "7" * size)


def test_a_climb(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    file, out = write_prompts(tmp_path / "p.jsonl", 24), tmp_path / "out.jsonl"
    words = ("generate", checkpoint, "--file", file, "--out")
    result = run(*words, out, *EASY)
    assert "pilot of 4 requests done: a ladder of " in result.stderr
    assert "rung 1 of 6 earned with " in result.stderr
    assert "of 6, the fastest earned one, is used from now on: full" in result.stderr
    log = tmp_path / "out.jsonl.climb.jsonl"
    state = read_log(log)
    assert state.rung >= 1
    run(*words, tmp_path / "full.jsonl")
    made, full = rows(out), rows(tmp_path / "full.jsonl")
    early = [row["forwards"] < 21 for row in made]
    assert not any(early[:4])
    assert any(early)
    same = [one for one, other, fast in zip(made, full, early, strict=True) if not fast and one == other]
    assert len(same) == early.count(False)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    keys = {key_of(number + 1, prompt) for number, prompt in enumerate(read_prompts(file))}
    assert {line["key"] for line in lines[1:]} <= keys - set(lines[0]["pilot"])
    assert len(lines[0]["pilot"]) >= 4

    shown = run("audit", log, "--export", tmp_path / "tuned.json").stdout
    assert f"rung {state.rung} of {len(state.header.rungs)} in use" in shown
    found = read_certificate(tmp_path / "tuned.json")
    assert (found.certified, found.rung, found.loss) == (True, state.rung - 1, "tokens")
    again = run("generate", checkpoint, "Tom has 3 boxes .", "-r", tmp_path / "tuned.json")
    assert "warning" not in again.stderr
    told = json.loads(run("audit", log, "--json").stdout)
    assert (told["rung"], told["earned"]) == (state.rung, state.earned)
    more = run(*words, tmp_path / "more.jsonl", *EASY, "--state", log)  # all of these requests are in the log
    assert "pilot" not in more.stderr
    assert sum(row["forwards"] for row in rows(tmp_path / "more.jsonl")) < sum(row["forwards"] for row in made)


def read_prompts(file: Path) -> list[str]:
    return [json.loads(line)["prompt"] for line in file.read_text().splitlines()]


def test_an_interrupted_climb_continues(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rung is in use, no chosen request is lost, and none is audited twice."""
    file, out, log = write_prompts(tmp_path / "p.jsonl", 45), tmp_path / "out.jsonl", tmp_path / "log.jsonl"
    words = ("generate", checkpoint, "--file", file, "--out", out, "--state", log, *EASY)
    left, record = 45, Supervisor.record

    def dies(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return record(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Supervisor, "record", dies)
        run(*words, code=130)
    before = read_log(log)
    lines = log.read_text().splitlines()
    answered = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl.part").read_text().splitlines()[1:]]
    run(*words)
    after = log.read_text().splitlines()
    assert after[: len(lines)] == lines
    state = read_log(log)
    assert state.events[: len(before.events)] == before.events
    keys = [json.loads(line)["key"] for line in after[1:]]
    assert len(keys) == len(set(keys))
    prompts = read_prompts(file)
    chosen = {
        key
        for number in answered
        if before.header.chooses(key := key_of(number, prompts[number - 1]), before.header.rest or 0.0)
        and key not in before.header.pilot
    }
    assert chosen <= set(keys)


def test_a_stopping_rule_is_replayed_on_every_full_decoding(checkpoint: Path, tmp_path: Path) -> None:
    """The rule that the pilot finds costs nothing to test, and its replay equals its decoding."""
    engine = foretell.load(checkpoint)
    full = engine.template()
    rule = foretell.parse(f"{full.recipe} stop=sure(1.0)")
    template = engine.template(recipe=rule)
    assert can_replay(template.recipe, full.recipe)
    assert not can_replay(engine.template(recipe="threshold").recipe, full.recipe)
    subject = Subject(engine, find_loss("answer"), fills=False)
    early = 0
    for number in range(12):
        one = FilePrompt(number, f"Tom has {number} boxes .")
        done = engine.generate(one.prompt, trace=True)
        assert done.trace is not None
        found = subject.replay(one, done, done.trace, template)
        live = engine.generate(one.prompt, recipe=rule)
        assert (found.text, found.answer, found.steps, found.exit) == (live.text, live.answer, live.steps, live.exit)
        early += found.exit is not None
    assert early > 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--risk", "2"], "risk must be a number above 0 and below 1"),
        (["--risk", "0.1", "--recipe", "prophet"], "a climb starts with full decoding, which never stops early"),
        (["--risk", "0.1", "--temperature", "1"], "differ by chance if tokens are sampled"),
        (["--risk", "0.1", "--pilot", "0"], "pilot must be at least 1"),
        (["--risk", "0.1", "--ahead", "0"], "ahead must be at least 1"),
        (["--risk", "0.1", "--explore", "2"], "--explore must be from 0 to 1"),
        (["--risk", "0.1", "--on-drift", "full"], "--on-drift needs --audit without --risk"),
        (["--risk", "0.1", "--loss", "anser"], "did you mean 'answer'"),
        (["--explore", "0.1"], "--explore needs --risk"),
        (["--loss", "text"], "--loss needs --audit or --risk"),
    ],
)
def test_what_cannot_be_climbed(run: Run, checkpoint: Path, tmp_path: Path, words: list[str], message: str) -> None:
    file = write_prompts(tmp_path / "p.jsonl", 2)
    result = run("generate", checkpoint, "--file", file, "--out", tmp_path / "out.jsonl", *words, code=2)
    assert message in result.stderr
    assert not (tmp_path / "out.jsonl.climb.jsonl").exists()
