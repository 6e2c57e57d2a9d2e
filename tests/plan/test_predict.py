"""Rooflines against hand-computed numbers, and dry runs against the passes of a real decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretell.engine.request import Layout, Request, lay_out
from foretell.errors import ContextLengthError, RequestError
from foretell.loop.decode import decode
from foretell.loop.wrappers import Shifted
from foretell.models.transformer import TransformerConfig
from foretell.plan.devices import DEVICES, Device, device_named, own_device
from foretell.plan.passes import Pass, PassRecorder, dry_run
from foretell.plan.predict import Prediction, predict
from foretell.plan.roofline import Bound, Roofline
from foretell.plan.shapes import ModelShape, find_shape
from foretell.recipes.presets import parse
from tests.helpers import network

CONFIG = TransformerConfig(100, 0, dim=8, layers=2, heads=2, kv_heads=1, hidden=16, context=64)
SHAPE = ModelShape("small", CONFIG, lambda model: model)
DEVICE = Device("test", half=1e6, single=1e5, bandwidth=1e4, memory=1e6, source="")
# Per layer: q and out 2 * 8 * 8, k and v 2 * 8 * 4, and three matrices of 8 x 16.
LAYERS = 2 * (128 + 64 + 384)


def planned(recipe: str, **changes: object) -> Prediction:
    given = {"rows": 2, "prompt": 4, "window": 8, "answer": 2} | changes
    return predict(SHAPE, DEVICE, torch.bfloat16, parse(recipe), **given)  # type: ignore[arg-type]


def test_a_pass_by_hand() -> None:
    roofline = Roofline(SHAPE, DEVICE, torch.bfloat16)
    one = Pass(rows=3, columns=5, attended=5, stored=False, whole=True, read=7)
    flops = 2 * LAYERS * 15 + 4 * 2 * 8 * 15 * 5 + 2 * 800 * 7
    traffic = 2 * (LAYERS + 800)
    assert roofline.bound(one) == Bound(flops / 1e6, traffic / 1e4, traffic / 1e4)
    cached = Pass(rows=3, columns=2, attended=12, stored=True, whole=False)
    assert roofline.traffic(cached) == 2 * (LAYERS + 3 * 12 * 2 * 2 * 4)
    assert roofline.flops(cached) == 2 * LAYERS * 6 + 4 * 2 * 8 * 6 * 12
    single = Roofline(SHAPE, DEVICE, torch.float32)
    assert single.bound(one).arithmetic == flops / 1e5
    assert single.traffic(one) == 2 * traffic
    fast = replace(one, rows=300)
    assert roofline.bound(fast).seconds == roofline.bound(fast).arithmetic > roofline.bound(fast).bandwidth
    assert roofline.total([one, fast]) == roofline.bound(one) + roofline.bound(fast)


def test_full_computes_everything_at_every_step() -> None:
    steps = dry_run(parse("full block_length=4"), prompt=4, window=8, answer=0)
    assert [len(step) for step in steps] == [1] * 8
    # Only the masks of the block are read; the last step reads its last mask.
    assert [step[0].read for step in steps] == [4, 3, 2, 1] * 2
    assert {(one.columns, one.attended, one.whole, one.stored) for (one,) in steps} == {(12, 12, True, False)}


def test_a_stopping_rule_adds_what_it_reads_and_settles_when_told() -> None:
    steps = dry_run(parse("prophet block_length=4"), prompt=4, window=8, answer=2, steps=3)
    assert len(steps) == 3
    # The block's masks and the answer; the last step commits all six masks, of which five have been read.
    assert [step[0].read for step in steps] == [6, 5, 6]
    assert len(dry_run(parse("prophet block_length=4"), 4, 8, 2)) == 8


def test_a_dual_cache_computes_the_block_and_the_answer() -> None:
    steps = dry_run(parse("dual block_length=4 stop=prophet"), prompt=4, window=8, answer=2)
    sizes = [[(one.columns, one.attended, one.whole) for one in step] for step in steps]
    assert sizes[0] == sizes[4] == [(12, 12, True)]
    assert sizes[1] == [(6, 12, False)]
    assert sizes[5] == [(4, 12, False)]  # the answer lies in the second block
    shifted = dry_run(parse("dual block_length=4 stop=prophet"), 4, 8, 2, wrap=Shifted)
    assert [(one.columns, one.whole) for one in shifted[1]] == [(8, False)]  # the columns before both parts as well


@pytest.mark.parametrize(("tokens", "steps"), [(1.0, 16), (2.0, 8), (3.2, 5), (16.0, 1)])
def test_a_parallel_transfer_fills_what_it_is_told(tokens: float, steps: int) -> None:
    assert len(dry_run(parse("threshold block_length=16"), 4, 16, 0, tokens)) == steps


@pytest.mark.parametrize(
    "recipe", ["full", "prefix block_length=8", "dual block_length=8 steps=8", "delayed", "random"]
)
def test_a_dry_run_has_the_passes_of_a_real_model(recipe: str) -> None:
    how = parse(recipe)
    recorder = PassRecorder(network(1))
    state = lay_out([Request((5,) * 6, Layout(16), how)], recorder.mask_id)
    real = tuple(recorder.take() for _ in decode(recorder, state, how))
    assert dry_run(how, 6, 16, 0) == real


def test_a_region_in_the_text_is_planned_as_a_fixed_one() -> None:
    sought = "prophet region=delimiter('answer is')"
    assert dry_run(parse(sought), 4, 8, 2) == dry_run(parse("prophet"), 4, 8, 2)


def test_predictions_add_up() -> None:
    found = planned("dual block_length=4")
    assert [(one.name, one.count, one.columns) for one in found.kinds] == [
        ("whole text", 2, 12),
        ("part of the window", 6, 4),
    ]
    assert found.steps == 8
    assert found.request.seconds == pytest.approx(sum(one.count * one.bound.seconds for one in found.kinds))
    assert found.step.seconds == pytest.approx(found.request.seconds / 8)
    assert found.requests_per_second == pytest.approx(2 / found.request.seconds)


def test_memory_counts_stored_keys_only_with_a_cache() -> None:
    plain, cached = planned("full").memory, planned("dual").memory
    working = 12 * (6 * 8 + 3 * 16) + 2 * 64 * 100
    assert plain.weights == 2 * SHAPE.parameters
    assert (plain.stored, plain.working) == (0, 2 * 2 * working)
    assert cached.stored == 2 * 2 * (2 * 2 * 4 * 12)
    assert cached.total == cached.weights + cached.stored + cached.working
    fit = planned("dual").rows_fit
    assert fit == (1_000_000 - plain.weights) // (2 * (working + 2 * 2 * 4 * 12))
    nothing = replace(DEVICE, memory=10.0)
    small = predict(SHAPE, nothing, torch.bfloat16, parse("full"), rows=1, prompt=4, window=8, answer=0)
    assert small.rows_fit == 0


def test_more_rows_help_until_arithmetic_decides() -> None:
    llada, h100 = find_shape("llada-8b"), device_named("h100")

    def useful(recipe: str, prompt: int) -> int:
        how = parse(recipe)
        return predict(
            llada, h100, torch.bfloat16, how, rows=4, prompt=prompt, window=32, answer=0, tokens_per_step=1
        ).rows_useful

    # Weights in bfloat16 are read as fast as about 295 columns are multiplied by them on this device.
    assert useful("full", prompt=480) == 1
    assert useful("full", prompt=32) == 8  # 4 rows have 256 columns
    assert useful("dual", prompt=32) > useful("full", prompt=32)


def test_llada_by_hand_on_an_h100() -> None:
    llada, h100, full = find_shape("llada-8b"), device_named("H100"), parse("full")
    found = predict(llada, h100, torch.bfloat16, full, rows=1, prompt=128, window=256, answer=5)
    assert found.step.bandwidth == pytest.approx((6_979_321_856 + 517_996_544) * 2 / 3.35e12)
    trunk = 2 * 6_979_321_856 * 384 + 4 * 32 * 4096 * 384 * 384
    assert found.step.arithmetic == pytest.approx((trunk + 2 * 517_996_544 * 16.5) / 989e12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": 0}, "batch must be at least 1"),
        ({"window": 0}, "window must be at least 1"),
        ({"prompt": -1}, "prompt must be at least 0"),
        ({"answer": 9}, "answer must be from 0 to 8"),
        ({"tokens_per_step": 2.0}, "tokens per step are for parallel transfers"),
        ({"steps": 3}, "no stopping rule"),
    ],
)
def test_impossible_plans_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        planned("full", **changes)


def test_a_text_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ContextLengthError, match="a prompt of 60 tokens and a window of 8 exceed the context of 64"):
        planned("full", prompt=60)


def test_devices() -> None:
    assert device_named("RTX 4090") is DEVICES["rtx-4090"]
    assert all(one.source and one.half > one.single for one in DEVICES.values())
    own = own_device(100, 1000, None)
    assert (own.half, own.single, own.bandwidth, own.memory) == (1e14, 1e14, 1e12, None)
    with pytest.raises(RequestError, match=r"unknown device 'h10'; did you mean 'h100'.*--tflops and --bandwidth"):
        device_named("h10")
    with pytest.raises(RequestError, match="--bandwidth is missing"):
        own_device(100, None, None)
    with pytest.raises(RequestError, match="--tflops must be from 1e-06"):
        own_device(-1, 1000, None)
