"""Results on disk: one JSON object per line, and one file (part) per writing process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from foretell.errors import StorageError
from foretell.storage import convert, is_folder, lock_file, open_file, parse_json, writing
from foretell.version import __version__

RENAMED = {  # keys of files that version 0.1.0 wrote
    "gap": "value",
    "computed": "columns_needed",
    "spent": "columns_computed",
    "tokens": "response_tokens",
}
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
PATIENCE = 10.0  # seconds to wait for the locks of a killed run


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one recipe on one example."""

    recipe: str  # its name; the manifest has its definition
    id: str
    text: str
    answer: str | None
    gold: str
    correct: bool
    steps: Positive
    budget: Positive
    forwards: Positive
    columns_needed: Count  # columns that these forward passes computed
    response_tokens: Count  # up to the end of the text
    exit: int | None  # the step, from 0, at which the stopping rule fired
    value: float | None  # what the rule measured at that step
    finish: str
    seconds: float  # from joining a batch to leaving it
    wall: float  # share of the elapsed time: these add up to the time of all decoding
    trace: str | None = None  # file of the trace, relative to the folder
    trace_index: int | None = None  # index in that file
    columns_computed: Count | None = None  # including padding; None: not counted
    measure: str | None = None  # name of what the rule measured
    fallback: bool | None = None  # whether the text does not state the answer; None: not recorded
    reason: str | None = None  # why a generated program failed
    sandbox: str | None = None  # level at which a generated program ran
    tokens: tuple[Count, ...] | None = None  # `Completion.generated`; None: not recorded

    @property
    def key(self) -> tuple[str, str]:
        return self.recipe, self.id


def part(folder: Path, worker: int) -> Path:
    """Return the results file of one worker."""
    return folder / f"results-{worker}.jsonl"


def parts(folder: Path) -> list[Path]:
    """Return the results files of all workers."""
    return sorted(folder.glob("results-*.jsonl")) if is_folder(folder) else []


def read_records(folder: Path | str) -> list[Record]:
    """Load the complete lines of all parts, one per example and recipe. Works during a run."""
    found: dict[tuple[str, str], Record] = {}
    for path in parts(Path(folder)):
        for record, _ in lines(path):
            found.setdefault(record.key, record)
    return list(found.values())


@dataclass(slots=True)
class ResultReader:
    """Calls `watch` with every result that appears in the parts of a folder."""

    folder: Path
    watch: Callable[[Record], None]
    ends: dict[Path, int] = field(default_factory=dict)

    def skip(self) -> None:
        """Ignore the results that are there already."""
        self.ends = {path: path.stat().st_size for path in parts(self.folder)}

    def read_new(self) -> None:
        for path in parts(self.folder):
            for record, end in lines(path, self.ends.get(path, 0)):
                self.ends[path] = end
                self.watch(record)


def lines(path: Path, start: int = 0) -> Iterator[tuple[Record, int]]:
    """Yield the complete lines after offset `start`, each with the offset of its end."""
    with open_file(path, "results file") as file:
        number = file.read(start).count(b"\n")
        for line in file:
            start, number = start + len(line), number + 1
            if not line.endswith(b"\n"):
                return  # a process is writing it, or was killed while writing it
            try:
                yield _record(line), start
            except StorageError as error:
                where = f"{path}, line {number}: foretell {__version__} cannot read it"
                raise StorageError(f"{where}: {error}") from error


def _record(line: bytes) -> Record:
    stored = parse_json(line, "it")
    if isinstance(stored, dict):
        # "tokens" has been renamed, and is now the name of something else.
        stored = {name if RENAMED.get(name, name) in stored else RENAMED[name]: value for name, value in stored.items()}
    return convert(stored, Record)


def format_record(record: Record) -> str:
    """Return a line of a results file."""
    return json.dumps(asdict(record), ensure_ascii=False, separators=(",", ":")) + "\n"


def repair(folder: Path) -> None:
    """Wait until no process holds the parts, then remove incomplete last lines."""
    for path in parts(folder):
        with lock_file(_lock_of(path), PATIENCE), writing(path):
            with open_file(path, "results file") as file:
                end = file.read().rfind(b"\n") + 1
            os.truncate(path, end)


@contextmanager
def appending(path: Path) -> Iterator[Writer]:
    """Lock a part and yield its writer."""
    with lock_file(_lock_of(path), PATIENCE):
        with writing(path):
            file = path.open("ab")
        try:
            yield Writer(file)
        finally:
            with writing(path):  # closing writes again what could not be written
                file.close()


@dataclass(frozen=True, slots=True)
class Writer:
    """Appends records to an open file."""

    file: BinaryIO

    def add(self, records: Sequence[Record]) -> None:
        """Write and flush the records, so that none is lost if this process is killed."""
        with writing(Path(self.file.name)):
            self.file.write("".join(map(format_record, records)).encode())
            self.file.flush()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs and remove incomplete lines."""
    with lock_file(folder / ".lock", PATIENCE):
        repair(folder)
        yield


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.stem}.lock")
