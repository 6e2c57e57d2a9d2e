"""Show one decoding step by step: the canvas, the gap and its threshold, and the commit, live or as a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from foretell.cli.canvas import Canvas, Spell, legend
from foretell.cli.wording import count

if TYPE_CHECKING:
    from foretell.engine.engine import Completion, Frame

FRAMES_PER_SECOND = 12
GAUGE = 32  # columns of the bar
LOG_LINES = 10  # approximate number of lines per decoding, besides the commit


def watch(frames: Iterator[Frame], spell: Spell, console: Console, title: str = "", delay: float = 0.0) -> Completion:
    """Show a decoding to its end; sleep `delay` seconds after each step, not counted as decoding time."""
    canvas = Canvas(spell)
    slept = 0.0
    if not console.is_terminal:
        return _log(frames, canvas, console, title)
    # Live draws the latest frame in its own thread, so decoding never waits for the screen.
    with Live(View(canvas, title), console=console, refresh_per_second=FRAMES_PER_SECOND):
        for frame in frames:
            canvas.update(frame)
            if delay and frame.completion is None:
                time.sleep(delay)
                slept += delay
    done = _completion(canvas)
    return replace(done, seconds=done.seconds - slept)


class View:
    """Draws the latest frame of a canvas when rich asks for it."""

    def __init__(self, canvas: Canvas, title: str = "", notes: bool = True) -> None:
        self.canvas, self.title, self.notes = canvas, title, notes

    def __rich__(self) -> RenderableType:
        frame = self.canvas.frame
        if frame is None:
            return Text("decoding ...", style="dim")
        lines = [status(self.canvas)]
        if self.notes:
            lines.append(legend())
        settled = frame.completion is not None and frame.settled
        panel = Panel(
            self.canvas.text(),
            title=Text(self.title, style="bold") if self.title else None,
            title_align="left",
            border_style="green" if settled else "bright_black",
            box=box.ROUNDED,
            padding=(0, 1),
        )
        return Group(panel, *lines)


def status(canvas: Canvas) -> Text:
    """Return the step counter and the gauge and, at the end, the number of steps saved."""
    frame = canvas.frame
    assert frame is not None, "nothing has been decoded yet"
    filled = sum(frame.filled)
    text = Text(f" step {frame.step + 1:>3}/{frame.budget}  p {frame.progress:.2f}", style="default")
    text.append(f"  filled {filled:>3}/{len(frame.filled)}", style="dim")
    if frame.gauge is not None:
        text.append("\n ").append_text(gauge(*frame.gauge, scale=_scale(canvas), measure=frame.measure))
    if frame.completion is not None:
        text.append("\n ").append(ending(frame.completion), style="bold green" if frame.settled else "bold")
    return text


def gauge(value: float, bar: float, scale: float, measure: str = "gap") -> Text:
    """Draw a bar as long as the measured value, with a mark at the threshold."""
    share = 1.0 if value == float("inf") else max(0.0, min(1.0, value / scale)) if isfinite(value) else 0.0
    mark = min(GAUGE - 1, round(GAUGE * bar / scale)) if isfinite(bar) else GAUGE - 1
    length, reached = round(GAUGE * share), value >= bar
    text = (
        Text(f"{measure} ").append(_number(value), style="bold green" if reached else "bold").append(" ▕", style="dim")
    )
    for column in range(GAUGE):
        filled = column < length
        if column == mark:
            text.append("┃", style="bold yellow")
        else:
            text.append("█" if filled else "·", style=("green" if reached else "cyan") if filled else "bright_black")
    verdict = "≥" if reached else "<"
    return text.append("▏ ", style="dim").append(f"{verdict} tau {_number(bar).strip()}", style="yellow")


def ending(done: Completion) -> str:
    saved = f"{count(done.saved, 'step')} saved"
    if done.finish == "settled":
        return f"settled at step {done.steps} of {done.budget}: {saved}"
    if done.finish == "eos":
        return f"the text ended at step {done.steps} of {done.budget}: {saved}"
    return f"complete after {count(done.steps, 'step')} of {done.budget}"


def log_line(canvas: Canvas) -> str:
    """Return a frame as one line of plain text: the step, the gap and the text so far."""
    frame = canvas.frame
    assert frame is not None, "nothing has been decoded yet"
    line = f"step {frame.step + 1:>3}/{frame.budget}  p {frame.progress:.2f}"
    if frame.gauge is not None:
        line += f"  {comparison(frame.measure, *frame.gauge)}"
    return f"{line}  {canvas.line()}"


def comparison(measure: str, value: float, bar: float) -> str:
    """Return what a stopping rule measured, next to its threshold."""
    return f"{measure} {_number(value)} {'≥' if value >= bar else '<'} {_number(bar).strip()}"


def _log(frames: Iterator[Frame], canvas: Canvas, console: Console, title: str) -> Completion:
    if title:
        _print_plain(console, title)
    for frame in frames:
        canvas.update(frame)
        if frame.step % max(1, frame.budget // LOG_LINES) == 0 or frame.completion is not None:
            _print_plain(console, log_line(canvas))
    done = _completion(canvas)
    _print_plain(console, ending(done))
    return done


def _print_plain(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)


def _completion(canvas: Canvas) -> Completion:
    assert canvas.frame is not None, "a decoding has at least one step"
    assert canvas.frame.completion is not None, "the last frame has the completion"
    return canvas.frame.completion


def _scale(canvas: Canvas) -> float:
    """Return the value at the right end of the bar; it never shrinks, so that the bar does not jump."""
    seen = [number for pair in canvas.gauges for number in pair if isfinite(number)]
    return 1.15 * max([*seen, 1.0])


def _number(value: float) -> str:
    return f"{value:5.2f}" if isfinite(value) else "    ∞" if value > 0 else "    -"
