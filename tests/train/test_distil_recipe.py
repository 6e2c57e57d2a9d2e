"""Distilling from the outside: recipes that are refused, models that fit, the command and the student it writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import foretell
from foretell.cli.app import app
from foretell.engine.codec import Codec
from foretell.errors import ForetellError, ModelError
from foretell.tasks import TASKS
from foretell.train.accuracy import measure_accuracy
from foretell.train.batches import ChatEncoder, Encoder
from foretell.train.config import DistilRecipe, Round
from foretell.train.distil import load_network
from tests.conftest import TINY

Recipes = Callable[..., DistilRecipe]


def test_a_held_out_problem_is_decoded_in_the_students_steps(checkpoint: Path) -> None:
    model, encoder = load_network(checkpoint), ChatEncoder(Codec.load(checkpoint), 1.0)
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    for steps, expected in ((None, 24), (6, 6)):
        passes.clear()
        measure_accuracy(model, encoder, TASKS["sudoku"], 2, np.random.default_rng(0), steps)
        assert len(passes) == expected
    assert [Round(tokens, 1).budget(24) for tokens in (0.25, 1, 2, 100)] == [24, 12, 6, 1]


def test_prompts_are_the_chat_templates(checkpoint: Path) -> None:
    ours = Encoder(foretell.load("tiny").codec.tokenizer)
    theirs = ChatEncoder(Codec.load(checkpoint), 1.0)
    assert theirs.prompt("Tom has 3 boxes") == ours.prompt("Tom has 3 boxes")
    assert (theirs.eos, theirs.mask) == (ours.eos, ours.mask)
    bare = ChatEncoder(replace(Codec.load(checkpoint), template=None), 1.0)
    assert bare.prompt("Tom has 3 boxes") == ours.prompt("Tom has 3 boxes")[1:-1]


def test_other_families_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "Dream"}))
    with pytest.raises(ModelError, match="of the dream family; only LLaDA checkpoints"):
        load_network(tmp_path)
    config.write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]}))
    with pytest.raises(ModelError, match="a Hugging Face masked LM"):
        load_network(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"direction": "revers"}, "unknown direction 'revers'; did you mean 'reverse'"),
        ({"rounds": []}, "at least one round, got none"),
        ({"rounds": [[0, 8]]}, "tokens of a teacher's step must be at least 0.01, got 0"),
        ({"rounds": [[1, 2.5]]}, r"'rounds\[0\]\[1\]' must be a whole number, got 2\.5"),
        ({"rounds": [[1, 6]]}, r"multiple of average_every \(4\), got 6"),
        ({"rounds": [1, 8]}, r"out\.toml"),
        ({"rate": -1.0}, r"rate must be at least 0, got -1\.0"),
        ({"ema": 1.5}, r"ema must be from 0 to 1, got 1\.5"),
        ({"clip": "x"}, r"out\.toml: 'clip' must be a number, got 'x'"),
        ({"processes": 0}, "processes must be at least 1, got 0"),
        ({"pace": [[0, 1.0], [50, 0.0]]}, "share of a round in the pace must be from 0 to 1, got 50"),
        ({"pace": [[1, 1.0], [0, 1.0]]}, "must rise"),
        ({"rows": {"sudoku": 0, "countdown": 4}}, "rows of 'sudoku' must be at least 1, got 0"),
        ({"mix": {}}, "at least one task"),
        ({"steps": 8}, "unknown key 'steps'"),
        ({"model": "tinny"}, "did you mean 'tiny'"),
    ],
)
def test_a_recipe_is_refused_when_it_is_read(distil_recipe: Recipes, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ForetellError, match=message):
        distil_recipe(**settings)


def test_a_model_may_be_bundled_or_beside_the_recipe(distil_recipe: Recipes, checkpoint: Path, tmp_path: Path) -> None:
    assert distil_recipe(model="tiny").model == TINY
    shutil.copytree(checkpoint, tmp_path / "beside")
    assert distil_recipe(model="beside").model == tmp_path / "beside"


def test_the_command_writes_a_student_that_decodes(
    distil_file: Callable[..., Path], checkpoint: Path, tmp_path: Path
) -> None:
    file, student = distil_file(rate=3e-3), tmp_path / "student"
    runner = CliRunner()
    done = runner.invoke(app, ["distil", str(file), "--export", str(student)])
    assert done.exit_code == 0, done.output
    assert "step 8/8" in done.stdout
    texts = [foretell.load(each).generate("0130", max_new_tokens=8).tokens for each in (checkpoint, student)]
    assert [len(tokens) for tokens in texts] == [8, 8]
    before, after = (load_network(each).head.weight for each in (checkpoint, student))
    assert not torch.allclose(before, after, atol=1e-3)
    again = runner.invoke(app, ["distil", str(file)])
    assert "step 8/8" not in again.stdout
    assert "step 8/8" in runner.invoke(app, ["distil", str(file), "--fresh"]).stdout


def test_a_student_never_overwrites_its_teacher(distil_file: Callable[..., Path], checkpoint: Path) -> None:
    done = CliRunner().invoke(app, ["distil", str(distil_file()), "--export", str(checkpoint)])
    assert done.exit_code == 2
    assert "the teacher's own folder" in done.output
    assert "cannot read the recipe" in CliRunner().invoke(app, ["distil", "nowhere.toml"]).output
