"""Results on disk: one JSON object a line, whole lines or nothing, in one part for each process that writes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from foretell.errors import RequestError

RENAMED = {  # keys of files that version 0.1.0 wrote
    "gap": "value",
    "computed": "columns_needed",
    "spent": "columns_computed",
    "tokens": "response_tokens",
}
PATIENCE = 10.0  # seconds that a killed run may take to let go of its files


@dataclass(frozen=True, slots=True)
class Record:
    """What one recipe made of one example."""

    recipe: str  # as it was asked for; the manifest has what it stands for
    id: str
    text: str
    answer: str | None
    gold: str
    correct: bool
    steps: int
    budget: int
    forwards: int
    columns_needed: int  # columns that these forward passes computed
    response_tokens: int  # up to the end of the text
    exit: int | None  # the step, from 0, at which the stopping rule fired
    value: float | None  # what the rule measured then
    finish: str
    seconds: float  # from joining a batch to leaving it
    wall: float  # the share of the clock: these add up to the time that all the decoding took
    trace: str | None = None  # file of the trace, relative to the folder
    trace_index: int | None = None  # place in that file
    columns_computed: int | None = None  # `computed` with what was padded; None: not counted
    measure: str | None = None  # the name of what the rule measured
    fallback: bool | None = None  # whether the text does not state the answer; None: not noted
    reason: str | None = None  # why the program failed, where the answer is one

    @property
    def key(self) -> tuple[str, str]:
        return self.recipe, self.id


def part(folder: Path, worker: int) -> Path:
    return folder / f"results-{worker}.jsonl"


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("results-*.jsonl"))


def read_records(folder: Path | str) -> list[Record]:
    """Every whole line of every part, each example and recipe once. Works while a run is going on."""
    found: dict[tuple[str, str], Record] = {}
    for path in parts(Path(folder)):
        for record, _ in lines(path):
            found.setdefault(record.key, record)
    return list(found.values())


def lines(path: Path, start: int = 0) -> Iterator[tuple[Record, int]]:
    """The whole lines behind offset `start`, each with the offset of its end."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            start += len(line)
            if not line.endswith(b"\n"):
                return  # someone is writing it, or was killed while writing it
            yield _record(line, path), start


def _record(line: bytes, path: Path) -> Record:
    try:
        stored = json.loads(line)
        return Record(**{RENAMED.get(name, name): value for name, value in stored.items()})
    except (ValueError, TypeError, AttributeError) as error:
        shown = line[:60].decode(errors="replace")
        raise RequestError(f"{path} has a line that is no result ({error}): {shown}...") from error


def repair(folder: Path) -> None:
    """Drop half-written last lines, once nobody holds the parts any more."""
    for path in parts(folder):
        with path.open("r+b") as file:
            hold(file, path)
            written = file.read()
            file.truncate(written.rfind(b"\n") + 1)


@contextmanager
def appending(path: Path) -> Iterator[Writer]:
    with path.open("ab") as file:
        hold(file, path)
        yield Writer(file)


@dataclass(frozen=True, slots=True)
class Writer:
    file: BinaryIO

    def add(self, records: Sequence[Record]) -> None:
        """On its way to the disk when this returns: killing this process loses nothing of it."""
        written = (json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)
        self.file.write("".join(written).encode())
        self.file.flush()


def hold(file: BinaryIO, path: Path) -> None:
    """Keep other processes out until `file` is closed or this process dies."""
    if sys.platform == "win32":
        return
    import fcntl  # noqa: PLC0415  Unix only

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RequestError(f"another run is writing to {path.parent}; wait for it or end it") from None
            time.sleep(0.1)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One run at a time in a folder, and no half-written lines when it starts."""
    with (folder / ".lock").open("ab") as file:
        hold(file, folder / ".lock")
        repair(folder)
        yield
