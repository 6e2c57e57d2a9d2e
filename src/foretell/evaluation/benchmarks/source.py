"""Read a benchmark's rows from a path, from the folder in FORETELL_DATA, or from the Hugging Face hub."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import os
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from foretell.errors import RequestError, show
from foretell.evaluation.benchmark import Example
from foretell.storage import LARGEST_FILE, is_file, parse_json, read_file, read_text

VARIABLE = "FORETELL_DATA"


@dataclass(frozen=True, slots=True)
class Hub:
    """One split of a data set on the hub."""

    path: str
    config: str | None
    split: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.path} ({self.config + ', ' if self.config else ''}{self.split})"


@dataclass(frozen=True, slots=True)
class Source:
    """The folder of a benchmark, the possible names of its file, and its data set on the hub."""

    folder: str
    files: tuple[str, ...]
    hub: Hub | None = None
    licence: str = ""  # shown in the error message if the data are missing

    def find(self, path: Path | None = None) -> Path | None:
        """Return the first file that exists: `path`, or a file in that folder or else in the one in FORETELL_DATA."""
        if path is not None and is_file(path):
            return path
        return next((place for place in self._places(path) if is_file(place)), None)

    def _places(self, path: Path | None) -> list[Path]:
        shared = data_folder()
        folders = [path / self.folder, path] if path is not None else [shared / self.folder] if shared else []
        return [folder / name for folder in folders for name in self.files]

    def rows(self, path: Path | None) -> list[DataRow]:
        """Return every row. Raises RequestError if the file is found nowhere."""
        found = self.find(path)
        if found is not None:
            return list(read_rows(found))
        problem = "not tried, because a path was given" if path is not None else "not available"
        if path is None and self.hub is not None:
            try:
                return list(download_rows(self.hub))
            except (ImportError, OSError, RuntimeError, ValueError) as error:
                problem = "the package datasets is not installed" if isinstance(error, ImportError) else str(error)
        raise RequestError(self._missing_message(path, self._places(path), problem))

    def _missing_message(self, path: Path | None, looked: Sequence[Path], problem: str) -> str:
        message = f"no data for {self.folder}: it needs {' or '.join(self.files)}"
        if looked:
            message += f"; looked for {', '.join(map(str, looked))}"
        elif path is None:
            message += f" in the folder ${VARIABLE}/{self.folder}, but the variable {VARIABLE} is not set"
        message += f"; hub {self.hub}: {problem}" if self.hub else ""
        return message + (f". {self.licence}" if self.licence else "")


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row of a data file, with its location for error messages."""

    values: Mapping[str, Any]
    where: str

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def error(self, problem: str) -> RequestError:
        return RequestError(f"{self.where}: {problem}")

    def value(self, name: str) -> Any:
        if name not in self.values:
            raise self.error(f"{name!r} is missing (found: {', '.join(map(repr, self.values)) or 'nothing'})")
        return self.values[name]

    def text(self, name: str, empty: bool = False) -> str:
        found = self.value(name)
        if not isinstance(found, str) or not (found.strip() or empty):
            raise self.error(f"{name!r} must be a text{'' if empty else ' that is not empty'}, got {show(found)}")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        found = self.value(name)
        if not isinstance(found, Sequence) or isinstance(found, str) or not all(isinstance(one, str) for one in found):
            raise self.error(f"{name!r} must be a list of texts, got {show(found)}")
        return tuple(found)

    def whole(self, name: str, low: int, high: int) -> int:
        """Return a whole number from low to high; the hub stores some as text."""
        found = self.value(name)
        allowed = {str(one): one for one in range(low, high + 1)}
        if isinstance(found, bool) or str(found) not in allowed:
            raise self.error(f"{name!r} must be a whole number from {low} to {high}, got {show(found)}")
        return allowed[str(found)]

    def part(self, name: str) -> DataRow:
        """Return the object `name` in this row as a row."""
        found = self.value(name)
        if not isinstance(found, Mapping):
            raise self.error(f"{name!r} must be an object, got {show(found)}")
        return DataRow(found, f"{self.where}, {name}")


def data_folder() -> Path | None:
    """Return the folder in the variable FORETELL_DATA, or None."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def read_rows(file: Path) -> Iterator[DataRow]:
    """Yield the rows of a JSON, JSONL or CSV file, each with its line (or its index in a JSON list)."""
    text = _unpack(file) if file.suffix == ".gz" else read_text(file, "data file", RequestError)
    kind = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    if kind == ".csv":
        table = csv.DictReader(io.StringIO(text, newline=""))
        try:
            yield from (DataRow(row, f"{file}, line {table.line_num}") for row in table)
        except csv.Error as problem:
            raise RequestError(f"{file}, line {table.line_num}: not valid CSV: {problem}") from problem
    elif kind == ".json":
        listed = parse_json(text, str(file), RequestError)
        if not isinstance(listed, list):
            raise RequestError(f"{file}: expected a list of rows")
        yield from (_make_row(one, f"{file}, row {place}") for place, one in enumerate(listed, 1))
    else:
        for number, line in enumerate(text.split("\n"), 1):  # not splitlines: texts may contain other line separators
            where = f"{file}, line {number}"
            if line.strip():
                yield _make_row(parse_json(line, where, RequestError), where)


def _unpack(file: Path) -> str:
    packed = io.BytesIO(read_file(file, "data file", RequestError))
    try:
        with gzip.open(packed) as unpacked:
            content = unpacked.read(LARGEST_FILE + 1)
        if len(content) <= LARGEST_FILE:
            return content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as problem:
        raise RequestError(f"cannot read the data file {file}: {problem}") from problem
    raise RequestError(f"the data file {file} unpacks to more than {LARGEST_FILE:,} bytes, the most that is read")


def download_rows(hub: Hub) -> Iterator[DataRow]:
    """Yield the rows of a data set on the hub, using the package datasets."""
    datasets = importlib.import_module("datasets")
    table = datasets.load_dataset(hub.path, hub.config, split=hub.split, revision=hub.revision)
    for place, row in enumerate(table, 1):
        yield _make_row(row, f"{hub}, row {place}")


def _make_row(value: Any, where: str) -> DataRow:
    if not isinstance(value, Mapping):
        raise RequestError(f"{where}: expected an object, got {show(value)}")
    return DataRow(value, where)


def fingerprint(*parts: str) -> str:
    """Return a short hash of texts, as an id for rows that have none; it does not depend on the source or the order."""
    return sha256("\x1f".join(parts).encode()).hexdigest()[:10]


def number_duplicates(examples: Sequence[Example]) -> list[Example]:
    """Return the examples with unique ids: if a question occurs again, its id gets a number."""
    seen: dict[str, int] = {}
    unique: list[Example] = []
    for example in examples:
        seen[example.id] = count = seen.get(example.id, 0) + 1
        unique.append(example if count == 1 else replace(example, id=f"{example.id}-{count}"))
    return unique


def pick(examples: Sequence[Example], limit: int | None, seed: int) -> list[Example]:
    """Return all examples, or `limit` chosen and ordered by `seed`; a smaller limit returns a prefix of these."""
    if limit is None:
        return list(examples)
    if limit < 1:
        raise RequestError(f"limit must be at least 1, got {limit}")
    return random.Random(seed).sample(examples, len(examples))[:limit]  # noqa: S311 - a choice, not a secret
