"""Files on disk: atomic writes, locks between processes, and typed reading with messages that name the key."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
from filelock import FileLock, Timeout

from foretell.errors import ForetellError, RequestError, StorageError, show, unknown
from foretell.version import __version__

T = TypeVar("T")
LARGEST_FILE = 1 << 28  # bytes of a file that is read into memory as a whole
DEVICES = Path("/dev")
_WORDS = {
    "str": "a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "array": "a list",
    "object": "an object",
}


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` after the block: readers see the old file or the whole new one.

    Raises StorageError if the file cannot be written.
    """
    with writing(path):
        _check_replaceable(path)
        part = _part_of(path)
        try:
            yield part
            part.replace(path)
        finally:
            with suppress(OSError):  # the name may be too long; that error is already on its way
                part.unlink()


def write_file(path: str | Path, text: str) -> None:
    """Write `text` atomically. Raises StorageError if the file cannot be written."""
    with replace_file(Path(path)) as part:
        part.write_bytes(text.encode())


def check_writable(path: Path) -> None:
    """Raise StorageError if no file can be written at `path`, before work is spent on its content."""
    with writing(path):
        _check_replaceable(path)
        _part_of(path).touch()
        _part_of(path).unlink()


def _check_replaceable(path: Path) -> None:
    """Raise StorageError if `path` is a device or a pipe: root would replace /dev/null by a regular file."""
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        device = path.absolute().parent == DEVICES  # /dev/stdout may be a link to a regular file
        if device or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder is refused by the system
            raise StorageError(f"cannot write {path}: it is not a regular file")


def _part_of(path: Path) -> Path:
    return path.parent / f".{path.name}.{os.getpid()}.part"


def make_folder(path: Path) -> None:
    """Create a folder and its parents, unless it exists. Raises StorageError if that is impossible."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors of writing (a full disk, a name that is too long, text without UTF-8) to a StorageError."""
    try:
        with suppress(OSError):
            path.lstat()
    except ValueError as error:  # no file can have such a name
        raise StorageError(f"cannot write {str(path)!r}: {error}") from error
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise StorageError(f"cannot write {path}: {error}") from error


@contextmanager
def lock_file(path: Path, patience: float) -> Iterator[None]:
    """Hold a lock that other processes respect; it ends with the block or with this process.

    Raises RequestError if another process still holds it after `patience` seconds, and StorageError if there can be no
    file at `path`.
    """
    lock = FileLock(path, timeout=patience, poll_interval=0.1)
    with writing(path):
        try:
            lock.acquire()
        except Timeout:
            raise RequestError(f"another run is writing to {path.parent}; wait for it or end it") from None
    try:
        yield
    finally:
        lock.release()


def is_file(path: str | PathLike[str]) -> bool:
    """Return whether there is a regular file at `path`; not if its name is too long, where `Path.is_file` raises."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: str | PathLike[str]) -> bool:
    """Return whether there is a folder at `path`; not if its name is too long, where `Path.is_dir` raises."""
    return os.path.isdir(path)  # noqa: PTH112


@contextmanager
def open_file(path: str | PathLike[str], kind: str, error: type[ForetellError] = StorageError) -> Iterator[BinaryIO]:
    """Yield a `kind` of file, open for reading.

    Raises `error` if it is missing or is not a regular file (a device or a pipe may never end).
    """
    try:
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115  closed below
    except OSError as wrong:
        raise error(f"cannot read the {kind} {path}: {wrong.strerror}") from wrong
    except ValueError as wrong:  # no file can have such a name
        raise error(f"cannot read the {kind} {str(path)!r}: {wrong}") from wrong
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise error(f"cannot read the {kind} {path}: it is not a regular file")
        try:
            yield file
        except OSError as wrong:
            raise error(f"cannot read the {kind} {path}: {wrong.strerror or wrong}") from wrong


def read_file(
    path: str | PathLike[str], kind: str, error: type[ForetellError] = StorageError, limit: int = LARGEST_FILE
) -> bytes:
    """Return the bytes of a `kind` of file. Raises `error` as `open_file` does, or if it exceeds `limit` bytes."""
    with open_file(path, kind, error) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise error(f"the {kind} {path} is larger than {limit:,} bytes, the most that is read")
        return file.read()  # not `read(limit)`, which allocates that much for the smallest file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # otherwise a pipe without a writer blocks forever


def read_text(
    path: str | PathLike[str], kind: str, error: type[ForetellError] = StorageError, limit: int = LARGEST_FILE
) -> str:
    """Return the text of a `kind` of file, without a byte order mark. Raises `error` as `read_file` does."""
    try:
        return read_file(path, kind, error, limit).decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise error(f"{path} is not UTF-8 text: {wrong.reason} at byte {wrong.start}") from wrong


def parse_json(text: str | bytes, where: str, error: type[ForetellError] = StorageError) -> Any:
    """Return the parsed JSON of `text`, which came from `where`. Raises `error` if it is not valid JSON."""
    try:
        return json.loads(text)
    except RecursionError as wrong:
        raise error(f"{where} is not valid JSON: it is nested too deeply") from wrong
    except ValueError as wrong:
        raise error(f"{where} is not valid JSON: {wrong}") from wrong


def load_json(path: str | PathLike[str], kind: str, error: type[ForetellError] = StorageError) -> Any:
    """Return the parsed JSON of a `kind` of file. Raises `error` if it is missing or is not valid JSON."""
    return parse_json(read_file(path, kind, error), str(path), error)


def check_format(value: Any, key: str, number: int) -> None:
    """Raise StorageError unless `value` is an object whose `key` holds the format number that this release reads."""
    if not isinstance(value, Mapping) or key not in value:
        raise StorageError(f'expected an object with "{key}"')
    if value[key] != number:
        raise StorageError(f"its format is {value[key]!r}; foretell {__version__} reads format {number}")


def convert(
    value: Any, kind: type[T], error: type[ForetellError] = StorageError, hook: Callable[[type, Any], Any] | None = None
) -> T:
    """Return parsed JSON or TOML as a `kind` (a dataclass or a msgspec Struct).

    Raises `error`, which names the key, if a key is unknown or missing or a value has another type. `hook` converts
    types that msgspec does not know.
    """
    if isinstance(value, Mapping):
        check_keys(value, names_of(kind), error)  # type: ignore[arg-type]  # mypy: a class is not hashable
    try:
        return msgspec.convert(value, kind, dec_hook=hook)
    except (msgspec.ValidationError, UnicodeEncodeError) as wrong:  # JSON can write half a character
        if isinstance(wrong.__cause__, ForetellError):  # from __post_init__
            raise wrong.__cause__ from None
        raise error(_explain(str(wrong), value)) from wrong


def check_keys(value: Iterable[str], allowed: Iterable[str], error: type[ForetellError] = StorageError) -> None:
    """Raise `error`, which suggests the nearest name, if a key is not one of `allowed`."""
    names = tuple(allowed)
    for name in value:
        if name not in names:
            raise error(unknown("key", name, names))


@cache  # msgspec takes a millisecond to list fields
def names_of(kind: type) -> tuple[str, ...]:
    """Return the keys of a dataclass or a msgspec Struct."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind) if field.init)
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


def _explain(message: str, value: Any) -> str:
    """Rewrite a message of msgspec ("Expected `int`, got `str` - at `$.rows`") in this library's words."""
    what, _, place = message.partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    if missing := re.fullmatch("Object missing required field `(.+)`", what):
        return f"{missing[1]!r} is missing" + (f" in {place!r}" if place else "")
    if not (wrong := re.fullmatch("Expected `(.+?)`(.*?)(?:, got `?(.+?)`?)?", what)):
        return what + (f" in {place!r}" if place else "")
    types = " or ".join(_WORDS.get(name, name) for name in wrong[1].split(" | "))
    got = _WORDS.get(wrong[3], wrong[3]) if "[...]" in place else show(_value_at(value, place))
    return f"{repr(place) if place else 'it'} must be {types}{wrong[2]}, got {got}"  # [...] is any key of a mapping


def _value_at(value: Any, place: str) -> Any:
    """Return the value at a place such as `layers[0].bias`."""
    for key in re.findall(r"[^.\[\]]+", place):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value
