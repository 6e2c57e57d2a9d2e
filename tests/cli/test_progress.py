"""The line on stderr that says what runs where, and the progress on a terminal."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from foretell.cli import progress
from foretell.cli.model import at_revision
from foretell.cli.progress import Meter
from foretell.engine.engine import Engine
from tests.cli.conftest import WORDS, Run

LINE = re.compile(r"random: .*M parameters, float32 on cpu \(1 thread\), \d+ MB used, [\d.]+ [MG]B free")


class AtOnce:
    """A timer that is not worth waiting for."""

    def __init__(self, _: float, call: Callable[[], None]) -> None:
        self.start = call

    def cancel(self) -> None:
        pass


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """A terminal of 80 columns, on which progress appears at once and each step is shown."""
    shown = StringIO()
    console = Console(file=shown, force_terminal=True, width=80, color_system=None, legacy_windows=False)
    monkeypatch.setattr(progress, "err", lambda: console)
    monkeypatch.setattr(progress, "Timer", AtOnce)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    return shown


def lines_of(shown: StringIO) -> list[str]:
    return [line.strip() for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue()))]


def test_one_prompt_shows_its_steps_and_the_gap(run: Run, checkpoint: Path, screen: StringIO) -> None:
    run("generate", checkpoint, WORDS, "-r", "prophet")
    last = [line for line in lines_of(screen) if line][-1]
    assert re.fullmatch(r"decoding [━╸ ]+ step 1[0-9]/24  mean gap +[\d.]+ ≥ [\d.]+ \d:\d\d:\d\d", last), last
    assert len(last) <= 80


def test_without_a_rule_there_is_no_gap(run: Run, checkpoint: Path, screen: StringIO) -> None:
    run("generate", checkpoint, WORDS)
    last = [line for line in lines_of(screen) if line][-1]
    assert re.fullmatch(r"decoding [━╸ ]+ step 21/24 \d:\d\d:\d\d", last), last


@pytest.mark.parametrize("words", [("--json",), ("--watch",)])
def test_no_progress_with_json_or_watch(run: Run, checkpoint: Path, screen: StringIO, words: tuple[str, ...]) -> None:
    run("generate", checkpoint, WORDS, *words)
    assert "decoding" not in screen.getvalue()


def test_loading_shows_bytes(screen: StringIO) -> None:
    with Meter("loading") as meter:
        assert screen.getvalue() == "", "a download before has its own bar"
        meter.load(0, 16_000_000_000)
        meter.load(4_000_000_000, 16_000_000_000)
        assert meter.bar is not None
        meter.bar.refresh()
    assert any(re.match(r"loading [━╸ ]+ 4.0 of 16.0 GB", line) for line in lines_of(screen))


def test_short_work_and_other_outputs_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = StringIO()
    for terminal, patience in ((True, 60.0), (False, 0.0)):
        monkeypatch.setattr(progress, "err", lambda: Console(file=shown, force_terminal=terminal))  # noqa: B023
        monkeypatch.setattr(progress, "PATIENCE", patience)
        with Meter("loading") as meter:
            meter.load(1, 2)
            assert meter.bar is None
        meter._show()  # as if the timer fired just now
        assert meter.bar is None
    assert shown.getvalue() == ""


def test_the_line_appears_while_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = StringIO()
    monkeypatch.setattr(progress, "err", lambda: Console(file=shown, force_terminal=True, width=80))
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    with Meter("decoding") as meter:
        meter.begin()
        deadline = time.monotonic() + 30
        while meter.bar is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert meter.bar is not None
    assert "decoding" in shown.getvalue()


def test_every_command_says_what_runs_where(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    single = run("generate", checkpoint, WORDS, "--json")
    (line,) = single.stderr.splitlines()
    assert LINE.fullmatch(line)
    assert len(line) <= 80
    json.loads(single.stdout)
    task = ("--task", "choice", "--limit", "2")
    evaluated = run("eval", checkpoint, *task, "-r", "full", "--out", tmp_path / "out")
    calibrated = run("calibrate", checkpoint, *task, "--out", tmp_path / "rule.json")
    for done in (evaluated, calibrated):
        assert sum(LINE.fullmatch(line) is not None for line in done.stderr.splitlines()) == 1


def test_rows_that_do_not_fit_are_noted(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "count_rows", lambda *_: 3)
    file = tmp_path / "p.txt"
    file.write_text(f"{WORDS}\n" * 4)
    noted = run("generate", checkpoint, "--file", file).stderr
    assert "warning: about 3 of 4 rows fit into the free memory at the same time: lower --batch-size" in noted
    for words in (("--batch-size", "3"), ("--watch",)):
        assert "rows fit" not in run("generate", checkpoint, "--file", file, *words).stderr


def test_a_revision_is_for_hub_ids(run: Run, checkpoint: Path) -> None:
    assert at_revision("lab/model", "v2") == "lab/model@v2"
    told = run("generate", "tiny", WORDS, "--revision", "v2", code=2).stderr
    assert "--revision is for models on the hub, which are owner/name; got tiny" in told
