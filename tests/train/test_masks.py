"""Hidden sets: exact counts, orders that a decoder could follow, cuts where something must be worked out."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.train.masks import Masking, cut_at_hard_token, draw_counts, draw_order, select_latest, weigh_by_nearness

LEVEL = np.array([1, 1, 0, 2, 2, 0, 3, 3, 0, 4])
ROWS = np.tile(LEVEL, (64, 1))
FREE = np.ones_like(ROWS, dtype=bool)


def test_counts_are_one_in_each_stratum() -> None:
    sizes = np.full(50, 100)
    drawn = np.sort(draw_counts(np.random.default_rng(0), sizes))
    assert all(2 * i <= count <= 2 * i + 2 for i, count in enumerate(drawn))
    assert drawn.min() >= 1


def test_latest_hides_exactly_the_count() -> None:
    keys = np.random.default_rng(0).random((5, 9))
    assert select_latest(keys, np.array([1, 2, 5, 8, 9])).sum(1).tolist() == [1, 2, 5, 8, 9]


def test_pinned_tokens_are_never_hidden_and_something_always_is() -> None:
    free = FREE.copy()
    free[:, 5] = False
    for decoding in (0.0, 0.5, 1.0):
        hidden, _ = Masking(decoding).draw(np.random.default_rng(1), ROWS, free, block=5)
        assert not hidden[:, 5].any()
        assert hidden.any(1).all()


def test_a_decoder_fills_blocks_in_order() -> None:
    hidden, _ = Masking(decoding=1.0).draw(np.random.default_rng(2), ROWS, FREE, block=5)
    started = ~hidden[:, 5:].all(1)
    assert started.any()
    assert not hidden[started][:, :5].any()


def test_uniform_masks_ignore_blocks() -> None:
    hidden, _ = Masking(decoding=0.0).draw(np.random.default_rng(2), ROWS, FREE, block=5)
    started = ~hidden[:, 5:].all(1)
    assert hidden[started][:, :5].any()


def test_an_aimed_cut_starts_at_a_token_that_must_be_worked_out() -> None:
    rng = np.random.default_rng(3)
    keys = draw_order(rng, ROWS, block=10)
    hidden = cut_at_hard_token(rng, keys, ROWS, FREE, fallback=FREE)
    first = np.argmin(np.where(hidden, keys, np.inf), axis=1)
    assert (LEVEL[first] >= 2).all()
    assert len(set(hidden.sum(1))) > 3


def test_rows_without_work_fall_back() -> None:
    easy = np.zeros_like(ROWS)
    fallback = np.random.default_rng(0).random(ROWS.shape) < 0.5
    rng = np.random.default_rng(4)
    assert (cut_at_hard_token(rng, rng.random(ROWS.shape), easy, FREE, fallback) == fallback).all()


def test_weights_are_alike_unless_the_loss_has_a_focus() -> None:
    _, weight = Masking(decoding=1.0).draw(np.random.default_rng(0), ROWS, FREE, block=5)
    assert (weight == 1).all()


def test_a_focus_fades_from_the_next_token_on() -> None:
    keys = np.array([[5.0, 1.0, 3.0, 2.0, 4.0]])
    hidden = np.array([[True, False, True, False, True]])
    weight = weigh_by_nearness(keys, hidden, focus=2.0)[0]
    assert weight[2] == 1.0 > weight[4] > weight[0] > 0.1


def test_uniform_rows_have_no_focus() -> None:
    _, weight = Masking(decoding=0.0, focus=1.0).draw(np.random.default_rng(0), ROWS, FREE, block=5)
    assert (weight == 1).all()


@pytest.mark.parametrize("name", ["decoding", "aimed"])
def test_each_share_changes_the_masks(name: str) -> None:
    low, high = (
        Masking(**{"decoding": 1.0, name: share}).draw(np.random.default_rng(5), ROWS, FREE, block=5)[0]
        for share in (0.0, 1.0)
    )
    assert (low != high).any()
