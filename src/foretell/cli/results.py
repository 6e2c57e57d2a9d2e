"""Format completions as text and as JSON, and write them to the screen or to a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.text import Text

from foretell.cli.console import out, problem
from foretell.cli.plain import stdout_is_unicode
from foretell.cli.wording import count, ratio
from foretell.engine.certificate import MODEL_FILES
from foretell.engine.completion import Failure
from foretell.engine.outcome import Usage
from foretell.engine.prompt_files import PARQUET
from foretell.engine.rows import row_of, write_table
from foretell.errors import RequestError, StorageError
from foretell.storage import lock_file, parse_json, read_text, write_file, writing
from foretell.version import __version__

if TYPE_CHECKING:
    from foretell.engine.completion import Completion
    from foretell.engine.engine import Engine
    from foretell.engine.prompt_files import FilePrompt

PATIENCE = 1.0  # seconds to wait for another run that writes the same file
FINISHES = {"settled": "settled early", "eos": "reached its end", "complete": "ran to the end"}


def summary(done: Completion) -> str:
    """Return the cost of a completion on one line."""
    cut = () if done.stop_string is None else (f"cut at {done.stop_string!r}",)
    return " · ".join(
        (
            f"{done.steps} of {done.budget} steps{_explain_unused(done)}",
            f"{done.forwards} forwards",
            f"{done.tokens_per_forward:.2f} tokens per forward",
            f"{done.seconds:.2f} s",
            FINISHES[done.finish],
            *cut,
        )
    )


def _explain_unused(done: Completion) -> str:
    """Return why fewer steps than the budget were taken."""
    saved = [f"{done.saved} saved"] if done.saved else []
    given = [f"{done.given} for given positions"] if done.given else []
    return f" ({', '.join(saved + given)})" if saved or given else ""


def totals(done: Sequence[Completion], seconds: float) -> str:
    """Return the cost of many completions on one line."""
    if not done:
        return "no prompt was decoded"
    steps, full = sum(one.steps for one in done), sum(one.budget - one.given for one in done)
    compared = "" if steps == full else f" ({ratio(full, steps)} than a full decoding)"
    settled = sum(one.finish == "settled" for one in done)
    usage = sum((Usage(one.columns_needed, one.columns_computed) for one in done), Usage())
    return " · ".join(
        (
            count(len(done), "prompt"),
            f"{steps / len(done):.1f} steps on average" + compared,
            f"{settled} settled early",
            f"{usage.padding:.1%} of the columns padding",
            f"{seconds:.2f} s",
        )
    )


def record(name: str | int, done: Completion | Failure) -> dict[str, Any]:
    """Return a completion, or the error of a failure, as one JSON object."""
    return {"id": name} | row_of(done)


def line_of(name: str | int, done: Completion | Failure, *, escaped: bool = False) -> str:
    """Return one line of JSON, ASCII only if `escaped`."""
    return json.dumps(record(name, done), ensure_ascii=escaped)


def run_key(engine: Engine, how: object, asked: Sequence[FilePrompt]) -> str:
    """Return a digest of the model, of how it decodes, and of the prompts: what a run that is continued must share."""
    names = (*MODEL_FILES, "special_tokens_map.json")
    files = sorted({path for pattern in names for path in engine.codec.folder.glob(pattern)})
    # Not a digest of the files, which may take minutes.
    stored = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    parts = (__version__, stored, engine.dtype, how, [(one.id, one.prompt) for one in asked])
    return sha256(repr(parts).encode()).hexdigest()


class Ledger:
    """A results file. It is written line by line as FILE.part, and as FILE when it is complete, in the prompts' order.

    A .parquet file has the columns of `generate`. FILE.part has JSON lines also then.
    The first line of FILE.part says which `run` wrote it, so that only the same run continues it (None: no run).
    """

    def __init__(self, path: Path, names: Sequence[str | int], run: str | None) -> None:
        self.path, self.part = path, path.with_name(f"{path.name}.part")
        self.names, self.header = [str(name) for name in names], json.dumps({"foretell_run": run})
        self.resumable = run is not None
        self.lines: dict[str, str] = {}  # finished results by the id of their prompt
        self.failed = 0  # of these

    def __enter__(self) -> Ledger:
        lock = self.path.with_name(f".{self.path.name}.lock")
        with ExitStack() as stack, writing(self.path):
            stack.enter_context(lock_file(lock, PATIENCE))
            stack.callback(lock.unlink, missing_ok=True)
            if self.part.exists():
                self._continue()
            write_file(self.part, "".join(f"{line}\n" for line in (self.header, *self.lines.values())))
            self._file = stack.enter_context(self.part.open("a", encoding="utf8"))
            self._stack = stack.pop_all()
        return self

    def _continue(self) -> None:
        """Read the results of an interrupted run; the last line may have been cut off."""
        header, *lines = read_text(self.part, "results file").split("\n")
        if header != self.header or not self.resumable:
            raise RequestError(
                f"{self.part} holds the finished results of an interrupted run with other prompts, another model or "
                "other options; move or delete it first"
            )
        for number, line in enumerate(lines[:-1], 2):
            row = parse_json(line, f"{self.part}, line {number}")
            name = str(row.get("id")) if isinstance(row, dict) else ""
            if name not in self.names:
                raise StorageError(f"{self.part}, line {number}: is not a result of this run; move or delete the file")
            self.lines[name] = line
            self.failed += "error" in row

    def add(self, name: str | int, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()
        self.lines[str(name)] = line

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._stack:
            if kind is None:
                lines = [self.lines[name] for name in self.names]
                if self.path.suffix == PARQUET:
                    write_table(self.path, [json.loads(line) for line in lines])
                else:
                    write_file(self.path, "".join(f"{line}\n" for line in lines))
                self.part.unlink()
            elif self.lines:
                kept = "result is" if len(self.lines) == 1 else "results are"
                again = (
                    "run the same command again to resume" if self.resumable else "with --trace it cannot be resumed"
                )
                problem(f"{len(self.lines)} finished {kept} kept in {self.part}: {again}", style="yellow")
            else:
                self.part.unlink()


class Printer:
    """Prints results on stdout: JSON as soon as each is done, text in the order of the prompts."""

    def __init__(self, names: list[str | int], as_json: bool) -> None:
        self.names, self.as_json = names, as_json
        self._waiting: dict[int, Completion | Failure] = {}
        self._next = 0

    def add(self, index: int, done: Completion | Failure) -> None:
        if self.as_json:
            print(line_of(self.names[index], done, escaped=not stdout_is_unicode()), flush=True)
            return
        self._waiting[index] = done
        while self._next in self._waiting:
            self._show(self._next, self._waiting.pop(self._next))
            self._next += 1

    def _show(self, index: int, done: Completion | Failure) -> None:
        if isinstance(done, Failure):  # already reported on stderr
            return
        console = out()
        if len(self.names) > 1:
            console.print(Text(("\n" if index else "") + f"[{self.names[index]}]", style="bold"), soft_wrap=True)
        print(done.text, flush=True)  # not through rich, which would change tabs
        console.print(Text(summary(done), style="dim"), soft_wrap=True)
