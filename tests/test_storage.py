"""Reading files: only regular ones, only up to a limit, and with our own errors."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import pytest

from foretell.errors import ModelError, StorageError
from foretell.storage import (
    check_writable,
    is_file,
    is_folder,
    load_json,
    lock_file,
    make_folder,
    open_file,
    parse_json,
    read_file,
    read_text,
    replace_file,
    write_file,
)


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


def test_devices_and_pipes_are_not_replaced_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        for write in (check_writable, lambda path: write_file(path, "x")):
            with pytest.raises(StorageError, match="it is not a regular file"):
                write(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "stdout").symlink_to("redirected")
    (tmp_path / "redirected").touch()
    monkeypatch.setattr("foretell.storage.DEVICES", tmp_path)
    with pytest.raises(StorageError, match="it is not a regular file"):
        write_file(tmp_path / "stdout", "x")


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


def test_a_disk_that_fails_while_a_file_is_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("text")

    def read() -> None:
        with open_file(tmp_path / "one", "list", ModelError):
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(ModelError, match=r"cannot read the list .*one: Input/output error"):
        read()


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"{}")
    tracemalloc.start()
    try:
        read_file(tmp_path / "small", "list")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["x" * 300, "/dev/null/one", "a\0b"])
def test_a_file_that_cannot_be_written_is_an_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for write in (check_writable, lambda path: write_file(path, "text"), lambda path: lock_file(path, 0).__enter__()):
        with pytest.raises(StorageError, match="cannot write"):
            write(path)
    assert not is_file(path)
    assert not is_folder(path)
    with pytest.raises(StorageError, match=r"cannot write .*surrogates not allowed"):
        write_file(tmp_path / "one", "half a pair: \ud800")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("x" * 300, "a\0b", "file", "file/folder"):
        with pytest.raises(StorageError, match="cannot write"):
            make_folder(tmp_path / name)
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert is_folder(tmp_path / "a" / "b")


def test_a_full_disk_is_an_error_and_keeps_the_old_file(tmp_path: Path) -> None:
    write_file(tmp_path / "one", "old")

    def write() -> None:
        with replace_file(tmp_path / "one") as part:
            part.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match=r"cannot write .*one: No space left on device"):
        write()
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_a_writable_place_stays_as_it_is(tmp_path: Path) -> None:
    check_writable(tmp_path / "one")
    assert list(tmp_path.iterdir()) == []
