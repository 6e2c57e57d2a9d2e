"""A file of prompts, line by line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from foretell.engine.prompt_files import read_prompts
from foretell.errors import RequestError
from foretell.evaluation.benchmarks.prompts import Prompts


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    """JSON may hold the line ends of other alphabets as they are; Windows ends lines with two characters."""
    asked = ["one\u2028two", "three\u0085four", "five"]
    lines = [json.dumps({"prompt": one}, ensure_ascii=False) for one in asked]
    (tmp_path / "a.jsonl").write_bytes("\r\n".join([*lines, ""]).encode())
    (tmp_path / "b.txt").write_bytes("\r\n".join(asked).encode())
    for name in ("a.jsonl", "b.txt"):
        assert [one.prompt for one in read_prompts(tmp_path / name)] == asked


def test_a_byte_order_mark_is_not_part_of_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\n')
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfone\n")
    for name in ("a.jsonl", "b.txt"):
        assert [one.prompt for one in read_prompts(tmp_path / name)] == ["one"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['"one"', "[" * 100_000], "line 2 is not valid JSON: it is nested too deeply"),
        (['"one"', '"two'], "line 2 is not valid JSON"),
        (['"one"', r'{"prompt": "two", "id": "\ud800"}'], "line 2: has half of a surrogate pair"),
        (
            ['{"prompt": "a", "id": "x"}', "", '{"prompt": "b", "id": "x"}'],
            "line 3: the id 'x' is also .*a.jsonl, line 1",
        ),
        (['{"prompt": "a", "id": 2}', '{"prompt": "b"}'], "line 2: the id 2 is also that of .*a.jsonl, line 1"),
        (['{"prompt": "a", "id": 2}', '{"prompt": "b", "id": "2"}'], "line 2: the id '2' is also that of"),
        (['{"prompt": "a", "label": 5}'], 'line 1: "label" must be a text of 1 to 80 printable characters, got 5'),
        (['{"prompt": "a", "label": ""}'], 'line 1: "label" must be'),
        ([json.dumps({"prompt": "a", "label": "x" * 81})], 'line 1: "label" must be'),
        ([r'{"prompt": "a", "label": "\u001b[1m"}'], 'line 1: "label" must be'),
        (['{"label": "a", "promt": "b"}'], "line 1: unknown key 'promt'; did you mean 'prompt'"),
        (['{"label": "a", "id": 5}'], 'line 1: has no "prompt", "text" or "messages"'),
    ],
)
def test_a_line_that_is_no_prompt_is_named(lines: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(RequestError, match=rf"a\.jsonl, {says}"):
        read_prompts(tmp_path / "a.jsonl")


def test_a_line_may_have_a_label(tmp_path: Path) -> None:
    lines: list[object] = [{"prompt": "a", "label": "x" * 80}, {"prompt": "b", "label": None}, {"text": "c"}, "d"]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert [one.label for one in read_prompts(tmp_path / "a.jsonl")] == ["x" * 80, None, None, None]
    (first, *_) = Prompts().examples(tmp_path / "a.jsonl", None, 0)
    assert first.data["label"] == "x" * 80


@pytest.mark.timeout(20)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path, tmp_path / ("x" * 300), "a\0b"):
        with pytest.raises(RequestError, match="cannot read the prompt file"):
            read_prompts(path)
