"""`foretell trace`: drawing and replaying stored traces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretell import Engine, load, load_traces, save_traces
from foretell.cli.chart import BAR, chart
from foretell.cli.heatmap import GLYPHS, MARGIN, Cell, bins, cells
from foretell.cli.replay import replay_trace
from foretell.engine.codec import Codec
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear, Staged
from tests.cli.conftest import WORDS, Run


@pytest.fixture(scope="module")
def file(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "run.npz"
    engine = load(checkpoint)
    recipes = ("prophet", "full", "sched")
    save_traces(path, [trace for r in recipes if (trace := engine.generate(WORDS, recipe=r, trace=True).trace)])
    return path


def test_show_draws_everything(run: Run, file: Path) -> None:
    shown = run("trace", "show", file).stdout
    trace = load_traces(file)[0]
    assert "\x1b" not in shown
    for glyph in GLYPHS.values():
        assert glyph in shown
    assert "● mean gap  ─ tau(p)" in shown
    assert f"did not change after step {trace.last_change() + 1} of {len(trace)}" in shown
    assert "commit" in shown
    assert "The answer is" in shown


def test_show_of_a_full_run_has_no_threshold(run: Run, file: Path) -> None:
    shown = run("trace", "show", file, "--index", "1").stdout
    assert "tau(p)" not in shown
    assert "end " in shown
    assert "(trace 1 of 3)" in shown


@pytest.mark.parametrize("width", [40, 72, 200])
def test_show_fits_the_width(run: Run, file: Path, width: int) -> None:
    for line in run("trace", "show", file, "--width", str(width)).stdout.splitlines():
        assert len(line.rstrip()) <= width


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--index", "9"], "holds 3 traces, so there is no --index 9"),
        (["--width", "3"], "--width must be at least 40, got 3"),
    ],
)
def test_show_refuses(run: Run, file: Path, words: list[str], says: str) -> None:
    assert says in run("trace", "show", file, *words, code=2).stderr


def test_one_trace_is_not_many(run: Run, file: Path, tmp_path: Path) -> None:
    save_traces(tmp_path / "one.npz", load_traces(file)[:1])
    refused = run("trace", "show", tmp_path / "one.npz", "--index", "1", code=2).stderr
    assert "holds 1 trace, so there is no --index 1" in refused


def test_a_file_that_is_no_trace(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("no")
    refused = run("trace", "show", tmp_path / "a.npz", code=2).stderr
    assert "a.npz is not a trace file that" in refused
    assert "pickle" not in refused
    assert "cannot read the trace file" in run("trace", "replay", tmp_path / "b.npz", code=2).stderr


def test_cells_tell_what_happened(file: Path) -> None:
    trace = load_traces(file)[1]
    codes = cells(trace)
    assert (codes[:, trace.filled_at < 0] == Cell.PINNED).all()
    assert ((codes == Cell.NOW).sum(dim=0)[trace.filled_at >= 0] == 1).all()
    changed = trace.tokens[1:] != trace.tokens[:-1]
    assert ((codes[1:] == Cell.CHANGED) & ~changed).sum() == 0
    assert (codes == Cell.CHANGED).any()
    assert set(codes.flatten().tolist()) == set(Cell)


def test_bins_cover_everything() -> None:
    assert bins(5, 10) == [0, 1, 2, 3, 4, 5]
    assert bins(10, 3) == [0, 3, 7, 10]
    assert bins(3, 0) == [0, 3]


def test_chart_puts_the_threshold_above_a_low_gap() -> None:
    rows = chart([1.0, 2.0, 6.0, float("inf")], [8.0, 8.0, 4.0, 4.0], "mean gap", MARGIN + 4).plain.splitlines()
    drawn = [row[MARGIN:] for row in rows if "│" in row]
    assert drawn[0] == f"{BAR * 2} ●"
    assert [row[2] for row in drawn].index("●") < [row[2] for row in drawn].index(BAR)


def test_replay_tells_where_a_rule_fires(run: Run, file: Path) -> None:
    trace = load_traces(file)[1]
    rule = Prophet(tau=Linear())
    shown = run("trace", "replay", file, "--stop", "prophet(tau=linear)").stdout
    fired = trace.replay(rule)
    row = shown.splitlines()[2].split()
    assert row[:3] == ["1", *(("never", "21") if fired is None else ("step", str(fired + 1)))]
    assert "same answer in" in shown
    assert "fired in" in shown


def test_replay_outcomes_differ_by_rule(file: Path) -> None:
    trace = load_traces(file)[1]
    eager, paper, never = (replay_trace(trace, rule) for rule in (Prophet(Staged(high=0.0)), Prophet(), Never()))
    assert eager.steps == 1
    assert paper.steps == len(load_traces(file)[0])
    assert (never.fired, never.steps, never.same) == (None, len(trace), True)
    answer = trace.tokens[:, -2:]
    assert eager.same == torch.equal(answer[0], answer[-1])


def test_replay_refuses_unknown_rules(run: Run, file: Path) -> None:
    assert "did you mean 'prophet'?" in run("trace", "replay", file, "--stop", "prophte", code=2).stderr
    assert "did you mean 'whole'?" in run("trace", "replay", file, "--region", "whol", code=2).stderr


def test_a_trace_without_an_answer_region(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    engine = Engine(load(checkpoint).model, Codec.load(checkpoint))  # without the layouts of its folder
    done = engine.generate(WORDS, recipe="sched", max_new_tokens=16, trace=True)
    whole = engine.generate(WORDS, recipe="full", max_new_tokens=16, trace=True)
    assert done.trace is not None
    assert whole.trace is not None
    path = tmp_path / "run.npz"
    save_traces(path, [done.trace, whole.trace])
    shown = run("trace", "show", path).stdout
    assert "The final text was first drafted at step" in shown
    assert "▼" not in shown
    replay = run("trace", "replay", path, "--stop", "prophet(tau=staged(high=0.0))")
    assert "no answer region was recorded" in replay.stderr
    assert "step 1" in replay.stdout
