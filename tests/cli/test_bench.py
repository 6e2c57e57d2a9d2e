"""`foretell bench` on a small random model, and the options that change how a model is run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import WORDS, Run

FEW = ("--requests", "3", "--batch-size", "2", "--rounds", "1", "--steps", "4")


def test_ratios_of_every_recipe_and_service(run: Run, checkpoint: Path) -> None:
    result = run("bench", checkpoint, *FEW)
    lines = [line for line in result.stdout.splitlines() if "/3" in line]
    services = [name for line in lines for name in ("one by one", "synchronous", "continuous") if name in line]
    assert services == ["one by one", "synchronous", "continuous"] * 2 + ["one by one", "continuous"]
    assert re.search(r"full +one by one +1\.00x +3/3 +1\.00x fewer +0\.0%", lines[0])
    assert all("3/3" in line for line in lines)
    assert "1/1" in result.stderr


def test_prompts_of_a_file_and_own_recipes(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(f"{WORDS}\n{WORDS} {WORDS}\n")
    words = ("--file", tmp_path / "p.txt", "-r", "full", "-r", "full steps=2", "--max-new-tokens", "8")
    result = run("bench", checkpoint, *words, "--suffix", "", "--answer-length", "2", "--rounds", "1")
    lines = [line for line in result.stdout.splitlines() if "2/2" in line]
    assert len(lines) == 6
    assert "4.00x fewer" in lines[3]


def test_a_model_without_a_layout_gets_one(run: Run, literate: Path) -> None:
    result = run("bench", literate, *FEW, "-r", "prophet stop.tau=linear(-1,-1)", "-r", "full")
    assert "no answer region" not in result.stderr
    assert "4.00x more" in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--requests", "0"), "--requests must be at least 1, got 0"),
        (("--batch-size", "-1"), "--batch-size must be at least 1, got -1"),
        (("--rounds", "0"), "--rounds must be at least 1, got 0"),
        (("-r", "ful"), "unknown recipe 'ful'"),
        (("--quantize", "int9"), "unknown quantize 'int9'"),
    ],
)
def test_what_is_wrong_is_said(run: Run, checkpoint: Path, words: tuple[str, ...], said: str) -> None:
    assert said in run("bench", checkpoint, *words, code=2).stderr


@pytest.mark.parametrize("command", ["generate", "eval", "bench"])
def test_compile_and_quantize_reach_the_model(
    command: str, run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[str] = []

    def noted(name: str) -> Any:
        return lambda _: changed.append(name)

    monkeypatch.setattr("foretell.engine.engine.compile_blocks", noted("compiled"))
    monkeypatch.setattr("foretell.engine.engine.quantize_weights", noted("quantized"))
    words = short_command(command, tmp_path)
    run(command, checkpoint, *words)
    assert changed == []
    folder = ("--out", tmp_path / "other") if command == "eval" else ()
    run(command, checkpoint, *words, *folder, "--compile", "--quantize", "int8")
    assert changed == ["quantized", "compiled"]


@pytest.mark.parametrize("command", ["generate", "eval", "bench"])
def test_packed_reaches_the_model(
    command: str, run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool | None] = []
    monkeypatch.setattr("foretell.engine.engine.pack_weights", lambda _, packed: asked.append(packed))
    for flag in ((), ("--packed",), ("--no-packed",)):
        run(command, checkpoint, *short_command(command, tmp_path), *flag)
    assert asked == [None, True, False]


def short_command(command: str, folder: Path) -> tuple[str | Path, ...]:
    words: dict[str, tuple[str | Path, ...]] = {
        "generate": (WORDS,),
        "eval": ("--task", "sudoku", "--limit", "1", "--out", folder / "out", "-r", "full steps=2"),
        "bench": ("-r", "full", *FEW),
    }
    return words[command]
