"""The program around the commands: help, version, listings, the demo and exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from inspect import signature
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_command

from foretell import Completion, load
from foretell.cli import demo as demo_module
from foretell.cli import race as race_module
from foretell.cli.app import app
from foretell.cli.canvas import Canvas
from foretell.cli.model import open_engine
from foretell.cli.process import Terminated
from foretell.cli.recipes import QUESTIONS, sentence
from foretell.engine.engine import Engine
from foretell.evaluation.records import read_records
from foretell.policies import POLICIES
from foretell.recipes.presets import PRESETS
from foretell.recipes.text import signature as signature_of
from tests.cli.conftest import WORDS, Run

# A process started in the background of a shell script ignores Ctrl-C, and so would its children.
LISTENING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
PROGRAM = [sys.executable, "-c", f"{LISTENING}; from foretell.cli import main; main()"]
LIGHT = """
import sys
from foretell.cli.app import app
app(["--help"], standalone_mode=False)
assert not {"torch", "numpy", "transformers", "tokenizers"} & set(sys.modules), sorted(sys.modules)
"""


COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]


def program(*words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout


def test_version(run: Run) -> None:
    assert run("--version").stdout == "foretell 0.2.0\n"


def test_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "foretell", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "foretell 0.2.0\n"), done.stderr


def test_help_names_every_command(run: Run) -> None:
    shown = run("--help").stdout
    for command in ("generate", "trace", "recipes", "vocab", "demo"):
        assert command in shown
    assert "--answer-length" in run("generate", "--help").stdout


@pytest.mark.parametrize("words", [*((command,) for command in COMMANDS), (), ("trace", "show"), ("trace", "replay")])
def test_every_command_has_help_by_either_name(run: Run, words: tuple[str, ...]) -> None:
    assert "Usage: " in run(*words, "-h").stdout
    assert run(*words, "-h").stdout == run(*words, "--help").stdout


def test_unknown_names_have_a_nearest_one(run: Run, checkpoint: Path) -> None:
    assert "Did you mean 'generate'?" in run("genrate", code=2).stderr
    assert "--steps" in run("generate", checkpoint, WORDS, "--setps", "3", code=2).stderr
    assert "did you mean 'prophet'?" in run("recipes", "prohpet", code=2).stderr


def test_recipes_lists_every_preset_and_policy(run: Run) -> None:
    shown = " ".join(run("recipes").stdout.split())
    for name, preset in PRESETS.items():
        assert f"{name} {preset.about}" in shown
    for policies in POLICIES.values():
        for name, policy in policies.items():
            assert f"{name} {sentence(policy)}" in shown
            assert signature_of(policy) in shown


def test_one_recipe_in_full(run: Run) -> None:
    shown = run("recipes", "prophet").stdout
    assert "stop.tau.high" in shown
    assert "stop prophet (tau=staged, " in shown
    assert "schedule staged (high=7.5" in run("recipes", "staged").stdout


def test_the_policies_of_one_kind(run: Run) -> None:
    shown = run("recipes", "stop").stdout
    assert shown.startswith("stop: is it settled?")
    assert all(f" {name} " in shown for name in POLICIES["stop"])
    assert "quota" not in shown
    assert "did you mean 'transfer'?" in run("recipes", "transfre", code=2).stderr
    assert set(QUESTIONS) == set(POLICIES)


def test_sentences_are_sentences() -> None:
    for policies in POLICIES.values():
        for policy in policies.values():
            assert len(sentence(policy)) > 20
            assert "(" not in sentence(policy).split()[0]


def test_vocab(run: Run, checkpoint: Path) -> None:
    assert "apples" in run("vocab", checkpoint).stdout
    found = run("vocab", checkpoint, "--grep", "^b", "--all").stdout.split()
    assert "boxes" in found
    assert all(word.startswith("b") for word in found)
    assert "not a regular expression" in run("vocab", checkpoint, "--grep", "(", code=2).stderr
    assert "there is no folder 'nope'" in run("vocab", "nope", code=2).stderr


def test_a_large_vocabulary_is_not_dumped(run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.cli.vocab.LARGE", 10)
    result = run("vocab", checkpoint)
    assert "use --grep" in result.stderr
    assert len(result.stdout.split()) < 20


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, object]]:
    """Count decodings by the method of the engine and the recipe."""
    counts: Counter[tuple[str, object]] = Counter()
    for name in ("generate", "stream"):
        whole = getattr(Engine, name)

        def counted(self: Engine, prompt: str, name: str = name, whole: Any = whole, **options: Any) -> Any:
            counts[name, "warm-up" if options.get("steps") == 2 else options["recipe"]] += 1
            return whole(self, prompt, **options)

        monkeypatch.setattr(Engine, name, counted)
    return counts


def test_demo_shows_three_recipes_that_are_right(
    run: Run, decoded: Counter[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert race_module.TIMINGS == 2
    monkeypatch.setattr(race_module, "TIMINGS", 1)
    shown = run("demo").stdout
    assert "\x1b" not in shown
    assert "settled at step" in shown
    assert max(map(len, shown[shown.index("steps:") :].splitlines())) <= 80
    for task, steps in {
        "word": "61 +33 +2",
        "choice": "29 +17 +3",
        "sudoku": "24 +11 +2",
        "countdown": "32 +32 +6",
    }.items():
        assert re.search(rf"^ *{task} +{steps} +[\d.]+x +[\d.]+x +yes +all *$", shown, re.M), task
    tasks, recipes = 4, demo_module.RECIPES.values()
    assert decoded == (
        {("generate", recipe): tasks * race_module.TIMINGS for recipe in recipes}
        | {("stream", recipe): tasks for recipe in recipes}
        | {("stream", "warm-up"): tasks}
    )
    assert decoded.total() == 28


def test_demo_fits_a_small_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every frame of the longest problem fits 80 columns and 24 lines."""
    monkeypatch.setattr(race_module, "TIMINGS", 1)
    engine = load("tiny")
    problem = demo_module.choose_problem("word")
    film = race_module.run(engine, "word", problem.prompt, demo_module.RECIPES, {"layout": "word"})
    canvases = [Canvas(film.spell) for _ in film.films]
    for at in range(0, max(len(one.frames) for one in film.films), 6):
        for one, canvas in zip(film.films, canvases, strict=True):
            canvas.update(one.frames[min(at, len(one.frames) - 1)])
        console = Console(file=StringIO(), width=80, height=24, record=True)
        console.print(race_module.Lanes(film, canvases))
        lines = console.export_text().splitlines()
        assert len(lines) <= 22
        assert sum("╭─ " in line for line in lines) == 1, "the lanes are side by side"
        assert all(name in lines[0] for name in demo_module.RECIPES)
        assert max(map(len, lines)) <= 80
        assert not any("…" in line for line in lines)


def test_demo_takes_half_a_minute() -> None:
    longest = signature(demo_module.demo).parameters["seconds"].default * 4
    assert 10 <= longest <= 20, "what is on screen; loading and timing add a few seconds"


def test_demo_needs_a_number_of_seconds(run: Run) -> None:
    assert "--seconds must be from 0 to 3600, got nan" in run("demo", "--seconds", "nan", code=2).stderr


def test_demo_with_a_model(run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "MODEL", str(checkpoint))
    shown = run("demo").stdout
    assert "word  Tom has 3 boxes with 4 apples each." in shown
    assert "prophet (prophet stop.reduce=min)" in shown
    assert sum(line.startswith("  prophet ") for line in shown.splitlines()) >= 2
    assert re.search(r"word +\d+ .* none\n", shown.replace("  \n", "\n"))  # it has learned nothing


@pytest.mark.parametrize(
    ("task", "text", "right"),
    [
        ("word", "3 * 4 = 12 . 12 - 5 = 7 . The answer is 7", True),
        ("word", "The answer is 17", False),
        ("countdown", "82-47=34, 34+18=52", False),
        ("countdown", "82-47=35, 35+17=52", True),
        ("unknown", "The answer is 7", True),
    ],
)
def test_demo_says_which_answers_are_right(task: str, text: str, right: bool) -> None:
    done = Completion(text, None, (), 1, 1, 1, 1, 1, "complete", 0.0)
    assert demo_module._is_right(task, demo_module.choose_problem(task), done) is right


def test_errors_of_a_real_process(checkpoint: Path) -> None:
    done = program("generate", checkpoint, WORDS, "--recipe", "prohpet")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown recipe 'prohpet'; did you mean 'prophet'?")
    assert "Traceback" not in done.stderr


def test_a_terminal_without_these_characters(checkpoint: Path, tmp_path: Path) -> None:
    """Glyphs are replaced with ASCII ones; JSON, which programs read, is escaped without loss."""
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    file = tmp_path / "run.npz"
    watched = program("generate", checkpoint, WORDS, "-r", "prophet", "-w", "--trace", file, env=ascii_only)
    assert (watched.returncode, len(watched.stderr.splitlines())) == (0, 1)
    assert "The answer is [" in watched.stdout
    assert " >= " in watched.stdout
    assert watched.stdout.endswith(" s . settled early\n")
    shown = program("trace", "show", file, env=ascii_only)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "# decoded  : decoded before" in shown.stdout
    assert "?" not in shown.stdout.replace(" ?", "")
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": WORDS, "id": "é"}), encoding="utf8")
    told = program("generate", checkpoint, "--file", tmp_path / "p.jsonl", "--json", env=ascii_only)
    assert json.loads(told.stdout)["id"] == "é"


def many(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": WORDS, "id": index}) + "\n" for index in range(2_000)))
    return file


def test_ctrl_c_keeps_what_is_finished_and_leaves_nothing_half_written(checkpoint: Path, tmp_path: Path) -> None:
    names = ("prompts.jsonl", "out.jsonl", "out.jsonl.part", "run.npz")
    prompts, out, part, trace = (tmp_path / name for name in names)
    many(tmp_path)
    words = ["generate", checkpoint, "--file", prompts, "--out", out, "--trace", trace]
    process = subprocess.Popen([*PROGRAM, *map(str, words)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (part.exists() and part.read_text().count("\n") > 1) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=150)
    assert process.returncode == 130
    assert "finished result" in stderr
    assert "Traceback" not in stderr
    assert [json.loads(line)["steps"] for line in part.read_text().splitlines()[1:]][:1] == [21]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl.part", "prompts.jsonl"]


@pytest.mark.parametrize(("stop", "code", "word"), [(KeyboardInterrupt, 130, "interrupted"), (Terminated, 143, "term")])
def test_an_interrupt_says_how_to_resume(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type, code: int, word: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise stop

    for name in ("evaluation.run.run", "certify.calibrate.Calibration.run", "train.config.TrainRecipe.read"):
        monkeypatch.setattr(f"foretell.{name}", interrupt)
    monkeypatch.setattr("foretell.cli.model.open_engine", interrupt)
    (tmp_path / "train.toml").touch()
    task = (checkpoint, "--task", "word", "--limit", "2", "--out", tmp_path / "rule.json")
    for words in (("eval", *task), ("calibrate", *task), ("train", tmp_path / "train.toml")):
        assert run(*words, code=code).stderr.endswith("ed; run the same command again to resume\n")
    shown = run("generate", checkpoint, WORDS, code=code).stderr
    assert shown.startswith(word)
    assert "again" not in shown


def test_sigterm_ends_the_workers_and_keeps_the_results(checkpoint: Path, tmp_path: Path) -> None:
    words = ["eval", checkpoint, "--task", "sudoku", "--workers", 2, "--limit", 1000, "--batch-size", 2]
    words += ["-r", "full steps=100", "--out", tmp_path]
    process = subprocess.Popen([*PROGRAM, *map(str, words)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not read_records(tmp_path) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [child for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    process.terminate()
    _, stderr = process.communicate(timeout=150)
    assert process.returncode == 143, stderr
    assert stderr.endswith("terminated; run the same command again to resume\n")
    assert "Traceback" not in stderr
    assert len(workers) == 2
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert read_records(tmp_path)


def test_closed_streams(checkpoint: Path, tmp_path: Path) -> None:
    """With no standard stream at all, results get to their file and nothing else does."""
    out = tmp_path / "out.jsonl"
    (tmp_path / "p.txt").write_text(f"{WORDS}\nzebra\n")
    words = ["generate", str(checkpoint), "--file", str(tmp_path / "p.txt"), "--out", str(out)]
    script = shlex.join([*PROGRAM, *words]) + " <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 1  # "zebra" is not in the vocabulary
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    assert {first.get("steps"), second.get("steps")} == {21, None}


def test_a_closed_pipe_is_quiet(checkpoint: Path, tmp_path: Path) -> None:
    words = ["generate", checkpoint, "--file", many(tmp_path), "--json"]
    process = subprocess.Popen([*PROGRAM, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["steps"] == 21
    process.stdout.close()
    assert process.wait(timeout=150) == 0
    assert process.stderr.read().startswith("random: ")
    process.stderr.close()


@pytest.mark.parametrize("words", ["--help", "recipes"])
def test_output_that_nobody_reads_is_quiet(words: str) -> None:
    """Less than a buffer of it, so that the error would come at exit; by typer and by rich."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*PROGRAM, words], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("asked", "small", "set_to"), [(None, 50_000_000, [1]), (None, 10, []), (3, 10, [3])])
def test_threads(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, asked: int | None, small: int, set_to: list[int]
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", chosen.append)
    monkeypatch.setattr("foretell.engine.engine.SMALL", small)
    open_engine(str(checkpoint), threads=asked)
    assert chosen == set_to
