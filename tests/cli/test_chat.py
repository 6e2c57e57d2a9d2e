"""`foretell chat`: turns, commands, cancelling, and standard input that is not a terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from foretell import Engine, load
from foretell.cli.chat import COMMANDS, Chat, find_task, read_lines
from foretell.cli.demo import QUESTION, choose_problem
from foretell.cli.process import Terminated
from foretell.errors import RequestError
from foretell.recipes.presets import CAUTIOUS
from foretell.tasks import TASKS
from tests.cli.conftest import WORDS, Run

FAST: dict[str, Any] = {"recipe": "threshold transfer.value=0.0", "layout": "word"}


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Engine:
    return load(checkpoint)


@pytest.fixture(scope="module")
def tiny() -> Engine:
    return load("tiny")


def asked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of prompts that are decoded from now on."""
    seen: list[Any] = []
    whole = Engine.stream

    def stream(self: Engine, prompt: Any, **options: Any) -> Any:
        seen.append(prompt)
        return whole(self, prompt, **options)

    monkeypatch.setattr(Engine, "stream", stream)
    return seen


def test_a_conversation_keeps_its_turns(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = asked(engine, monkeypatch)
    chat = Chat(engine, FAST, system="boxes")
    assert chat.run(iter([WORDS, "Sam has 2 boxes .", "/reset", WORDS]))
    system, first = {"role": "system", "content": "boxes"}, {"role": "user", "content": WORDS}
    answer = chat.turns[1]["content"]
    assert seen[0] == seen[2] == [system, first]
    assert seen[1] == [
        system,
        first,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "Sam has 2 boxes ."},
    ]
    assert len(chat.turns) == 2


def test_a_model_without_a_template_sees_only_the_line(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = Engine(engine.model, replace(engine.codec, template=None), engine.layouts)
    seen = asked(bare, monkeypatch)
    chat = Chat(bare, FAST, interactive=True)
    assert chat.run(iter([WORDS, WORDS]))
    assert seen == [WORDS, WORDS]
    assert "has no chat template" in capsys.readouterr().err
    with pytest.raises(RequestError, match="--system needs a chat template"):
        Chat(bare, FAST, system="boxes")


def test_the_bundled_model_solves_one_problem_per_turn(run: Run) -> None:
    lines = [QUESTION, *(choose_problem(task).prompt.replace("\n", " ") for task in ("choice", "sudoku", "countdown"))]
    shown = run("chat", "tiny", stdin="\n".join([*lines, "", "   ", "/quit", "Tom"])).stdout
    assert "The answer is 7" in shown
    answers = shown.splitlines()
    assert answers[0].endswith("The answer is 7")
    sudoku = choose_problem("sudoku")
    assert TASKS["sudoku"].check(sudoku, "\n".join(answers[2:6]))
    assert TASKS["countdown"].check(choose_problem("countdown"), answers[6])
    assert len(answers) == 7


def test_a_prompt_that_cannot_be_read_shows_examples(run: Run) -> None:
    result = run("chat", "tiny", stdin=f"What is a zebra?\n{QUESTION}\n", code=1)
    assert "error: " in result.stderr
    assert "zebra" in result.stderr
    assert QUESTION in result.stderr
    assert result.stdout.endswith("The answer is 7\n"), "the next line is answered"


def test_which_task_a_line_is() -> None:
    for task in TASKS:
        assert find_task(choose_problem(task).prompt) == task
    assert find_task("4100/0041/0402/2004") == "sudoku"
    assert find_task("4100 0041 0402") == "countdown"


def test_commands(tiny: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    chat = Chat(tiny, {"recipe": "swift"}, interactive=True)
    chat.run(iter(["/help"]))
    shown = capsys.readouterr().err
    assert all(f"{name} " in shown for name in COMMANDS)
    assert shown.count(QUESTION) == 2, "in the greeting and in the help"
    chat.run(iter(["/recipe", "/recipe prohpet", "/recipe full stop=prophet", "/nonsense"]))
    shown = capsys.readouterr().err
    assert "recipe: swift\n" in shown
    assert "did you mean 'prophet'?" in shown
    assert "recipe: full stop=prophet\n" in shown
    assert "there is no command /nonsense; /help lists them" in shown
    assert chat.options == {"recipe": "full stop=prophet", "settings": ""}


@pytest.mark.parametrize(
    ("stop", "interactive"), [(KeyboardInterrupt, True), (KeyboardInterrupt, False), (Terminated, True)]
)
def test_ctrl_c_cancels_one_answer(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stop: type[KeyboardInterrupt],
    interactive: bool,
) -> None:
    whole, calls = Engine.stream, []

    def stream(self: Engine, prompt: Any, **options: Any) -> Iterator[Any]:
        calls.append(prompt)
        for frame in whole(self, prompt, **options):
            if len(calls) == 1:
                raise stop
            yield frame

    monkeypatch.setattr(Engine, "stream", stream)
    chat = Chat(engine, FAST, interactive=interactive)
    if not interactive or stop is Terminated:
        with pytest.raises(stop):
            chat.run(iter([WORDS, WORDS]))
        return
    assert chat.run(iter([WORDS, WORDS]))
    assert "cancelled" in capsys.readouterr().err
    assert calls[1] == [{"role": "user", "content": WORDS}], "the cancelled turn is not part of the conversation"
    assert len(chat.turns) == 2


def test_drafts_are_shown_on_a_terminal(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("foretell.cli.console.out", lambda: Console(force_terminal=True, width=80))
    Chat(engine, {"recipe": "full", "layout": "word"}, interactive=True).run(iter([WORDS]))
    shown = capsys.readouterr().out
    assert "step " in shown
    assert "╭" in shown


def test_lines_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    typed: Iterator[Any] = iter(["one", KeyboardInterrupt(), "two", EOFError()])

    def read(prompt: str) -> str:
        assert prompt == "> "
        value = next(typed)
        if isinstance(value, BaseException):
            raise value
        return str(value)

    assert list(read_lines(interactive=True, read=read)) == ["one", "two"]
    assert "Ctrl-D or /quit leaves" in capsys.readouterr().err

    def terminated(prompt: str) -> str:
        raise Terminated(signal.SIGTERM)

    with pytest.raises(Terminated):
        list(read_lines(interactive=True, read=terminated))


def test_options_are_checked_before_the_first_turn(run: Run, checkpoint: Path) -> None:
    assert "did you mean 'prophet'?" in run("chat", "nowhere", "--recipe", "prohpet", code=2).stderr
    assert "--steps" in run("chat", checkpoint, "--setps", "3", code=2).stderr
    assert "nope" in run("chat", checkpoint, "--layout", "nope", code=2).stderr


def test_the_default_recipe_depends_on_the_model(run: Run, checkpoint: Path) -> None:
    assert f"recipe: {CAUTIOUS}\n" in run("chat", checkpoint, stdin="/recipe\n").stderr
    assert "recipe: swift\n" in run("chat", "tiny", stdin="/recipe\n").stderr
    assert "recipe: full steps=3\n" in run("chat", "tiny", "-r", "full", "-s", "steps=3", stdin="/recipe\n").stderr
