"""Decodings of one prompt with several recipes, timed one after the other and then played at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from foretell.cli.canvas import Canvas, Spell, legend, speller
from foretell.cli.watch import FRAMES_PER_SECOND, comparison, ending, log_line

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.engine.engine import Completion, Engine, Frame

TIMINGS = 2  # runs per recipe, of which the fastest is reported
LOG_STEPS = (0.1, 0.3, 0.6)  # shares of the budget that a log shows
NARROWEST = 26  # columns of a lane; on a smaller terminal, the lanes are below each other


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
    """A prompt decoded with several recipes."""

    title: str
    prompt: str
    films: tuple[Film, ...]
    spell: Spell = field(repr=False)


def run(engine: Engine, title: str, prompt: str, recipes: Mapping[str, str], options: dict[str, Any]) -> Race:
    """Decode with every recipe, given by its title. Drawing comes later, so that only decoding is timed."""
    for _ in engine.stream(prompt, recipe="full", **{**options, "steps": 2}):
        pass  # warm-up: the first passes of a process are slower
    # The recipes take turns, so that other load on the machine affects all of them.
    timings = [[_time(engine, prompt, recipe, options) for recipe in recipes.values()] for _ in range(TIMINGS)]
    fastest = dict(zip(recipes, map(min, zip(*timings, strict=True)), strict=True))
    films = tuple(_record(engine, prompt, name, recipe, fastest[name], options) for name, recipe in recipes.items())
    return Race(title, prompt, films, speller(engine.codec))


def play(race: Race, console: Console, seconds: float) -> None:
    """Play all films at once, so slowly that the longest takes about `seconds`; without a terminal, print a log."""
    heading = Text(f"{race.title}  ", style="bold cyan").append(" ".join(race.prompt.split()), style="default")
    console.print(heading, soft_wrap=not console.is_terminal)
    if not console.is_terminal:
        _log(race, console)
        return
    slowest = max(film.times[-1] for film in race.films)
    pace = slowest / seconds if seconds > 0 else float("inf")
    canvases = [Canvas(race.spell) for _ in race.films]
    with Live(Lanes(race, canvases), console=console, refresh_per_second=FRAMES_PER_SECOND) as live:
        started, shown = time.perf_counter(), [0] * len(race.films)
        while any(at < len(film.frames) for at, film in zip(shown, race.films, strict=True)):
            clock = (time.perf_counter() - started) * pace
            for which, film in enumerate(race.films):
                while shown[which] < len(film.frames) and film.times[shown[which]] <= clock:
                    canvases[which].update(film.frames[shown[which]])
                    shown[which] += 1
            time.sleep(0.5 / FRAMES_PER_SECOND)
        live.refresh()
    console.print()


class Lanes:
    """Draws one canvas per recipe, side by side if the terminal is wide enough."""

    def __init__(self, race: Race, canvases: list[Canvas]) -> None:
        self.race, self.canvases = race, canvases

    def __rich_console__(self, console: Console, options: Any) -> Iterator[RenderableType]:
        lanes = [draw_lane(film, canvas) for film, canvas in zip(self.race.films, self.canvases, strict=True)]
        if options.max_width < NARROWEST * len(lanes):
            yield from lanes
        else:
            grid = Table.grid(expand=True, padding=0)
            for _ in lanes:
                grid.add_column(ratio=1)
            grid.add_row(*lanes)
            yield grid
        yield legend()


def draw_lane(film: Film, canvas: Canvas) -> RenderableType:
    """Return the canvas of one recipe, with its step and what its stopping rule compares."""
    frame = canvas.frame
    if frame is None:
        return Text(f" {film.title} ...", style="dim")
    done, text = frame.completion, canvas.text()
    text.overflow = "crop"  # a row of end tokens, which is one long word
    panel = Panel(
        text,
        title=Text(film.title, style="bold"),
        title_align="left",
        border_style="green" if done is not None and frame.settled else "bright_black",
        box=box.ROUNDED,
        padding=(0, 1),
    )
    step = Text(f" step {frame.step + 1}/{frame.budget}")
    if done is not None:
        step.append(" settled" if frame.settled else " done", style="bold green" if frame.settled else "bold")
    rule = "" if frame.gauge is None else f" {comparison(frame.measure, *frame.gauge)}"
    return Group(panel, step, Text(rule, style="yellow"))


def _time(engine: Engine, prompt: str, recipe: str, options: dict[str, Any]) -> float:
    """Return the seconds of a decoding without frames, because making frames takes time."""
    done: Completion = engine.generate(prompt, recipe=recipe, **options)
    return done.seconds


def _record(engine: Engine, prompt: str, title: str, recipe: str, seconds: float, options: dict[str, Any]) -> Film:
    """Record the frames of one decoding, with times scaled to a total of `seconds`."""
    frames, times, started = [], [], time.perf_counter()
    for frame in engine.stream(prompt, recipe=recipe, **options):
        frames.append(frame)
        times.append(time.perf_counter() - started)
    return Film(title, tuple(frames), tuple(at * seconds / times[-1] for at in times), seconds)


def _log(race: Race, console: Console) -> None:
    width = max(len(film.title) for film in race.films)
    for film in race.films:
        canvas = Canvas(race.spell)
        moments = {round(share * film.frames[0].budget) for share in LOG_STEPS}
        for frame in film.frames:
            canvas.update(frame)
            if frame.step in moments or frame.completion is not None:
                console.print(Text(f"  {film.title:<{width}} {log_line(canvas)}"), soft_wrap=True)
        console.print(Text(f"  {film.title:<{width}} {ending(film.done)} · {film.seconds:.3f} s"), soft_wrap=True)
    console.print()
