"""`foretell tune`, and the use of its file in other commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import Result

from foretell import load
from foretell.certify.ladders import TRANSFERS
from foretell.cli import console
from foretell.cli.tune import describe, report, show_stages
from foretell.engine.certificate import Certificate, read_certificate
from tests.cli.conftest import WORDS, Run

PROMPTS = [f"Tom has {number} boxes with {number + 1} apples each ." for number in range(2, 26)]
GOAL = ("--risk", "0.9", "--confidence", "0.8", "--pilot", "8")
RESUME = "interrupted; run the same command again to resume\n"


@pytest.fixture(scope="module", autouse=True)
def _short_search() -> Iterator[None]:
    """One transfer and few levels: what the pilot finds is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foretell.certify.pilot.TRANSFERS", {"threshold": TRANSFERS["threshold"]})
        patch.setattr("foretell.certify.pilot.WIDEST", 1)
        yield


def write_prompts(folder: Path, count: int = len(PROMPTS)) -> Path:
    file = folder / "prompts.txt"
    file.write_text("\n".join(PROMPTS[:count]))
    return file


@contextmanager
def interrupt_later() -> Iterator[Callable[..., Callable[[object], None]]]:
    """Stand in for `show_stages`: Ctrl-C after the tenth decoding."""
    made = 0

    def advance(_: object) -> None:
        nonlocal made
        made += 1
        if made == 10:
            raise KeyboardInterrupt

    yield lambda _title, _total: advance


@pytest.fixture(scope="module")
def runs(run_once: Run, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, Result]:
    """Return the tuned file, what an interrupted run printed, and what the run that resumed it printed."""
    folder = tmp_path_factory.mktemp("tune")
    words = ("tune", checkpoint, "--prompts", write_prompts(folder), "--out", folder / "tuned.json", *GOAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foretell.cli.tune.show_stages", interrupt_later)
        first = run_once(*words, code=130)
        assert not (folder / "tuned.json").exists()
    return folder / "tuned.json", first, run_once(*words)


@pytest.fixture
def tuned(runs: tuple[Path, Result, Result]) -> Path:
    return runs[0]


@pytest.fixture
def found(tuned: Path) -> Certificate:
    return read_certificate(tuned)


def test_an_interrupted_tuning_resumes(runs: tuple[Path, Result, Result]) -> None:
    _, first, second = runs
    assert first.stderr.endswith(RESUME)
    assert first.stdout == ""
    assert "pilot: full decoding" not in second.stderr, "its 8 decodings are stored"
    assert "calibration: full decoding: 16 decodings\n" in second.stderr


def test_it_says_what_it_found(runs: tuple[Path, Result, Result], found: Certificate) -> None:
    tuned, _, done = runs
    assert found.certified
    assert (found.examples, found.pilot, found.cost) == (16, 8, "forwards")
    assert done.stdout.startswith(f"Ladder {found.ladder}, from safe to fast, on 16 examples")
    assert done.stdout.endswith(f"{describe(found)}\n"), "the recipe is on one line, to copy it"
    assert f"{found.recipe}\n{found.speedup:.2f}x fewer forwards on the calibration set. The transfer" in done.stdout
    page, picture = tuned.with_suffix(".md"), tuned.with_suffix(".png")
    assert done.stderr.endswith(f"wrote {tuned}, {page}, {picture}\n")
    assert "cannot show" not in done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert text.startswith(f"# {found.speedup:.2f}x fewer forwards, certified\n")
    assert "![the frontier](tuned.png)" in text


def test_generate_uses_its_file(run: Run, checkpoint: Path, tuned: Path) -> None:
    words = ("generate", checkpoint, PROMPTS[0], "--json")
    fast, full = run(*words, "--recipe", tuned), run(*words)
    assert "warning" not in fast.stderr
    forwards = load(checkpoint).generate(PROMPTS[0], recipe=tuned).forwards
    assert json.loads(fast.stdout)["forwards"] == forwards < json.loads(full.stdout)["forwards"]
    assert "does not hold here" in run(*words, "--recipe", tuned, "--steps", "5").stderr
    assert "certified at" in run("recipes", tuned).stdout


def screen(patch: pytest.MonkeyPatch, name: str = "out") -> StringIO:
    """Replace a console by a terminal of 80 columns; returns what is printed there."""
    shown = StringIO()
    patch.setenv("COLUMNS", "80")
    terminal = Console(file=shown, force_terminal=True, highlight=False, emoji=False, color_system=None)
    patch.setattr(console, name, lambda: terminal)
    return shown


def test_a_terminal_of_80_columns_is_wide_enough(
    found: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found.report is not None
    recipe = "full block_length=32 cache=prefix transfer=entropy_threshold(entropy=0.417) stop=prophet(reduce=min)"
    rows = [{**row, "recipe": recipe, "risk": 1.0, "interval": [0.9999, 1.0]} for row in found.report["frontier"]]
    alone = {**found.report["transfer_alone"], "stops": True, "recipe": "full steps=77"}
    wide = replace(found, report={**found.report, "frontier": rows, "transfer_alone": alone})
    for number, one in enumerate((found, wide)):
        shown = screen(monkeypatch)
        report(one, tmp_path / f"{number}.json")
        lines = shown.getvalue().splitlines()
        assert max(map(len, lines)) <= 80
        assert "…" not in shown.getvalue(), "nothing is cut off"
        heading = f"p (risk > {one.risk:g})  speedup  certified"
        assert any(heading in line for line in lines[:3])
    assert "full steps=77" in shown.getvalue()
    assert "(the" in shown.getvalue()
    assert "alone)" in shown.getvalue()
    assert f"The transfer alone: {alone['speedup']:.2f}x." in shown.getvalue()


def test_a_group_above_the_risk_is_named(
    found: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found.report is not None
    one = {"by": "label", "examples": 5, "risk": 0.8, "interval": [0.3, 1.0], "proven_above": False}
    groups = [{**one, "group": "easy", "above": False}, {**one, "group": "hard", "above": True}]
    report(replace(found, report={**found.report, "groups": groups}), tmp_path / "tuned.json")
    said = capsys.readouterr().err
    assert "warning: above the promised risk: label hard: 80.00% of 5 examples\n" in said
    assert "easy" not in said


def test_the_transfer_alone_is_shown_only_if_there_is_a_rule(found: Certificate) -> None:
    assert found.report is not None
    alone = found.report["transfer_alone"]
    for stops in (True, False):
        says = describe(replace(found, report={**found.report, "transfer_alone": {**alone, "stops": stops}}))
        assert (f" The transfer alone: {alone['speedup']:.2f}x." in says) is stops
    assert "alone" not in describe(replace(found, report=None))


def test_a_file_without_a_report_has_no_picture(found: Certificate, tmp_path: Path) -> None:
    report(replace(found, report=None), tmp_path / "bare.json")
    assert [path.name for path in tmp_path.iterdir()] == ["bare.md"]
    assert "![" not in (tmp_path / "bare.md").read_text()


def test_without_matplotlib_only_the_picture_is_missing(
    found: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report(found, tmp_path / "tuned.json")
    said = capsys.readouterr()
    assert (
        "warning: no picture is drawn, because matplotlib is not installed: pip install 'foretell[plots]'" in said.err
    )
    assert said.err.endswith(f"wrote {tmp_path / 'tuned.json'}, {tmp_path / 'tuned.md'}\n")
    assert "![" not in (tmp_path / "tuned.md").read_text()
    assert describe(found) in said.out


def test_too_few_prompts(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    """It says so before anything is decoded, and afterwards; the file decodes in full."""
    out = tmp_path / "tuned.json"
    words = ("tune", checkpoint, "--prompts", write_prompts(tmp_path, 16), "--out", out, "--max-new-tokens", "8")
    done = run(*words)
    short = "8 examples cannot show a risk of at most 1% with confidence 0.95: at least 321 are needed without a"
    assert done.stderr.startswith(f"warning: {short}")
    assert (
        "; the 8 of the calibration set can show a risk of 33.13% at best (--risk 0.3313)\n" in done.stderr
    )  # rounded up
    found = read_certificate(out)
    assert done.stdout.endswith(f"Nothing is certified, so the recipe stays {found.against}: {found.says}.\n")
    assert short in done.stdout
    assert (tmp_path / "tuned.md").read_text().startswith("# Nothing is certified\n")
    fast = run("generate", checkpoint, WORDS, "--recipe", out)
    assert f"warning: nothing is certified: {short}" in fast.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give a task, prompts, or texts with masks: one of them"),
        (("--task", "choice", "--prompts", "prompts.txt"), "give a task, prompts, or texts with masks: one of them"),
        (("--prompts", "none.txt"), "none.txt"),
        (("--task", "choice", "--risk", "2"), "risk must be a number above 0 and below 1 (1% is 0.01), got 2.0"),
        (("--task", "choice", "--loss", "anwser"), "unknown loss 'anwser'; did you mean 'answer'"),
        (("--task", "choice", "--cost", "money"), "unknown cost 'money'"),
        (("--task", "choice", "--limit", "10"), "tuning needs at least 16 examples, got 10"),
        (("--task", "choice", "--limit", "20", "--pilot", "13"), "pilot must be"),
        (("--task", "choice", "--limit", "20", "--against", "prophet"), "never stops early, got 'prophet'"),
    ],
)
def test_mistakes_are_named(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = run("tune", checkpoint, *words, code=2)
    assert says in wrong.stderr
    assert wrong.stderr.startswith("error: ")
    assert wrong.stderr.count("\n") == 1
    assert [*tmp_path.iterdir()] == []


def test_a_terminal_shows_a_bar_for_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = screen(monkeypatch, "err")
    with show_stages() as stage:
        for title, total in (("pilot: full decoding", 3), ("calibration: rung 1 of 4", 2)):
            advance = stage(title, total)
            for _ in range(total):
                advance(None)  # type: ignore[arg-type]
    assert "2/2" in shown.getvalue()
    assert "calibration: rung 1 of 4" in shown.getvalue()
