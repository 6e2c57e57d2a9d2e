"""A file of prompts, line by line."""

from __future__ import annotations

import json
from pathlib import Path

from foretell.engine.prompt_files import read_prompts


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    """JSON may hold the line ends of other alphabets as they are; Windows ends lines with two characters."""
    asked = ["one\u2028two", "three\u0085four", "five"]
    lines = [json.dumps({"prompt": one}, ensure_ascii=False) for one in asked]
    (tmp_path / "a.jsonl").write_bytes("\r\n".join([*lines, ""]).encode())
    (tmp_path / "b.txt").write_bytes("\r\n".join(asked).encode())
    for name in ("a.jsonl", "b.txt"):
        assert [one.prompt for one in read_prompts(tmp_path / name)] == asked
