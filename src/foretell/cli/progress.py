"""A line of progress on the terminal, for loading a model and for decoding one prompt."""

from __future__ import annotations

import sys
import time
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, Self

from foretell.cli.console import err

if TYPE_CHECKING:
    from rich.progress import Progress

    from foretell.loop.decode import Step

PATIENCE = 1.0  # seconds before the line appears; short work shows nothing
INTERVAL = 0.1  # seconds between two updates of a decoding, which copy numbers from the device


class Meter:
    """Shows how much of some work is done, on stderr if it is a terminal, and clears the line at the end."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.bar: Progress | None = None
        self._timer: Timer | None = None
        self._lock, self._over = Lock(), False
        self._updated = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:  # either the line is drawn and erased here, or it never appears
            self._over = True
            if self._timer is not None:
                self._timer.cancel()
            if self.bar is not None:
                self.bar.stop()

    def begin(self) -> None:
        """Let the line appear after a while."""
        if self._timer is None and err().is_terminal:
            self._timer = Timer(PATIENCE, self._show)
            self._timer.daemon = True
            self._timer.start()

    def load(self, done: int, total: int) -> None:
        """Count loaded bytes; this is the callback for `load`, which may download the model first, with its own bar."""
        self.begin()
        if self.bar is not None:
            self._move(done, total, f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

    def observe(self, step: Step, row: int) -> None:
        """Show a step of a decoding, with what the stopping rule measures."""
        now = time.monotonic()
        if self.bar is None or now - self._updated < INTERVAL:
            return
        from foretell.cli.watch import comparison  # noqa: PLC0415

        self._updated = now
        found, taken, budget = step.verdict, int(step.before.step[row]) + 1, int(step.after.budget[row])
        text = f"step {taken}/{budget}"
        if found.value is not None and found.bar is not None:
            text += f"  {comparison(found.measure, float(found.value[row]), float(found.bar[row]))}"
        self._move(taken, budget, text)

    def _move(self, done: int, total: int, text: str) -> None:
        assert self.bar is not None, "only a line that is shown can move"
        self.bar.update(self.bar.task_ids[0], completed=done, total=total, text=text)

    def _show(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns: Any = (TextColumn(self.title), BarColumn(20), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
        with self._lock:
            if self._over:
                return
            bar = Progress(*columns, console=err(), transient=True, redirect_stdout=sys.stdout.isatty())
            bar.add_task("", total=None, text="")
            bar.start()
            self.bar = bar
