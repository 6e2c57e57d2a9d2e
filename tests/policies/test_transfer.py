"""Transfer policies against the reference decoders' own tables."""

from __future__ import annotations

import pytest
import torch

from foretell.engine.request import Layout, Request
from foretell.loop.protocols import Transfer
from foretell.models.toy import Toy
from foretell.policies.score.deferred import Deferred
from foretell.policies.transfer.quota import Quota
from foretell.policies.transfer.timesteps import Timesteps
from foretell.recipes.recipe import Recipe
from tests import reference
from tests.helpers import model_of, run


def fills(layout: Layout, transfer: Transfer, steps: int, block: int) -> list[int]:
    """How many masks go in each step."""
    _, taken = run(Toy(), [Request((1, 2), layout, Recipe(steps=steps, block_length=block, transfer=transfer))])
    return [int(step.filled.sum()) for step in taken]


@pytest.mark.parametrize(
    ("length", "block", "steps"), [(32, 8, 32), (32, 8, 16), (32, 32, 5), (24, 8, 21), (12, 4, 24)]
)
def test_quota_is_lladas_table(length: int, block: int, steps: int) -> None:
    """With idle steps where a block has more steps than masks; a canvas without masks needs no forward."""
    blocks = length // block
    table = [n for row in reference.llada_fills([block] * blocks, steps // blocks) for n in row]
    while table[-1] == 0:
        table.pop()
    assert fills(Layout(length), Quota(idle=True), steps, block) == table
    assert fills(Layout(length), Quota(), steps, block) == [n for n in table if n]


def test_a_pinned_suffix_leaves_idle_steps() -> None:
    """GSM8K's layout: three pinned tokens at 200-202 leave 3 of block 6's 32 steps without a mask to fill."""
    layout = Layout(256, ((200, 1), (201, 2), (202, 3)))
    table = [n for row in reference.llada_fills([32] * 6 + [29, 32], 32) for n in row]
    idle = fills(layout, Quota(idle=True), 256, 32)
    assert idle == table
    assert idle[192 + 29 : 224] == [0, 0, 0]
    assert fills(layout, Quota(), 256, 32) == [1] * 253


def test_idle_steps_change_no_token() -> None:
    request = Request((1, 2), Layout(16, ((5, 1), (6, 2))), Recipe(block_length=8))
    idle = Request((1, 2), request.layout, Recipe(block_length=8, transfer=Quota(idle=True)))
    (lean, few), (idling, many) = run(model_of("network", 1), [request]), run(model_of("network", 1), [idle])
    assert torch.equal(lean.canvas, idling.canvas)
    assert len(few) == 14
    assert len(many) == 16


@pytest.mark.parametrize(("length", "steps"), [(32, 32), (24, 24), (32, 16), (64, 10), (20, 40)])
def test_timesteps_is_dreams_table(length: int, steps: int) -> None:
    """int(masks * (1 - s / t)) on a linear t from 1 to 1e-3; the last step takes all."""
    t = torch.linspace(1, 1e-3, steps + 1)
    left, table = length, []
    for i in range(steps):
        table.append(int(left * (1 - t[i + 1] / t[i])) if i < steps - 1 else left)
        left -= table[-1]
    while table[-1] == 0:
        table.pop()
    assert fills(Layout(length), Timesteps(), steps, length) == table
    if length == steps:
        assert table[0] == 0
        assert table[-1] == 2


def test_timesteps_by_block() -> None:
    """Each block runs through the whole schedule in its own share of the steps."""
    table = fills(Layout(32), Timesteps(), 32, 16)
    assert table == fills(Layout(16), Timesteps(), 16, 16) * 2


def test_uneven_last_block() -> None:
    assert fills(Layout(20), Quota(), 20, 16) == [1] * 20
    assert fills(Layout(21), Quota(), 7, 8) == [3, 3, 2, 3, 3, 2, 5]


def test_fewer_steps_than_blocks_share_the_window_evenly() -> None:
    assert fills(Layout(64), Quota(), 4, 8) == [16] * 4
    assert fills(Layout(64), Quota(), 1, 8) == [64]


def test_deferred_ends_come_last() -> None:
    """Every proposed end of text waits until nothing else is left in its block."""
    model = model_of("toy", 4, vocab=4)  # three words and a mask: ends are proposed often
    recipe, late = Recipe(block_length=16), Recipe(block_length=16, score=Deferred())
    orders = []
    for one in (recipe, late):
        _, steps = run(model, [Request((1,), Layout(16), one)], end_ids=(2,))
        orders.append([int(step.beliefs.tokens[step.filled]) == 2 for step in steps])
    assert True in orders[0]
    assert orders[0] != orders[1]
    assert orders[1] == sorted(orders[1])
