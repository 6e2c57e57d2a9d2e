"""The network's key-value store, its dtypes, and its independence of padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretell.loop.parts import KVStore
from foretell.loop.protocols import Denoiser
from foretell.models.load import load_model
from foretell.models.transformer import DenseKV
from tests.models.checkpoints import a_canvas, a_pass, all_logits, write_dream, write_llada

WRITERS = [write_llada, write_dream]


@pytest.fixture(params=WRITERS, ids=["llada", "dream"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Denoiser:
    return load_model(request.param(tmp_path))


def test_all_columns_through_a_cache_are_the_pass_without_one(model: Denoiser) -> None:
    inputs = a_pass(a_canvas(), (0, 3, 7))
    plain = all_logits(model, inputs)
    cached = all_logits(model, inputs._replace(cache=model.new_cache(*inputs.canvas.shape)))
    torch.testing.assert_close(cached[inputs.attend], plain[inputs.attend], atol=1e-5, rtol=0)


def test_a_part_of_an_unchanged_canvas_has_the_same_logits(model: Denoiser) -> None:
    inputs = a_pass(a_canvas(), (0, 3, 7))
    cache = model.new_cache(*inputs.canvas.shape)
    plain = all_logits(model, inputs._replace(cache=cache))
    columns = torch.tensor([[4, 5, 6, 11], [4, 7, 8, 9], [7, 8, 9, 10]])  # with gaps, and at the start of a text
    part = inputs._replace(columns=columns, wanted=torch.tensor([[0, 3], [1, 2], [0, 1]]), cache=cache)
    wanted = columns.gather(1, part.wanted)
    torch.testing.assert_close(all_logits(model, part), plain[torch.arange(3)[:, None], wanted], atol=1e-5, rtol=0)


def test_a_part_of_a_changed_canvas_sees_the_change(model: Denoiser) -> None:
    inputs = a_pass(a_canvas(rows=1))
    cache = model.new_cache(1, 12)
    before = all_logits(model, inputs._replace(cache=cache))
    canvas = inputs.canvas.clone()
    canvas[0, 6] += 1
    part = inputs._replace(canvas=canvas, columns=torch.tensor([[6, 7]]), wanted=torch.tensor([[0, 1]]), cache=cache)
    assert not torch.allclose(all_logits(model, part), before[:, 6:8], atol=1e-3)


@torch.inference_mode()
def test_rows_and_columns_come_and_go(model: Denoiser) -> None:
    """What is left of a store answers as if nothing had happened."""
    inputs = a_pass(a_canvas())
    cache = model.new_cache(3, 12)
    full = all_logits(model, inputs._replace(cache=cache))
    rows = torch.tensor([2, 0])
    some = a_pass(inputs.canvas[rows])
    part = some._replace(columns=some.columns[:, 5:8], wanted=torch.arange(3).expand(2, 3))

    def check(store: KVStore, blank: int = 0) -> None:
        pad = torch.nn.functional.pad
        asked = part._replace(
            canvas=pad(some.canvas, (blank, 0)),
            positions=pad(some.positions, (blank, 0)),
            attend=pad(some.attend, (blank, 0), value=False),
            columns=part.columns + blank,
            cache=store,
        )
        torch.testing.assert_close(all_logits(model, asked), full[rows, 5:8], atol=1e-5, rtol=0)

    check(cache.view(rows))
    cache.keep([2, 0])
    check(cache.view(None))
    cache.grow(5, 12)  # more rows than ever
    check(cache.view(torch.tensor([0, 1])))
    cache.keep([0, 1])
    cache.grow(2, 16)  # more columns than ever: four blank ones before every row
    check(cache.view(None), blank=4)
    cache.trim(3)
    check(cache.view(None), blank=1)
    cache.grow(2, 16)
    check(cache.view(None), blank=4)


@torch.inference_mode()
def test_nothing_of_a_row_that_left_is_there_for_the_next() -> None:
    """Masked values count zero times, and zero times nan is nan."""
    keys = torch.full((1, 3, 1, 4, 2), torch.nan)
    store = DenseKV(keys, keys.clone())
    keys[:, 1], store.values[:, 1] = 1.0, 1.0
    store.keep([1])
    store.trim(2)
    place = store.keys.data_ptr()
    store.grow(3, 4)
    assert store.keys.data_ptr() == place, "there was room"
    for part in (store.keys, store.values):
        assert part[0, :, 0, :, 0].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]


@torch.inference_mode()
def test_room_is_made_for_more_than_one_at_a_time() -> None:
    store = DenseKV(torch.zeros(1, 2, 1, 4, 2), torch.zeros(1, 2, 1, 4, 2))
    moves = set()
    for rows in range(2, 33):
        store.grow(rows, 4 + rows)
        moves.add(store.keys.data_ptr())
    assert (store.rows, store.columns) == (32, 36)
    assert len(moves) <= 5


def test_padding_and_batch_mates_do_not_matter(model: Denoiser) -> None:
    canvas, padding = a_canvas(), (0, 3, 7)
    batch = all_logits(model, a_pass(canvas, padding))
    for row, pads in enumerate(padding):
        alone = all_logits(model, a_pass(canvas[row : row + 1, pads:]))
        torch.testing.assert_close(batch[row : row + 1, pads:], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_runs_and_is_near(tmp_path: Path, dtype: str) -> None:
    folder = write_llada(tmp_path)
    inputs = a_pass(a_canvas())
    exact = all_logits(load_model(folder), inputs)
    model = load_model(folder, dtype=dtype)
    rough = all_logits(model, inputs._replace(cache=model.new_cache(3, 12)))
    assert rough.dtype == getattr(torch, dtype)
    assert 0 < (rough.float() - exact).abs().max() < 0.3
