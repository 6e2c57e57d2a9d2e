"""Format completions as text and as JSON, and write them to the screen or to a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.text import Text

from foretell.cli.console import out, problem
from foretell.cli.plain import stdout_is_unicode
from foretell.cli.wording import count, ratio
from foretell.engine.completion import Failure
from foretell.engine.outcome import Usage
from foretell.errors import RequestError
from foretell.storage import writing

if TYPE_CHECKING:
    from foretell.engine.completion import Completion

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


def record(name: str | int, done: Completion) -> dict[str, Any]:
    """Return a completion as one JSON object."""
    return {
        "id": name,
        "text": done.text,
        "answer": done.answer,
        "response_tokens": done.response_tokens,
        "steps": done.steps,
        "budget": done.budget,
        "saved": done.saved,
        "given": done.given,
        "forwards": done.forwards,
        "tokens_per_forward": round(done.tokens_per_forward, 4),
        "seconds": round(done.seconds, 4),
        "finish": done.finish,
        "exit": done.exit,
        "measure": done.measure,
        "value": None if done.value is None else round(done.value, 4),
        "stop_string": done.stop_string,
        "notes": list(done.notes),
    }


def line_of(name: str | int, done: Completion | Failure, *, escaped: bool = False) -> str:
    """Return one line of JSON, ASCII only if `escaped`."""
    row = {"id": name, "error": str(done)} if isinstance(done, Failure) else record(name, done)
    return json.dumps(row, ensure_ascii=escaped)


class Ledger:
    """A results file that is written line by line as FILE.part and renamed to FILE when it is complete.

    After an interruption, the finished results stay in FILE.part.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.part, self.lines = path, path.with_name(f"{path.name}.part"), 0

    def __enter__(self) -> Ledger:
        with writing(self.path):
            try:
                self._file = self.part.open("x", encoding="utf8")
            except FileExistsError:
                held = "holds the finished results of an interrupted run; move or delete it first"
                raise RequestError(f"{self.part} {held}") from None
        return self

    def add(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()
        self.lines += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        if kind is None:
            self.part.replace(self.path)
        elif self.lines:
            kept = "result is" if self.lines == 1 else "results are"
            problem(f"{self.lines} finished {kept} kept in {self.part}", style="yellow")
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
