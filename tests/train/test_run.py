"""Damaged checkpoints, and two trainings in one folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from foretell.errors import ForetellError, RequestError, StorageError
from foretell.storage import lock_file
from foretell.train import run
from foretell.train.config import TrainRecipe
from foretell.train.log import Log
from foretell.train.run import clear_run
from foretell.train.train import Training, train

Recipes = Callable[..., TrainRecipe]


@pytest.fixture
def trained(recipe: Recipes) -> TrainRecipe:
    done = recipe(steps=8)
    train(done)
    return done


def test_a_second_training_in_the_folder_is_refused(trained: TrainRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 0.1)
    before = {path: path.read_bytes() for path in trained.out.rglob("*") if path.is_file()}
    for lock in (".lock", ".rank-0.lock"):  # of the run, and of a process that a killed run has left
        with (
            lock_file(trained.out / lock, 0),
            pytest.raises(RequestError, match=r"another run is writing to .*out; wait"),
        ):
            train(trained)
    with lock_file(trained.out / ".lock", 0), pytest.raises(RequestError, match="another run is writing to"):
        clear_run(trained)
    assert before == {path: path.read_bytes() for path in before}
    clear_run(trained)
    assert not [path for path in before if path.exists() and "lock" not in path.name]


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "[]", '{"step": "8"}', '{"step": 9}', "{}"])
def test_a_damaged_latest_says_what_to_do(trained: TrainRecipe, content: str) -> None:
    latest = trained.out / "latest.json"
    latest.write_text(content)
    advice = f'write {{"step": 8}} to {latest} to go back to that step, or delete {latest} to start over'
    with pytest.raises(StorageError, match=r"(latest\.json|step-9/rank-0\.pt) is damaged.*" + re.escape(advice)):
        train(trained)
    latest.write_text('{"step": 8}')
    train(trained)


def damage(file: Path, how: str) -> None:
    state = torch.load(file, weights_only=True)
    raw = file.read_bytes()
    if how == "cut":
        file.write_bytes(raw[:-1000])
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "text":
        file.write_text("no checkpoint")
    elif how == "missing":
        file.unlink()
    elif how == "list":
        torch.save([1], file)
    elif how == "step":
        torch.save(state | {"step": 4}, file)
    else:
        torch.save({name: value for name, value in state.items() if name != how}, file)


@pytest.mark.parametrize("how", ["cut", "empty", "text", "missing", "list", "step", "optimiser", "ema"])
def test_a_damaged_checkpoint_says_what_to_do(trained: TrainRecipe, how: str) -> None:
    folder = trained.out / "step-8"
    damage(folder / "rank-0.pt", how)
    advice = f"delete {trained.out / 'latest.json'} to start over"
    with pytest.raises(
        StorageError, match=r"step-8/rank-0\.pt is damaged or of another recipe: .*; " + re.escape(advice)
    ):
        train(trained)
    shutil.copytree(folder, trained.out / "step-4")
    with pytest.raises(StorageError, match=r'; write {"step": 4} to '):
        Training.start(trained, 0)
    (trained.out / "latest.json").unlink()
    train(trained)


def test_an_error_in_one_of_several_processes_is_ours(recipe: Recipes) -> None:
    several = recipe(steps=8, processes=2)
    several.out.mkdir()
    (several.out / "latest.json").write_text("")
    with pytest.raises(StorageError, match=r"latest\.json is damaged or of another recipe: .*is not valid JSON"):
        train(several)


@pytest.mark.parametrize("line", ["{", "3", '{"step": "1"}', "[" * 100_000, '{"step": 1, "loss": 2}', '{"stop": 1}'])
def test_a_damaged_log_is_named(trained: TrainRecipe, line: str) -> None:
    log = trained.out / "log.jsonl"
    first, *_ = log.read_text().splitlines()
    log.write_text(f"{first}\n{line}\n")
    with pytest.raises(StorageError, match=r"log\.jsonl, line 2 is damaged: .*; delete the line to resume the run"):
        train(trained)
    log.write_text(f"{first}\n{line}")
    assert Log(trained, 0, 8).lines() == [json.loads(first)]


@pytest.mark.parametrize("name", ["x" * 300, "/dev/null/out"])
def test_a_folder_that_cannot_be_written_is_named(recipe: Recipes, name: str) -> None:
    chosen = recipe(steps=8)
    object.__setattr__(chosen, "out", Path(name))
    for act in (train, clear_run):
        with pytest.raises(ForetellError, match="cannot write"):
            act(chosen)
