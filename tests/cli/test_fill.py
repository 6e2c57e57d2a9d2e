"""`foretell fill`, and results files that an interrupted run of `fill` or `generate` leaves and resumes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretell import Engine, load, load_traces
from tests.cli.conftest import WORDS, Run

TEXT = "Tom has 3 [MASK] with [MASK*2] apples each."


def test_a_text_is_filled(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    done = load(checkpoint).fill(TEXT, recipe="threshold")
    assert run("fill", checkpoint, TEXT, "-r", "threshold").stdout.splitlines()[0] == done.text
    trace = tmp_path / "t.npz"
    row = json.loads(run("fill", checkpoint, "-", "--json", "--trace", trace, stdin=TEXT).stdout)
    assert row["fills"] == list(load(checkpoint).fill(TEXT).fills)
    assert len(load_traces(trace)[0]) == row["steps"] == row["budget"] == 3
    watched = run("fill", checkpoint, TEXT, "--watch").stdout
    assert "apples" in watched


def test_bad_texts_are_named(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    assert "the text has no mask to fill" in run("fill", checkpoint, WORDS, code=2).stderr
    assert "No such option" in run("fill", checkpoint, TEXT, "--suffix", "x", code=2).stderr
    file = tmp_path / "texts.jsonl"
    lines: list[Any] = [{"text": TEXT}, {"messages": [{"role": "user", "content": "x"}]}, {"id": 7, "prompt": WORDS}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("fill", checkpoint, "--file", file, "--json", code=1)
    assert "line 2: a text with masks must be a string, got [{" in result.stderr
    assert "line 3: the text has no mask to fill" in result.stderr
    assert {json.loads(line)["id"] for line in result.stdout.splitlines()} == {1, 2, 7}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join([TEXT, "no mask", "[MASK] boxes .", "He eats [MASK*3] ."]))
    return file


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make decodings end with Ctrl-C after `count` results; returns a list with the number of prompts of each call."""
    decode: Any = Engine.generate_iter
    sizes: list[int] = []

    def few(self: Engine, prompts: list[Any], **options: Any) -> Iterator[Any]:
        sizes.append(len(prompts))
        for number, one in enumerate(decode(self, prompts, **options)):
            if number == count:
                raise KeyboardInterrupt
            yield one

    monkeypatch.setattr(Engine, "generate_iter", few)
    return sizes


@pytest.mark.parametrize("command", ["fill", "generate"])
def test_an_interrupted_run_resumes(
    run: Run, checkpoint: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    if command == "generate":
        texts.write_text(f"{WORDS}\nTom owns a zeppelin\nTom has 4 balls.\nAnn has 3 pens.\n")
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    run(command, checkpoint, "--file", texts, "--out", whole, code=1)
    words = (command, checkpoint, "--file", texts, "--out", out)
    with monkeypatch.context() as patch:
        sizes = interrupt_after(2, patch)
        stopped = run(*words, code=130)
        assert "2 finished results are kept in" in stopped.stderr
        assert "run the same command again to resume" in stopped.stderr
        assert not out.exists()
        part = tmp_path / "out.jsonl.part"
        part.write_text(part.read_text() + '{"id": 3, "te')  # a line that was cut off
        other = run(*words, "--seed", "5", code=2)
        assert "with other prompts, another model or other options" in other.stderr
        run(*words, "--trace", tmp_path / "t.npz", code=2)
        interrupt_after(9, patch)
        done = run(*words, code=1)
        assert sizes == [4, 2]
    assert "resuming: 2 results of an interrupted run found" in done.stderr
    assert without_times(out) == without_times(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "texts.txt", "whole.jsonl"]


@pytest.mark.parametrize("name", ["tokenizer_config.json", "model.safetensors", "config.json"])
def test_a_run_with_another_model_is_not_continued(
    run: Run, checkpoint: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    words = ("fill", folder, "--file", texts, "--out", tmp_path / "out.jsonl")
    interrupt_after(1, monkeypatch)
    run(*words, code=130)
    os.utime(folder / name, (1, 1))
    assert "with other prompts, another model or other options" in run(*words, code=2).stderr


def without_times(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) | {"seconds": 0} for line in file.read_text().splitlines()]


def test_results_have_the_order_of_the_prompts(run: Run, checkpoint: Path, texts: Path, tmp_path: Path) -> None:
    run("fill", checkpoint, "--file", texts, "--out", tmp_path / "out.jsonl", "-r", "threshold", code=1)
    assert [row["id"] for row in without_times(tmp_path / "out.jsonl")] == [1, 2, 3, 4]


def test_a_foreign_line_is_refused(
    run: Run, checkpoint: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("fill", checkpoint, "--file", texts, "--out", tmp_path / "out.jsonl")
    with monkeypatch.context() as patch:
        interrupt_after(1, patch)
        run(*words, code=130)
    part = tmp_path / "out.jsonl.part"
    kept = part.read_text()
    for line, says in (('{"id": 9}', "line 3: is not a result of this run"), ("[", "line 3 is not valid JSON")):
        part.write_text(f"{kept}{line}\n")
        assert says in run(*words, code=2).stderr
