"""Reading files: only regular ones, only up to a limit, and with our own errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretell.errors import ModelError, StorageError
from foretell.storage import load_json, parse_json, read_file, read_text


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_bytes(b"\xef\xbb\xbfhello")
    assert read_file(file, "list") == b"\xef\xbb\xbfhello"
    assert read_text(file, "list") == "hello"


@pytest.mark.parametrize("name", ["missing", "x" * 300, "a\0b"])
def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="cannot read the list"):
        read_file(tmp_path / name, "list", ModelError)


@pytest.mark.timeout(20)
def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(StorageError, match=r"not a regular file|Is a directory"):
            read_file(path, "list")


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"12345")
    assert read_file(tmp_path / "long", "list", limit=5) == b"12345"
    with pytest.raises(StorageError, match="larger than 4 bytes"):
        read_file(tmp_path / "long", "list", limit=4)


def test_bad_text_and_bad_json_are_errors(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"\xff{")
    with pytest.raises(StorageError, match="not UTF-8 text"):
        read_text(tmp_path / "bad", "list")
    with pytest.raises(StorageError, match="not valid JSON"):
        load_json(tmp_path / "bad", "list")
    with pytest.raises(ModelError, match="nested too deeply"):
        parse_json("[" * 100_000, "line 3", ModelError)
