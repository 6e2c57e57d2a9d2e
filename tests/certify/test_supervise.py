"""Supervised requests: planted drift, the order of losses, and what is decoded for a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import foretell
from foretell.certify.audit import AuditLog, AuditState, open_log, read_log
from foretell.certify.climb import Climb, climb
from foretell.certify.losses import Decoded, find_loss
from foretell.certify.supervise import Subject, Supervisor, loss_of, supervise
from foretell.cli.audit import decode
from foretell.engine.completion import Completion, Failure
from foretell.engine.engine import Engine
from foretell.engine.prompt_files import FilePrompt
from foretell.errors import RequestError
from foretell.evaluation.benchmark import make_independent
from foretell.evaluation.catalogue import benchmark_named
from tests.cli.conftest import checkpoint as checkpoint  # noqa: PLC0414  a fixture
from tests.cli.test_audit import make_certificate

BOLD, SAFE = "threshold transfer.value=0.0", "threshold transfer.value=0.99999"


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Engine:
    return foretell.load(checkpoint)


def problems(task: str, count: int) -> list[FilePrompt]:
    found = make_independent(benchmark_named(task)).examples(None, count, 3)
    return [FilePrompt(f"{task} {number}", str(one.prompt), label=task) for number, one in enumerate(found)]


def round_weights(engine: Engine, bits: int) -> None:
    """Round the matrices in memory to integers of this many bits per row, which are still stored as float32."""
    assert isinstance(engine.model, torch.nn.Module)
    for weight in engine.model.parameters():
        if weight.ndim > 1:
            scale = weight.data.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
            weight.data.copy_((weight.data / scale).round() * scale)


def watch(engine: Engine, log: AuditLog) -> Supervisor:
    """Audit every request of a threshold that changes no Sudoku."""
    template = engine.template(layout="sudoku", recipe="threshold transfer.value=0.8")
    made = make_certificate(engine, str(template.recipe))
    full = str(engine.template(layout="sudoku").recipe)
    made = replace(made, recipe=str(template.recipe), rungs=[str(template.recipe)], against=full)
    return supervise(engine, log, template, made, 1.0, falls_back=True)


@pytest.mark.parametrize("drift", ["countdown", "word", "rounding"])  # another type of problem, longer prompts
def test_planted_drift_raises_an_alarm(tmp_path: Path, drift: str) -> None:
    tiny = foretell.load("tiny")
    asked = problems("sudoku", 2) + problems("sudoku" if drift == "rounding" else drift, 18)[2:]
    with open_log(tmp_path / "log.jsonl") as log:
        watched = watch(tiny, log)
        done = dict(decode(watched, asked[:2], [], batch_size=4, traced=False))
        before = tiny.backend
        if drift == "rounding":  # as another dtype does, but where neither the certificate nor the log can see it
            round_weights(tiny, 3)
        assert tiny.backend == before
        done |= {2 + at: one for at, one in decode(watch(tiny, log), asked[2:], [], batch_size=4, traced=False)}
        state = state_of(watched)
        (alarm, *_) = state.events
    assert state.losses[1][:2] == [0, 0]
    assert alarm.label in (None, drift)
    assert alarm.audits <= 14
    last = done[17]
    assert isinstance(last, Completion)
    assert last.notes == ("decoded in full, because an audit raised an alarm",)
    assert last.tokens == tiny.generate(str(asked[17].prompt), layout="sudoku").tokens


def test_no_alarm_without_drift(tmp_path: Path) -> None:
    """Neither for the same problems, nor in bfloat16, which a log that was started in float32 refuses."""
    path = tmp_path / "log.jsonl"
    for dtype in ("bfloat16", "float32"):
        engine = foretell.load("tiny", dtype=dtype)
        path.unlink(missing_ok=True)
        with open_log(path) as log:
            watched = watch(engine, log)
            list(decode(watched, problems("sudoku", 8), [], batch_size=8, traced=False))
            assert (state_of(watched).audits, state_of(watched).events) == (8, [])
    other = foretell.load("tiny", dtype="bfloat16")
    with (
        open_log(path) as log,
        pytest.raises(RequestError, match="another run: its dtype is 'float32', not 'bfloat16'"),
    ):
        watch(other, log)


def test_losses_count_in_the_order_of_arrival(engine: Engine, tmp_path: Path) -> None:
    """Whichever request is done first."""
    template = engine.template(recipe=BOLD)
    with open_log(tmp_path / "log.jsonl") as log:
        watched = supervise(engine, log, template, make_certificate(engine, BOLD), 1.0)
        asked = [FilePrompt(number, f"Tom has {number} boxes .") for number in range(3)]
        tasks = [task for one in asked for task in watched.plan(one)]
        assert [(task.one.id, task.rung, task.served) for task in tasks] == [
            (number, rung, bool(rung)) for number in range(3) for rung in (1, 0)
        ]
        done = {task: engine.generate(task.one.prompt, recipe=task.template.recipe) for task in tasks}
        for task in tasks[::-1]:
            assert log.keys == set()  # until the first request is done
            watched.record(task, done[task])
    ids = [line.split(",")[0] for line in (tmp_path / "log.jsonl").read_text().splitlines()[1:]]
    assert ids == [f'{{"id": {number}' for number in range(3)]


def test_a_failure_of_the_faster_recipe_alone_is_a_loss(engine: Engine, tmp_path: Path) -> None:
    template, failure = engine.template(recipe=SAFE), Failure(RequestError("NaN"))
    with open_log(tmp_path / "log.jsonl") as log:
        watched = supervise(engine, log, template, make_certificate(engine, SAFE), 1.0)
        for number in range(2):
            for task in watched.plan(FilePrompt(number, "Tom has 3 boxes .")):
                fails = task.rung == (1 if number == 0 else 0)
                watched.record(task, failure if fails else engine.generate(task.one.prompt))
    state = read_log(tmp_path / "log.jsonl")
    assert state.losses[1] == [1.0]
    assert (state.audits, state.failed) == (1, 1)


def fails(full: Decoded, fast: Decoded, example: Any) -> float:
    raise KeyError(example["prompt"])


def test_a_loss_that_fails_names_the_request(engine: Engine) -> None:
    subject = Subject(engine, find_loss(fails), fills=False)
    done = engine.generate("Tom has 3 boxes .")
    with pytest.raises(RequestError, match="the loss fails fails on example q7: KeyError"):
        subject.measure(FilePrompt("q7", "Tom has 3 boxes ."), done, done)


def changed(full: Decoded, fast: Decoded, example: Any) -> float:
    assert set(example) == {"id", "prompt", "answer", "label"}
    return 0.25 * (full.tokens != fast.tokens)


def test_a_loss_of_your_own_is_imported_only_if_you_name_it(engine: Engine) -> None:
    mine = f"{__file__}:changed"
    found = make_certificate(engine, SAFE, loss=mine)
    with pytest.raises(RequestError, match="has to be named again"):
        loss_of(found, None)
    assert loss_of(found, mine).graded
    assert loss_of(replace(found, loss="consistency"), "answer") == find_loss("answer")
    with pytest.raises(RequestError, match="certified for the loss"):
        loss_of(found, "text")


Start = Callable[..., Climb]


@pytest.fixture
def start(engine: Engine, tmp_path: Path) -> Any:
    """Return a climb with one audited request in two, after a pilot of two requests."""

    def make(log: Any, **more: Any) -> Climb:
        made = climb(
            engine, log, engine.template(), find_loss("answer"), 0.2, 0.9, **{"explore": 0.5, "pilot": 2, **more}
        )
        for number in range(2):
            (task,) = made.plan(FilePrompt(number, "Tom has 3 boxes ."))
            assert (task.rung, task.served, task.template.trace) == (0, True, True)
            made.record(task, engine.generate(f"Tom has {number} boxes .", trace=True))
        return made

    return make


def state_of(made: Supervisor) -> AuditState:
    assert made.state is not None
    return made.state


def test_what_a_climb_decodes(start: Start, tmp_path: Path) -> None:
    with open_log(tmp_path / "log.jsonl") as log:
        made = start(log)
        state, top = state_of(made), len(made.templates) - 1
        assert len(state.header.pilot) == 2
        assert state.rung == 0
        plans = [made.plan(FilePrompt(number, "Tom has 3 boxes .")) for number in range(100, 160)]
        assert all(plan[0].rung == 0 and plan[0].served for plan in plans)
        live = [rung for rung in range(1, top + 1) if rung not in made._free]
        assert {tuple(task.rung for task in plan[1:]) for plan in plans} == {(), tuple(live)}
        assert 15 <= sum(len(plan) > 1 for plan in plans) <= 45
        state.rung = state.earned = 2
        plans = [made.plan(FilePrompt(number, "Tom has 3 boxes .")) for number in range(200, 260)]
        assert all(plan[0].rung == 2 for plan in plans)
        assert {tuple(task.rung for task in plan[1:]) for plan in plans} == {(), (0, *range(3, top + 1))}
        made.ahead = 1
        plans = [made.plan(FilePrompt(number, "Tom has 3 boxes .")) for number in range(300, 360)]
        assert {tuple(task.rung for task in plan[1:]) for plan in plans} == {(), (0, 3)}
        again = made.plan(FilePrompt(300, "Tom has 3 boxes ."))
        assert len(again) == 1  # the same request is not audited twice
        state.header = replace(state.header, share=1.0)
        assert [len(made.plan(FilePrompt(number, "Tom has 3 boxes ."))) for number in (0, 1, 400)] == [
            1,
            1,
            3,
        ]  # the pilot


def test_rungs_that_differ_only_in_the_stopping_rule_are_replayed_on_every_full_decoding(
    engine: Engine, start: Start, tmp_path: Path
) -> None:
    with open_log(tmp_path / "log.jsonl") as log:
        made = start(log, explore=0.0)
        full = made.templates[0]
        rule = replace(full.recipe, stop=foretell.parse("full stop=sure(1.0)").stop)
        state = state_of(made)
        state.header.rungs[0] = str(rule)
        made._use(state.header.rungs)
        assert made._free == {1}
        for number in range(10, 12):
            (task,) = made.plan(FilePrompt(number, f"Tom has {number} boxes ."))
            assert (task.rung, task.template.trace) == (0, True)
            ((_, done),) = engine.generate_iter([(task.one.prompt, task.template)])
            made.record(task, done)
        assert len(state_of(made).losses[1]) == 2
        assert state_of(made).losses[2] == []
        faster = state_of(made).speedup(1)
        assert faster is not None
        assert faster > 1
        state_of(made).rung = state_of(made).earned = 1
        (task,) = made.plan(FilePrompt(30, "Tom has 3 boxes ."))
        assert (task.rung, task.template.trace) == (1, False)  # not decoded in full, so not replayed
