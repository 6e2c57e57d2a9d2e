"""Two decodings of the same prompt, timed separately and then played side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from foretell.cli.canvas import Canvas, Spell, legend, speller
from foretell.cli.watch import FRAMES_PER_SECOND, View, ending, log_line

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.engine.engine import Completion, Engine, Frame

TIMINGS = 3  # runs per decoder, of which the fastest is reported
LOG_STEPS = (0.1, 0.3, 0.6)  # shares of the budget that a log shows
SIDE_BY_SIDE = 90  # minimum terminal width for two canvases side by side


@dataclass(frozen=True, slots=True)
class Film:
    """Every frame of one decoding, with its time."""

    title: str
    frames: tuple[Frame, ...]
    times: tuple[float, ...]  # seconds since the start, per frame
    seconds: float

    @property
    def done(self) -> Completion:
        done = self.frames[-1].completion
        assert done is not None, "the last frame has the completion"
        return done


@dataclass(frozen=True, slots=True)
class Race:
    """A prompt decoded in full and with an early stop."""

    title: str
    prompt: str
    full: Film
    early: Film
    spell: Spell = field(repr=False)


def run(engine: Engine, title: str, prompt: str, recipe: str, options: dict[str, Any]) -> Race:
    """Decode with both recipes. Drawing comes later, so that only decoding is timed."""
    for _ in engine.stream(prompt, recipe="full", **{**options, "steps": 2}):
        pass  # warm-up: the first passes of a process are slower
    names = ("full", recipe)
    # The recipes take turns, so that other load on the machine affects both.
    timings = [[_time(engine, prompt, name, options) for name in names] for _ in range(TIMINGS)]
    seconds = [min(column) for column in zip(*timings, strict=True)]
    full, early = (_record(engine, prompt, *pair, options) for pair in zip(names, seconds, strict=True))
    return Race(title, prompt, full, early, speller(engine.codec))


def play(race: Race, console: Console, seconds: float) -> None:
    """Play both, slowed so that the slower one takes about `seconds`; without a terminal, print a log."""
    heading = Text(f"{race.title}  ", style="bold cyan").append(" ".join(race.prompt.split()), style="default")
    console.print(heading, soft_wrap=not console.is_terminal)
    if not console.is_terminal:
        _log(race, console)
        return
    slower = max(race.full.times[-1], race.early.times[-1])
    pace = slower / seconds if seconds > 0 else float("inf")
    canvases = [Canvas(race.spell), Canvas(race.spell)]
    with Live(SideBySide(race, canvases), console=console, refresh_per_second=FRAMES_PER_SECOND) as live:
        started, shown = time.perf_counter(), [0, 0]
        while any(at < len(film.frames) for at, film in zip(shown, (race.full, race.early), strict=True)):
            clock = (time.perf_counter() - started) * pace
            for which, film in enumerate((race.full, race.early)):
                while shown[which] < len(film.frames) and film.times[shown[which]] <= clock:
                    canvases[which].update(film.frames[shown[which]])
                    shown[which] += 1
            time.sleep(0.5 / FRAMES_PER_SECOND)
        live.refresh()
    console.print()


class SideBySide:
    """Draws the two canvases, side by side if the terminal is wide enough."""

    def __init__(self, race: Race, canvases: list[Canvas]) -> None:
        self.race, self.canvases = race, canvases

    def __rich_console__(self, console: Console, options: Any) -> Iterator[RenderableType]:
        films = (self.race.full, self.race.early)
        views = [View(canvas, film.title, notes=False) for canvas, film in zip(self.canvases, films, strict=True)]
        if options.max_width < SIDE_BY_SIDE:
            yield from views
        else:
            grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
            grid.add_column(ratio=1)
            grid.add_column(ratio=1)
            grid.add_row(*views)
            yield grid
        yield legend()


def _time(engine: Engine, prompt: str, recipe: str, options: dict[str, Any]) -> float:
    """Return the seconds of a decoding without frames, because making frames takes time."""
    done: Completion = engine.generate(prompt, recipe=recipe, **options)
    return done.seconds


def _record(engine: Engine, prompt: str, recipe: str, seconds: float, options: dict[str, Any]) -> Film:
    """Record the frames of one decoding, with times scaled to a total of `seconds`."""
    frames, times, started = [], [], time.perf_counter()
    for frame in engine.stream(prompt, recipe=recipe, **options):
        frames.append(frame)
        times.append(time.perf_counter() - started)
    return Film(recipe, tuple(frames), tuple(at * seconds / times[-1] for at in times), seconds)


def _log(race: Race, console: Console) -> None:
    width = max(len(race.full.title), len(race.early.title))
    for film in (race.full, race.early):
        canvas = Canvas(race.spell)
        moments = {round(share * film.frames[0].budget) for share in LOG_STEPS}
        for frame in film.frames:
            canvas.update(frame)
            if frame.step in moments or frame.completion is not None:
                console.print(Text(f"  {film.title:<{width}} {log_line(canvas)}"), soft_wrap=True)
        console.print(Text(f"  {film.title:<{width}} {ending(film.done)} · {film.seconds:.3f} s"), soft_wrap=True)
    console.print()
