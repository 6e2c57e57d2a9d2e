"""Training: it learns, it can be killed and goes on as if nothing had happened, its model loads."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from foretell.errors import ForetellError, RecipeError
from foretell.models.load import load_model
from foretell.models.transformer import Attention, Transformer, TransformerConfig
from foretell.train.accuracy import measure_accuracy
from foretell.train.batches import Encoder, generate_batches
from foretell.train.config import TrainRecipe
from foretell.train.run import clear_run, write_model
from foretell.train.train import Training, compute_loss, initialise, rate_factor, train

Recipes = Callable[..., TrainRecipe]
COMMAND = [sys.executable, "-c", "from foretell.cli import main; main()", "train"]


def log_of(recipe: TrainRecipe) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (recipe.out / "log.jsonl").read_text().splitlines()]


def test_swapping_numbers_is_learned_in_a_minute(tmp_path: Path, recipe: Recipes) -> None:
    numbers = np.random.default_rng(0).integers(1, 100, (3000, 2)).tolist()
    lines = (json.dumps({"prompt": f"{a},{b}", "response": f"{b},{a}"}) for a, b in numbers)
    (tmp_path / "swap.jsonl").write_text("\n".join(lines))
    chosen = recipe(
        steps=500, log_every=50, save_every=250, test_every=500, test_rows=200, average_every=10,
        mix={"swap": 1.0}, rows={"swap": 32},
        pairs=[{"file": "swap.jsonl", "name": "swap", "window": 6, "block": 6}],
    )  # fmt: skip
    train(chosen)
    *_, loss, tested = log_of(chosen)
    assert loss["loss"]["swap"] < 0.1
    assert tested["accuracy"]["swap"] > 0.95


def test_a_killed_run_goes_on_with_the_same_losses(write: Callable[..., Path]) -> None:
    whole, cut = (write(out=name, steps=64, processes=2) for name in ("whole", "cut"))
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    subprocess.run([*COMMAND, whole], check=True, **quiet)
    killed = subprocess.Popen([*COMMAND, cut], start_new_session=True, **quiet)
    log = cut.parent / "cut" / "log.jsonl"
    while not (log.is_file() and '"step": 20' in log.read_text()):
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    saved = json.loads((cut.parent / "cut" / "latest.json").read_text())["step"]
    assert 16 <= saved < 64
    subprocess.run([*COMMAND, cut], check=True, **quiet)
    assert log_of(TrainRecipe.read(cut)) == log_of(TrainRecipe.read(whole))


def test_a_killed_process_is_named(recipe: Recipes) -> None:
    chosen = recipe(steps=100_000, processes=2)

    def kill_one() -> None:
        while not (chosen.out / "latest.json").is_file():
            time.sleep(0.01)
        multiprocessing.active_children()[0].kill()

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    with pytest.raises(ForetellError, match=r"worker \d of 2 \(pid \d+\) was killed by signal 9") as error:
        train(chosen)
    killer.join()
    assert f"the last checkpoint is kept in {chosen.out}: run the same command again to resume" in str(error.value)
    assert not multiprocessing.active_children()


def test_a_finished_run_is_not_run_again(recipe: Recipes) -> None:
    chosen = recipe()
    train(chosen)
    before = log_of(chosen)
    train(chosen)
    assert log_of(chosen) == before
    clear_run(chosen)
    assert Training.start(chosen, 0).step == 0


def test_batches_are_a_function_of_the_step(recipe: Recipes) -> None:
    chosen = recipe()
    encoder = Encoder(Tokenizer.from_file(str(chosen.model / "tokenizer.json")))
    stream = generate_batches(chosen, encoder, 0, 0)
    early = [next(stream) for _ in range(21)]
    late = next(generate_batches(chosen, encoder, 0, 20))
    assert late[0] == early[20][0]
    assert torch.equal(late[1].inputs.canvas, early[20][1].inputs.canvas)
    other = next(generate_batches(chosen, encoder, 1, 20))
    assert other[0] != late[0] or not torch.equal(other[1].inputs.canvas, late[1].inputs.canvas)


def test_the_mix_changes_in_the_course_of_a_run(recipe: Recipes) -> None:
    later = [{"start": 16, "mix": {"sums": 1.0}}]
    chosen = recipe(later=later, rows={"sudoku": 4, "countdown": 4, "sums": 4})
    encoder = Encoder(Tokenizer.from_file(str(chosen.model / "tokenizer.json")))
    stream = generate_batches(chosen, encoder, 0, 0)
    names = [next(stream)[0] for _ in range(20)]
    assert set(names[:16]) == {"sudoku", "countdown"}
    assert set(names[16:]) == {"sums"}
    assert chosen.phase(16).masking == chosen.masking
    assert chosen.names == ("sudoku", "countdown", "sums")


def test_a_rows_share_of_the_loss_is_independent_of_what_is_hidden(recipe: Recipes) -> None:
    chosen = recipe(mix={"sudoku": 1.0}, eos_weight=1.0)
    encoder = Encoder(Tokenizer.from_file(str(chosen.model / "tokenizer.json")), chosen.eos_weight)
    batch = next(generate_batches(chosen, encoder, 0, 0))[1]
    shares = torch.zeros(4).index_add_(0, batch.row, batch.weight)
    assert torch.allclose(shares, torch.full((4,), 0.25))
    hidden = batch.inputs.canvas[:, -24:] == encoder.mask
    assert hidden.sum() == len(batch.target)


def test_the_loss_is_the_cross_entropy_of_hidden_tokens(recipe: Recipes) -> None:
    chosen = recipe(mix={"countdown": 1.0})
    encoder = Encoder(Tokenizer.from_file(str(chosen.model / "tokenizer.json")))
    batch = next(generate_batches(chosen, encoder, 0, 0))[1]
    model = Training.start(chosen, 0).model
    logits = model(batch.inputs)(batch.row, batch.at).log_softmax(-1)
    by_hand = sum(-logits[i, t] * w for i, (t, w) in enumerate(zip(batch.target, batch.weight, strict=True)))
    assert torch.allclose(compute_loss(model, batch), torch.as_tensor(by_hand))


def test_the_learning_rate_rises_and_falls_to_zero(recipe: Recipes) -> None:
    rates = [rate_factor(step, recipe(steps=100)) for step in range(101)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[2:51] == [1.0] * 49
    assert rates[75] == pytest.approx(0.5)
    assert rates[100] == 0.0


def test_the_learning_rate_follows_the_points(recipe: Recipes) -> None:
    chosen = recipe(steps=100, pace=[[0, 1.0], [50, 0.5], [100, 0.0]])
    assert [rate_factor(step, chosen) for step in (0, 25, 50, 75, 100)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_a_fresh_network_hands_on_what_it_looks_at() -> None:
    model = Transformer(TransformerConfig(50, 0, dim=32, layers=1, heads=4, kv_heads=2, hidden=64))
    initialise(model, seed=0)
    attention = cast("Attention", model.blocks[0].attn)
    x = torch.randn(1, 32)
    values = attention.v(x).view(1, 2, 8).repeat_interleave(2, 1).flatten(1)
    handed = attention.out(values)
    assert torch.cosine_similarity(handed, x).item() > 0.5


def test_the_written_model_is_half_as_large_and_gives_the_same_logits(tmp_path: Path, recipe: Recipes) -> None:
    chosen = recipe()
    train(chosen)
    write_model(Training.start(chosen, 0), tmp_path / "model")
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        assert "model.transformer.blocks.1.ff_proj.weight" in file.keys()  # noqa: SIM118
        assert file.get_tensor("model.transformer.ff_out.weight").dtype == torch.float16
    encoder = Encoder(Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json")))
    batch = next(generate_batches(chosen, encoder, 0, 0))[1]
    loaded = load_model(tmp_path / "model", dtype="float32")
    ours = Training.start(chosen, 0).ema
    with torch.no_grad():
        theirs, own = (model(batch.inputs)(batch.row, batch.at) for model in (loaded, ours))
    assert torch.allclose(theirs, own, atol=0.02)


def test_accuracy_counts_right_answers(recipe: Recipes) -> None:
    chosen = recipe()
    encoder = Encoder(Tokenizer.from_file(str(chosen.model / "tokenizer.json")))
    model = Training.start(chosen, 0).model
    assert measure_accuracy(model, encoder, chosen.tasks["countdown"], 3, np.random.default_rng(0)) == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mix": {"sudko": 1.0}}, "did you mean 'sudoku'"),
        ({"mix": {"word": 1.0}}, "no number of rows"),
        ({"save_every": 6}, "multiple of log_every"),
        ({"pace": [[5, 1.0], [0, 1.0]]}, "must rise"),
        ({"stepps": 6}, "did you mean 'steps'"),
        ({"masking": {"aimd": 1}}, r"out\.toml: .*`aimd` in 'masking'"),
        ({"masking": 3}, r"'masking' must be an object, got 3"),
        ({"rows": {"sudoku": "4"}}, r"'rows\[\.\.\.\]' must be a whole number, got a text"),
        ({"later": [{"start": 4, "mix": {"sudoku": 1.0}, "masking": 3}]}, "must be an object"),
        ({"later": [{"start": 4}]}, r"'mix' is missing in 'later\[0\]'"),
    ],
)
def test_a_recipe_is_refused_when_it_is_read(recipe: Recipes, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(**settings)
