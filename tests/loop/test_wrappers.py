"""Shifted, Guided and Suppressed against the same thing done by hand."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foretell.errors import ModelError, RequestError
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Denoiser, Inputs
from foretell.loop.wrappers import Guided, PairKV, Shifted, Suppressed
from foretell.models.load import load_model
from foretell.models.toy import Toy
from tests.models.checkpoints import a_canvas, a_pass, all_logits, write_llada


@dataclass(frozen=True, slots=True)
class Table:
    """Logits that do not depend on the canvas: one shared tensor, the column's number times 100 plus the token."""

    logits: Tensor  # [L, V]
    mask_id: int = 0

    def __call__(self, inputs: Inputs) -> Asked:
        return Asked(self.logits, inputs.columns.gather(1, inputs.wanted))

    def new_cache(self, batch: int, length: int) -> KVStore:
        raise ModelError("none")


@dataclass(frozen=True, slots=True)
class Asked:
    logits: Tensor
    columns: Tensor

    def __call__(self, row: Tensor, at: Tensor) -> Tensor:
        return self.logits[self.columns[row, at][0]].expand(1, -1)  # a view into the shared tensor


def table(length: int = 6, vocab: int = 5) -> Table:
    return Table(100.0 * torch.arange(length)[:, None] + torch.arange(vocab))


@pytest.fixture
def model(tmp_path: Path) -> Denoiser:
    return load_model(write_llada(tmp_path))


def columns_read(model: Denoiser, inputs: Inputs, row: int) -> list[int]:
    readout = model(inputs)
    asked = range(inputs.wanted.shape[1])
    return [int(readout(torch.tensor([row]), torch.tensor([at]))[0, 0]) // 100 for at in asked]


def test_shifted_reads_the_column_before_of_the_same_text() -> None:
    inputs = a_pass(torch.ones(2, 6, dtype=torch.long), (0, 3))
    assert columns_read(Shifted(table()), inputs, 0) == [0, 0, 1, 2, 3, 4]
    assert columns_read(Shifted(table()), inputs, 1)[3:] == [3, 3, 4]


def test_shifted_without_a_cache_attends_only_to_what_was_to_be_computed(model: Denoiser) -> None:
    inputs = a_pass(a_canvas(rows=1))
    columns = torch.tensor([[0, 1, 2, 3, 8, 9]])  # column 7, which predicts 8, is not among them
    part = inputs._replace(columns=columns, wanted=torch.tensor([[3, 4]]))
    hidden = inputs.attend.clone()
    hidden[0, [4, 5, 6, 7, 10, 11]] = False
    whole = all_logits(Shifted(model), inputs._replace(attend=hidden))
    torch.testing.assert_close(all_logits(Shifted(model), part), whole[:, [3, 8]])


def test_shifted_with_a_cache_computes_only_what_is_lacking(model: Denoiser) -> None:
    @dataclass(frozen=True, slots=True)
    class Spy:
        widths: list[int]
        mask_id: int = 49

        def __call__(self, inputs: Inputs) -> object:
            self.widths.append(inputs.columns.shape[1])
            return model(inputs)

        def new_cache(self, batch: int, length: int) -> KVStore:
            return model.new_cache(batch, length)

    spy = Spy([])
    shifted = Shifted(spy)  # type: ignore[arg-type]
    inputs = a_pass(a_canvas())
    cache = shifted.new_cache(3, 12)
    full = all_logits(shifted, inputs._replace(cache=cache))
    columns = torch.tensor([[4, 5, 6], [2, 6, 9], [0, 1, 2]])  # lacking: one, three, none
    part = inputs._replace(columns=columns, wanted=torch.arange(3).expand(3, 3), cache=cache)
    torch.testing.assert_close(all_logits(shifted, part), full[torch.arange(3)[:, None], columns], atol=1e-5, rtol=0)
    block = inputs._replace(columns=inputs.columns[:, 4:8], wanted=torch.arange(4).expand(3, 4), cache=cache)
    all_logits(shifted, block)
    assert spy.widths == [12, 6, 5]


def test_shifted_leaves_out_the_column_before_what_nobody_reads(model: Denoiser) -> None:
    inputs = a_pass(a_canvas())
    cache = model.new_cache(3, 12)
    plain = all_logits(model, inputs._replace(cache=cache))
    block = inputs._replace(columns=inputs.columns[:, 4:8], wanted=torch.arange(4).expand(3, 4), cache=cache)
    for first, expected in ((False, [4, 4, 5, 6]), (True, [3, 4, 5, 6])):
        read = torch.tensor([first, False, True, True]).expand(3, 4)  # the second one's source is there anyway
        found = all_logits(Shifted(model), block._replace(read=read))
        torch.testing.assert_close(found, plain[:, expected], atol=1e-5, rtol=0)


def test_guided_is_the_formula(model: Denoiser) -> None:
    inputs = a_pass(a_canvas(), (0, 3, 2), prompt=5)
    blind = inputs.canvas.clone()
    blind[:, :5] = model.mask_id
    told, unconditional = all_logits(model, inputs), all_logits(model, inputs._replace(canvas=blind))
    kept = inputs.canvas.clone()
    for scale in (0.5, 2.0):
        torch.testing.assert_close(
            all_logits(Guided(model, scale), inputs), unconditional + (scale + 1) * (told - unconditional)
        )
    assert torch.equal(all_logits(Guided(model, 0.0), inputs), told)
    assert torch.equal(inputs.canvas, kept), "the canvas belongs to the caller"
    assert not torch.allclose(told, unconditional)


def test_guided_masks_pinned_tokens_where_it_is_told_to(model: Denoiser) -> None:
    pinned = torch.zeros(3, 7, dtype=torch.bool)
    pinned[0, 2] = pinned[2, 6] = True
    inputs = a_pass(a_canvas(), prompt=5)._replace(pinned=pinned)
    blind = inputs.canvas.clone()
    blind[:, :5] = blind[0, 7] = blind[2, 11] = model.mask_id
    told, unconditional = all_logits(model, inputs), all_logits(model, inputs._replace(canvas=blind))
    torch.testing.assert_close(
        all_logits(Guided(model, 2.0, pins=True), inputs), unconditional + 3.0 * (told - unconditional)
    )
    assert not torch.allclose(all_logits(Guided(model, 2.0), inputs), all_logits(Guided(model, 2.0, pins=True), inputs))


@pytest.mark.parametrize("wrap", [lambda m: Guided(Shifted(m), 1.5), lambda m: Shifted(Guided(m, 1.5))])
def test_guided_keeps_a_pair_of_caches(model: Denoiser, wrap: type) -> None:
    guided: Denoiser = wrap(model)
    inputs = a_pass(a_canvas(), prompt=5)
    plain = all_logits(guided, inputs)
    cache = guided.new_cache(3, 12)
    assert isinstance(cache, PairKV)
    torch.testing.assert_close(all_logits(guided, inputs._replace(cache=cache)), plain, atol=1e-4, rtol=0)
    rows = torch.tensor([2, 0])
    some = a_pass(inputs.canvas[rows], prompt=5)
    part = some._replace(columns=some.columns[:, 6:9], wanted=torch.arange(3).expand(2, 3))

    def check(store: KVStore) -> None:
        torch.testing.assert_close(all_logits(guided, part._replace(cache=store)), plain[rows, 6:9], atol=1e-4, rtol=0)

    with torch.inference_mode():
        check(cache.view(rows))
        cache.keep([2, 0])
        check(cache.view(None))
        cache.grow(4, 15)
        cache.trim(3)
        check(cache.view(torch.tensor([0, 1])))


def test_guided_refuses_another_models_cache(model: Denoiser) -> None:
    with pytest.raises(ModelError, match="DenseKV"):
        Guided(model, 1.0)(a_pass(a_canvas())._replace(cache=model.new_cache(3, 12)))


def test_suppressed_bans_tokens_and_leaves_the_models_tensor_alone() -> None:
    inner = table()
    before = inner.logits.clone()
    inputs = a_pass(torch.ones(1, 6, dtype=torch.long))
    banned = Suppressed(inner, (1, 3))(inputs)(torch.tensor([0]), torch.tensor([2]))
    assert banned.tolist() == [[200.0, -inf, 202.0, -inf, 204.0]]
    doubled = Guided(inner, 1.0)(inputs)(torch.tensor([0]), torch.tensor([2]))
    assert doubled.tolist() == [[200.0, 201.0, 202.0, 203.0, 204.0]]
    assert torch.equal(inner.logits, before)
    assert Suppressed(inner, ())(inputs)(torch.tensor([0]), torch.tensor([2])).isfinite().all()


def test_wrappers_nest_in_any_order(model: Denoiser) -> None:
    inputs = a_pass(a_canvas(), prompt=5)
    inside, outside = Guided(Suppressed(model, (7,)), 2.0), Suppressed(Guided(model, 2.0), (7,))
    assert torch.equal(all_logits(inside, inputs), all_logits(outside, inputs))
    assert (all_logits(inside, inputs)[..., 7] == -inf).all()
    assert Suppressed(Shifted(inside), ()).mask_id == model.mask_id == 49


def test_values_out_of_range() -> None:
    for scale in (-1.0, inf, nan):
        with pytest.raises(RequestError, match="guidance scale"):
            Guided(Toy(), scale)
    with pytest.raises(RequestError, match="0 or above"):
        Suppressed(Toy(), (-1,))
    with pytest.raises(RequestError, match="suppressed token 64 is outside the vocabulary of 64"):
        all_logits(Suppressed(Toy(vocab=64), (64,)), a_pass(a_canvas()))
