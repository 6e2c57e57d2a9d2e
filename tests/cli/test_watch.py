"""Watching: every look differs from the others, with and without colour, and a log has no escape codes."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from foretell import Completion, Engine, Frame, load
from foretell.cli.canvas import Canvas, Look, contiguous_span, speller
from foretell.cli.race import Lanes, play
from foretell.cli.race import run as race
from foretell.cli.watch import View, gauge, status, watch
from tests.cli.conftest import WORDS, Run


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Engine:
    return load(checkpoint)


def screen(**options: bool) -> Console:
    return Console(file=StringIO(), force_terminal=True, width=100, height=40, record=True, **options)  # type: ignore[arg-type]


def canvases(engine: Engine, recipe: str = "prophet") -> Iterator[Canvas]:
    canvas = Canvas(speller(engine.codec))
    for frame in engine.stream(WORDS, recipe=recipe):
        canvas.update(frame)
        yield canvas


def test_a_log_without_a_terminal(run: Run, checkpoint: Path) -> None:
    output = run("generate", checkpoint, WORDS, "-r", "prophet", "--watch").stdout
    assert "\x1b" not in output
    assert "step   1/24  p 0.00  mean gap " in output
    assert "⟦" in output
    assert "settled at step 18 of 24: 3 steps saved" in output
    assert output.count("step ") < 16


def test_every_look_is_seen(engine: Engine) -> None:
    seen = {canvas.look(at) for canvas in canvases(engine) for at in range(24)}
    assert seen == set(Look)


def test_looks_differ_without_colour() -> None:
    attributes = set()
    for look in Look:
        words = {word for word in look.value.split() if word in ("bold", "dim", "italic", "reverse", "underline")}
        attributes.add((look is Look.MASK, frozenset(words)))  # a mask has its own glyph
    assert len(attributes) == len(Look)


def test_the_canvas_keeps_the_layout_of_the_text(engine: Engine) -> None:
    *_, last = canvases(engine)
    assert last.frame is not None
    assert last.frame.completion is not None
    bare = last.text().plain.replace("⟦", "").replace("⟧", "").replace("·", "")
    assert "".join(bare.split()) == "".join(last.frame.completion.text.split())
    assert "The answer is ⟦" in last.text().plain


def test_the_last_frame_is_always_shown(engine: Engine) -> None:
    console = screen()
    done = watch(engine.stream(WORDS, recipe="prophet"), speller(engine.codec), console, "prophet")
    shown = console.export_text()
    assert isinstance(done, Completion)
    assert "settled at step 18 of 24: 3 steps saved" in shown
    assert "filled  24/24" in shown


def test_a_delay_is_not_decoding_time(engine: Engine) -> None:
    slow = watch(engine.stream(WORDS, recipe="full", steps=5), speller(engine.codec), screen(), delay=0.1)
    assert 0 < slow.seconds < 0.4


def test_view_draws_the_gauge_and_the_counter(engine: Engine) -> None:
    canvas = next(canvases(engine))
    console = screen()
    console.print(View(canvas, "prophet"))
    shown = console.export_text()
    assert "step   1/24  p 0.00" in shown
    assert "< tau 7.50" in shown
    assert "░" in shown


@pytest.mark.parametrize(
    ("value", "bar", "says"),
    [(2.0, 8.0, "< tau 8.00"), (9.0, 8.0, "≥ tau 8.00"), (float("inf"), 8.0, "∞"), (float("-inf"), 8.0, "-")],
)
def test_gauge(value: float, bar: float, says: str) -> None:
    plain = gauge(value, bar, 10.0).plain
    assert says in plain
    assert plain.count("┃") == 1


def test_gauge_says_what_is_measured(engine: Engine) -> None:
    """A certainty rises to its threshold as a gap does, under its own name."""
    console = screen()
    watch(engine.stream(WORDS, recipe="sure"), speller(engine.codec), console)
    shown = console.export_text()
    assert "certainty" in shown
    assert "tau 0.90" in shown
    assert "gap" not in shown
    assert gauge(3.0, 8.0, 10.0, "unchanged").plain.startswith("unchanged  3.00")


def test_gauge_grows_with_the_gap() -> None:
    lengths = [gauge(value, 9.0, 10.0).plain.count("█") for value in (0.0, 2.0, 5.0, 8.0)]
    assert lengths == sorted(set(lengths))


def test_only_one_contiguous_span_is_bracketed() -> None:
    none = (False,) * 4
    assert contiguous_span((False, True, True, False), none) == (1, 2)
    for unclear in ((True, False, True), (True, True), (False, False)):
        assert contiguous_span(unclear, none) == (-1, -1)
    assert contiguous_span((False, True, False, True), (False, False, True, False)) == (1, 3)


def test_a_race_is_played_to_its_end(engine: Engine) -> None:
    run = race(engine, "word", WORDS, {"full": "full", "early": "prophet"}, {"layout": "word"})
    live, log = screen(), Console(file=StringIO(), width=100, record=True)
    play(run, live, seconds=0.2)
    play(run, log, seconds=0.2)
    shown = live.export_text()
    assert "step 18/24 settled" in shown
    assert "step 21/24 done" in shown
    shown = log.export_text()
    assert "settled at step 18 of 24: 3 steps saved" in shown
    assert "complete after 21 steps of 24" in shown
    assert all(film.times == tuple(sorted(film.times)) for film in run.films)


def test_lanes_are_below_each_other_on_a_narrow_terminal(engine: Engine) -> None:
    run = race(engine, "word", WORDS, {"full": "full", "early": "prophet"}, {"layout": "word"})
    for width, rows in ((51, 2), (52, 1)):
        console, canvases = Console(file=StringIO(), width=width, record=True), [Canvas(run.spell) for _ in run.films]
        console.print(Lanes(run, canvases))
        assert "full ..." in console.export_text()
        for film, canvas in zip(run.films, canvases, strict=True):
            canvas.update(film.frames[-1])
        console.print(Lanes(run, canvases))
        assert sum("╭─" in line for line in console.export_text().splitlines()) == rows


def test_drawing_skips_frames_but_not_the_end(engine: Engine) -> None:
    frames: list[Frame] = list(engine.stream(WORDS, recipe="prophet"))
    console = screen()
    watch(iter(frames), speller(engine.codec), console)
    assert console.export_text().count("filled ") < len(frames)


def test_progress_and_measure_are_the_rules_own(engine: Engine) -> None:
    """With a token clock, p is the filled share of the window, as the threshold uses it."""
    recipe = "threshold transfer.value=0.1 stop=prophet(tau=linear(1.0,0.0),reduce=min,clock=tokens)"
    before = 3 / 24  # the pinned suffix
    for canvas in canvases(engine, recipe):
        frame = canvas.frame
        assert frame is not None
        assert frame.gauge is not None
        assert frame.progress == pytest.approx(before)
        assert frame.gauge[1] == pytest.approx(1 - frame.progress)
        assert f"p {frame.progress:.2f}" in status(canvas).plain
        assert "min gap" in status(canvas).plain
        before = sum(frame.filled) / 24
    assert before == 1
