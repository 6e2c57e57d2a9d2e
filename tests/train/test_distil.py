"""Distillation: the targets of the student, that it learns them, and that a run can be interrupted."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from foretell.engine.engine import load
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Inputs, Readout
from foretell.models.llada import save_llada
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.train.batches import Batch, ChatEncoder, build_inputs, generate_batches
from foretell.train.config import DistilRecipe
from foretell.train.distil import Distillation, compute_log_probs, compute_targets, distil, divergence

Recipes = Callable[..., DistilRecipe]
MASK, VOCABULARY = 3, 8


@pytest.fixture
def sensitive(tmp_path: Path, checkpoint: Path) -> Path:
    """A teacher whose mind is changed by what it sees, smoothly enough that the change can be learned."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=126, mask_id=3, dim=32, layers=2, heads=2, kv_heads=2, hidden=48))
    with torch.no_grad():
        model.head.weight.mul_(4.0)
        for name, weight in model.named_parameters():
            if "attn.v" in name or "attn.out" in name:
                weight.mul_(3.0)
    folder = shutil.copytree(checkpoint, tmp_path / "sensitive")
    save_llada(model, folder, eos_token_id=2)
    return folder


def log_of(recipe: DistilRecipe) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (recipe.out / "log.jsonl").read_text().splitlines()]


def weights_of(run: Distillation) -> Tensor:
    return torch.nn.utils.parameters_to_vector(run.ema.parameters())


@dataclass
class Counting:
    """A denoiser whose belief is a function of the masks left in a row, and which remembers what it was shown."""

    loved: int | None = None  # a token that it would always say
    shown: list[Tensor] = field(default_factory=list)
    mask_id: int = MASK

    def __call__(self, inputs: Inputs) -> Readout:
        self.shown.append(inputs.canvas.clone())
        left = (inputs.canvas == MASK).sum(1)  # [b]

        def read(row: Tensor, at: Tensor) -> Tensor:
            logits = torch.arange(VOCABULARY) * left[row, None] / 50.0
            return logits if self.loved is None else logits.index_fill(1, torch.tensor([self.loved]), 50.0)

        return read

    def new_cache(self, batch: int, length: int) -> KVStore:
        raise AssertionError


def hidden_batch(rows: int, window: int, hidden: int) -> Batch:
    """Rows with a prompt of three tokens, the first `hidden` of the window masked."""
    tokens = np.where(np.arange(window) < hidden, MASK, 5)
    inputs = build_inputs([[1, 4, 6]] * rows, np.tile(tokens, (rows, 1)), pad=2)
    row, at = torch.arange(rows).repeat_interleave(hidden), torch.arange(hidden).repeat(rows)
    return Batch(inputs, row, at, torch.full_like(row, 5), torch.full((rows * hidden,), 1 / (rows * hidden)))


def believed(left: int) -> Tensor:
    """`Counting`'s log-probabilities with this number of masks left, without the mask's own."""
    logits = torch.arange(VOCABULARY) * left / 50.0
    return logits.index_fill(0, torch.tensor([MASK]), -torch.inf).log_softmax(0)


def test_a_token_takes_its_target_from_the_step_that_reveals_it_or_from_the_last() -> None:
    teacher, batch = Counting(), hidden_batch(rows=6, window=10, hidden=8)
    wanted = compute_targets(teacher, batch, 0.3, torch.Generator().manual_seed(0)).view(6, 8, VOCABULARY)
    first, second = (shown[:, -10:-2] for shown in teacher.shown)  # the last two of the window are not hidden
    assert bool((first == MASK).all())
    kept = [i for i in range(VOCABULARY) if i != MASK]
    counts = []
    for row in range(6):
        revealed = second[row] != MASK
        counts.append(int(revealed.sum()))
        for at in range(8):
            left = 8 if revealed[at] else 8 - counts[-1]
            assert torch.allclose(wanted[row, at, kept], believed(left)[kept], atol=1e-5)
    assert len(set(counts)) > 1
    assert 0 < sum(counts) < 48


def test_prompts_are_those_of_the_engine(checkpoint: Path, literate: Path) -> None:
    for folder in (checkpoint, literate):
        engine = load(folder)
        expected = engine.request("Tom has 3 apples.", engine.template(max_new_tokens=8)).prompt
        assert tuple(ChatEncoder(engine.codec, 1.0).prompt("Tom has 3 apples.")) == expected


def test_a_teacher_needs_no_output_for_the_mask() -> None:
    batch = hidden_batch(rows=2, window=10, hidden=8)
    found = compute_log_probs(
        Counting(mask_id=VOCABULARY), batch, batch.inputs.canvas, torch.ones_like(batch.row).bool()
    )
    assert torch.allclose(found, (torch.arange(VOCABULARY) * 8 / 50.0).log_softmax(0).expand(16, -1))


def test_masks_are_revealed_as_the_linear_schedule_says() -> None:
    teacher, batch = Counting(), hidden_batch(rows=500, window=10, hidden=8)
    compute_targets(teacher, batch, 0.2, torch.Generator().manual_seed(0))
    share = (teacher.shown[1][:, -10:-2] != MASK).float().mean().item()
    assert share == pytest.approx(0.2 / 0.8, abs=0.02)
    teacher = Counting()
    compute_targets(teacher, batch, 0.8, torch.Generator().manual_seed(0))  # from t = 0.8 to 0
    assert MASK not in teacher.shown[1]


def test_revealed_tokens_are_drawn_from_the_teacher() -> None:
    teacher, batch = Counting(), hidden_batch(rows=1000, window=4, hidden=4)
    compute_targets(teacher, batch, 1.0, torch.Generator().manual_seed(0))
    seen = torch.bincount(teacher.shown[1][:, -4:].flatten(), minlength=VOCABULARY) / 4000
    assert torch.allclose(seen, believed(4).exp(), atol=0.02)


def test_the_mask_is_never_a_target() -> None:
    teacher, batch = Counting(loved=MASK), hidden_batch(rows=20, window=6, hidden=6)
    wanted = compute_targets(teacher, batch, 1.0, torch.Generator().manual_seed(0)).exp()
    assert wanted[:, MASK].max() == 0.0
    assert torch.allclose(wanted.sum(-1), torch.ones(120))
    assert MASK not in teacher.shown[1]


def test_only_hidden_positions_of_the_response_are_touched_and_counted(distil_recipe: Recipes) -> None:
    chosen = distil_recipe(mix={"choice": 1.0}, rows={"choice": 4})
    run = Distillation.start(chosen, 0)
    encoder = run.encoder()
    batch = next(generate_batches(chosen, encoder, 0, 0))[1]
    prompt = batch.inputs.canvas.shape[1] - 32
    masked = batch.inputs.canvas == encoder.mask
    assert not masked[:, :prompt].any()
    assert masked.sum() == len(batch.row)
    teacher = Counting()
    compute_targets(teacher, batch, 0.5, torch.Generator().manual_seed(0))
    changed = teacher.shown[0] != teacher.shown[1]
    assert changed.any()
    assert not (changed & ~masked).any()
    assert torch.equal(teacher.shown[0], batch.inputs.canvas)
    shares = torch.zeros(4).index_add_(0, batch.row, batch.weight)
    assert torch.allclose(shares, torch.full((4,), 1 / 4))


def test_both_directions_by_hand() -> None:
    student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    reverse, forward = (divergence(student, teacher, way).item() for way in ("reverse", "forward"))
    assert reverse == pytest.approx(0.5 * log(0.5 / 0.9) + 0.5 * log(0.5 / 0.1))
    assert forward == pytest.approx(0.9 * log(0.9 / 0.5) + 0.1 * log(0.1 / 0.5))


def test_a_student_begins_as_its_teacher(distil_recipe: Recipes) -> None:
    run = Distillation.start(distil_recipe(rounds=[[0.01, 8]]), 0)  # so slow that two steps reveal next to nothing
    batch = next(generate_batches(run.recipe, run.encoder(), 0, 0))[1]
    assert run.advance(batch) == pytest.approx(0.0, abs=1e-3)
    assert Distillation.start(distil_recipe(rounds=[[8, 8]]), 0).advance(batch) > 0.01


def distance(run: Distillation, student: Transformer, held: list[Batch], dt: float) -> float:
    """From what two steps of the teacher say, on batches and draws that stay the same."""
    total = 0.0
    for index, batch in enumerate(held):
        wanted = compute_targets(run.teacher, batch, dt, torch.Generator().manual_seed(index))
        with torch.no_grad():
            predicted = compute_log_probs(
                student, batch, batch.inputs.canvas, torch.ones_like(batch.row, dtype=torch.bool)
            )
        total += float((divergence(predicted, wanted, "reverse") * batch.weight).sum())
    return total / len(held)


def test_the_student_comes_closer_to_two_steps_of_its_teacher(distil_recipe: Recipes, sensitive: Path) -> None:
    chosen = distil_recipe(
        model=str(sensitive), rounds=[[6, 60]], rate=3e-3, pace=[[0, 1], [0.5, 1], [1, 0]], average_every=5,
        mix={"sudoku": 1.0}, rows={"sudoku": 8},
    )  # fmt: skip
    run = Distillation.start(chosen, 0)
    unseen = generate_batches(chosen, run.encoder(), 7, 0)  # another process's
    held = [next(unseen)[1] for _ in range(8)]
    assert distance(run, run.model, held, 6 / 24) > 0.08
    stream = generate_batches(chosen, run.encoder(), 0, 0)
    while run.step < chosen.steps:
        run.advance(next(stream)[1])
    assert distance(run, run.ema, held, 6 / 24) < 0.067


def test_an_interrupted_run_goes_on_with_the_same_losses(
    distil_recipe: Recipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = [[2, 12], [4, 12]]
    whole, cut = (distil_recipe(out=name, rounds=rounds, test_every=8, test_rows=1) for name in ("whole", "cut"))
    distil(whole)
    advance = Distillation.advance
    for last in (6, 18):  # inside either round, after a checkpoint

        def until(run: Distillation, batch: Batch, last: int = last) -> float:
            if run.step == last:
                raise KeyboardInterrupt
            return advance(run, batch)

        with monkeypatch.context() as patch:
            patch.setattr(Distillation, "advance", until)
            with pytest.raises(KeyboardInterrupt):
                distil(cut)
    distil(cut)
    assert log_of(cut) == log_of(whole)
    assert torch.equal(*(weights_of(Distillation.start(each, 0)) for each in (cut, whole)))
    before = log_of(cut)
    distil(cut)
    assert log_of(cut) == before


def test_a_round_begins_with_the_last_ones_student(distil_recipe: Recipes) -> None:
    run = Distillation.start(distil_recipe(rounds=[[4, 8], [8, 8]]), 0)
    stream = generate_batches(run.recipe, run.encoder(), 0, 0)
    first = run.teacher.head.weight.clone()
    while run.step < 7:
        run.advance(next(stream)[1])
        assert torch.equal(run.teacher.head.weight, first)
    window = run.recipe.tasks["sudoku"].window
    assert (run.age, run.budget(run.recipe.tasks["sudoku"])) == (7, window // 8)
    run.advance(next(stream)[1])
    assert not torch.equal(run.teacher.head.weight, first)
    for network_ in (run.teacher, run.model):
        assert torch.equal(network_.head.weight, run.ema.head.weight)
    assert not run.optimiser.state_dict()["state"]
    run.advance(next(stream)[1])
    assert (run.age, run.budget(run.recipe.tasks["sudoku"])) == (1, round(window / 16))
    assert not torch.equal(run.model.head.weight, run.teacher.head.weight)


def outcome(recipe: DistilRecipe) -> Tensor:
    run = Distillation.start(recipe, 0)
    stream = generate_batches(recipe, run.encoder(), 0, 0)
    while run.step < recipe.steps:
        run.advance(next(stream)[1])
    return weights_of(run)


def test_every_setting_changes_the_student(distil_recipe: Recipes) -> None:
    usual = outcome(distil_recipe(rounds=[[4, 4]]))
    assert torch.equal(usual, outcome(distil_recipe(rounds=[[4, 4]])))
    changes: list[dict[str, Any]] = [
        {"direction": "forward"},
        {"rate": 1e-3},
        {"pace": [[0, 1.0], [1, 0.0]]},
        {"rounds": [[8, 4]]},
        {"clip": 0.01},
        {"ema": 0.01},
        {"average_every": 2},
        {"second_beta": 0.9},
        {"weight_decay": 0.5},
        {"eos_weight": 0.1},
        {"seed": 1},
        {"masking": {"decoding": 1.0}},
        {"mix": {"sudoku": 0.1, "countdown": 0.9}},
        {"rows": {"sudoku": 3, "countdown": 4}},
    ]
    for change in changes:
        assert not torch.equal(usual, outcome(distil_recipe(**{"rounds": [[4, 4]]} | change))), change


def test_each_process_draws_its_own(distil_recipe: Recipes) -> None:
    chosen = distil_recipe()
    start, copied = pickle.loads(pickle.dumps((Distillation.start, chosen)))  # as another process gets them
    assert copied == chosen
    runs = [start(chosen, rank) for rank in (0, 0, 1)]
    batch = next(generate_batches(chosen, runs[0].encoder(), 0, 0))[1]
    first, same, other = (run.advance(batch) for run in runs)
    assert first == same != other
