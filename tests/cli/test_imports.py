"""--import: your own policies on every command that takes recipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from foretell.cli.app import app
from foretell.cli.commands import COMMANDS
from foretell.policies import POLICIES
from foretell.recipes.plugins import VARIABLE, add_plugins
from tests.cli.conftest import WORDS, Run
from tests.cli.test_usage import EVERY
from tests.recipes.test_plugins import RULE


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    file = tmp_path / "mine_at_once.py"
    file.write_text(RULE)
    yield file
    POLICIES["stop"].pop("at_once", None)
    sys.modules.pop("mine_at_once", None)


def test_a_rule_in_a_file(run: Run, checkpoint: Path, rule: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ("generate", checkpoint, WORDS, "--recipe", "full stop=at_once")
    assert "at_once" in run(*wanted, code=2).stderr
    monkeypatch.chdir(rule.parent)
    assert "1 of " in run(*wanted, "--import", rule.name).stdout
    assert os.environ[VARIABLE] == str(rule), "worker processes may run in another folder"


def test_a_rule_in_a_module(run: Run, rule: Path) -> None:
    assert "Settled from the start" in run("recipes", "at_once", "--import", "mine_at_once", "--import", rule).stdout
    assert os.environ[VARIABLE] == f"mine_at_once,{rule}"


def test_every_command_that_takes_recipes_has_the_option() -> None:
    taking = {
        ctx.command_path
        for command, ctx in EVERY
        if {"recipe", "stop", "base", "against"} & {one.name for one in command.params}
    }
    having = {ctx.command_path for command, ctx in EVERY if "import_" in {one.name for one in command.params}}
    assert taking <= having
    assert having - taking == {"foretell recipes", "foretell trace show"}, "traces are made by recipes, too"
    assert set(get_command(app).commands) == set(COMMANDS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.py", "--import nowhere.py: there is no such file"),
        ("nowhere", "--import nowhere cannot be imported: ModuleNotFoundError"),
        ("a,b.py", "must not be empty or contain a comma"),
        ("", "must not be empty or contain a comma"),
    ],
)
def test_what_cannot_be_imported_is_an_error(run: Run, rule: Path, name: str, says: str) -> None:
    assert says in run("recipes", "--import", name, code=2).stderr
    assert not os.environ[VARIABLE]


def test_a_file_that_is_named_twice_is_imported_once(rule: Path) -> None:
    add_plugins([str(rule)])
    first = POLICIES["stop"]["at_once"]
    add_plugins([str(rule), str(rule)])
    assert POLICIES["stop"]["at_once"] is first
    assert os.environ[VARIABLE] == str(rule)
