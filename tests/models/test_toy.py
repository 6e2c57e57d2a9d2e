"""The closed-form model: reproducible to the bit, and surer with every token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretell.errors import ModelError, RequestError
from foretell.models.toy import Toy
from tests.models.checkpoints import a_canvas, a_pass, all_logits


def gaps_while_decoding(toy: Toy, length: int = 24) -> list[float]:
    """The mean gap of the window at every step, filling the surest mask each time."""
    prompt = 1 + a_canvas(rows=1, length=6, vocab=toy.vocab - 1, seed=toy.seed)
    canvas = torch.cat([prompt, torch.zeros(1, length, dtype=torch.long)], dim=1)
    means = []
    for _ in range(length):
        logits = all_logits(toy, a_pass(canvas))[0, 6:]
        logits[:, toy.mask_id] = -1e9
        best = logits.topk(2, dim=1)
        gap = best.values[:, 0] - best.values[:, 1]
        means.append(float(gap.mean()))
        at = int(gap.masked_fill(canvas[0, 6:] != toy.mask_id, -1).argmax())
        canvas[0, 6 + at] = best.indices[at, 0]
    return means


@pytest.mark.parametrize("vocab", [3, 17, 64, 1000])
def test_batches_and_padding_change_no_bit(vocab: int) -> None:
    toy, padding = Toy(vocab=vocab, seed=5), (0, 3, 7)
    canvas = a_canvas(vocab=vocab)
    batch = all_logits(toy, a_pass(canvas, padding))
    for row, pads in enumerate(padding):
        assert torch.equal(batch[row : row + 1, pads:], all_logits(toy, a_pass(canvas[row : row + 1, pads:])))


def test_what_padding_holds_and_what_is_hidden_do_not_matter() -> None:
    toy, canvas = Toy(), a_canvas()
    inputs = a_pass(canvas, (4, 4, 4))
    other = canvas.clone()
    other[:, :4] += 1
    assert torch.equal(all_logits(toy, inputs)[:, 4:], all_logits(toy, inputs._replace(canvas=other))[:, 4:])


@pytest.mark.parametrize("seed", range(4))
def test_gaps_grow_through_every_published_threshold(seed: int) -> None:
    means = gaps_while_decoding(Toy(seed=seed))
    exits = [next(step for step, gap in enumerate(means) if gap >= threshold) for threshold in range(2, 10)]
    assert exits == sorted(exits)
    assert len(set(exits)) >= 7
    assert exits[0] > 0


def test_seed_vocabulary_canvas_and_mask_all_matter() -> None:
    inputs = a_pass(a_canvas(vocab=30))

    def look(toy: Toy) -> Tensor:
        return all_logits(toy, inputs)

    assert torch.equal(look(Toy(30)), look(Toy(30)))
    assert not torch.equal(look(Toy(30)), look(Toy(30, seed=1)))
    assert not torch.equal(look(Toy(30)), look(Toy(30, mask_id=9)))
    assert look(Toy(40)).shape == (3, 12, 40)
    assert len(set(look(Toy(30)).argmax(dim=-1).flatten().tolist())) > 10


def test_the_mask_is_never_favoured() -> None:
    for mask_id in (0, 2):
        favoured = torch.cat([Toy(3, mask_id, seed)(a_pass(a_canvas(vocab=3))).favoured for seed in range(9)])
        assert set(favoured.flatten().tolist()) == {0, 1, 2} - {mask_id}


def test_it_keeps_no_cache_and_checks_its_parameters() -> None:
    with pytest.raises(ModelError, match="has no cache"):
        Toy().new_cache(1, 2)
    with pytest.raises(RequestError, match="at least 3"):
        Toy(vocab=2)
    with pytest.raises(RequestError, match="0 to 63"):
        Toy(mask_id=64)
