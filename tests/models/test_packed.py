"""Packed matrices: the same products, where they pay and where there is memory, and the same tokens in every batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretell
from foretell.errors import ModelError, RequestError
from foretell.evaluation.benchmarks.bundled import BUNDLED
from foretell.models import packed
from foretell.models.memory import available_memory
from foretell.models.packed import PackedLinear, pack_weights, packed_share
from foretell.models.transformer import Transformer, TransformerConfig
from tests.helpers import HAS_ONEDNN, logits_of, network

pytestmark = pytest.mark.skipif(not HAS_ONEDNN, reason="torch has no oneDNN here")
CANVAS = [5, 6, 7, 8, 0, 0, 0, 0]
LARGE, SMALL = 512, 256  # widths of networks whose matrices are, and are not, worth packing


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU on which packing pays, and memory without end."""
    monkeypatch.setattr(packed, "_measure_speedup", lambda _: 2.0)
    monkeypatch.setattr(packed, "available_memory", lambda: 1 << 60)


def wide(width: int, **changes: Any) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(1024, 0, dim=width, layers=1, heads=4, kv_heads=1, hidden=width, **changes)
    return Transformer(config).requires_grad_(False).eval()


def packed_parts(model: nn.Module) -> set[str]:
    return {name for name, part in model.named_modules() if isinstance(part, PackedLinear)}


@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"qkv_bias": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_packed_network_has_the_same_logits(changes: dict[str, Any], dtype: torch.dtype) -> None:
    model = wide(64, **changes).to(dtype)
    for name, bias in model.named_parameters():
        if name.endswith("bias"):
            bias.copy_(torch.randn_like(bias))
    before, size = logits_of(model, CANVAS, 4), sum(one.numel() for one in model.parameters())
    try:
        pack_weights(model, True)
    except ModelError:
        assert dtype == torch.bfloat16, "float32 works wherever oneDNN is"
        pytest.skip("this CPU has no bfloat16")
    assert len(packed_parts(model)) == 8
    assert sum(one.numel() for one in model.parameters()) == size
    after = logits_of(model, CANVAS, 4)
    assert before.std() > 0.1
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.05)


def test_an_original_stays_only_where_its_rows_are_read() -> None:
    for model, kept in ((wide(64), set()), (wide(64, tied=True), {"head"})):
        pack_weights(model, True)
        there = {name for name in packed_parts(model) if not model.get_submodule(name).weight.is_meta}
        assert there == kept
        assert not model.embed.weight.is_meta


def test_half_precision_keeps_the_head_for_exact_gaps() -> None:
    model = wide(64).bfloat16()
    plain = model.head
    packed._replace(model, model, "head") if _packs(torch.bfloat16) else pytest.skip("this CPU has no bfloat16")
    assert model.head is not plain
    assert model.head.weight is plain.weight


def _packs(dtype: torch.dtype) -> bool:
    try:
        packed._pack(torch.ones(4, 4, dtype=dtype))
    except RuntimeError:
        return False
    return True


@pytest.mark.usefixtures("plenty")
def test_small_matrices_stay_as_they_are() -> None:
    model = wide(LARGE)
    pack_weights(model, None)
    grouped = {"blocks.0.attn.k", "blocks.0.attn.v"}  # a quarter of the others' size
    assert (
        packed_parts(model) == {name for name, part in model.named_modules() if isinstance(part, nn.Linear)} - grouped
    )
    assert packed_share(model) == 1 - 2 / 4 / (2 + 2 + 3 + 2 / 4), "in units of 512 x 512"
    model = wide(SMALL)
    pack_weights(model, None)
    assert packed_parts(model) == {"head"}
    assert packed_share(network(0)) == 0


@pytest.mark.usefixtures("plenty")
def test_a_slow_cpu_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_measure_speedup", lambda _: 0.99)
    model = wide(LARGE)
    pack_weights(model, None)
    assert packed_share(model) == 0
    pack_weights(model, True)
    assert packed_share(model) == 1


@pytest.mark.usefixtures("plenty")
@pytest.mark.parametrize(
    ("free", "expected"), [(None, set()), (0, set()), (1, {"head"}), (2, {"head", "blocks.0.gate"})]
)
def test_memory_limits_what_is_packed(free: int | None, expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every copy takes what it takes until only the reserve is left; the largest matrices come first."""
    model = wide(LARGE)
    size = model.head.weight.nbytes
    left = None if free is None else packed.RESERVE + (free > 0) * size + (free > 1) * size // 2

    def available() -> int | None:
        taken = sum(part.matrix.numel() * 4 for part in model.modules() if isinstance(part, PackedLinear))
        return None if left is None else left - taken

    monkeypatch.setattr(packed, "available_memory", available)
    pack_weights(model, None)
    assert packed_parts(model) == expected


def test_the_trial_is_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that is wrong or refused makes the network a plain one, or an error if packing was asked for."""
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    torch.set_num_threads(2)
    assert packed._measure_speedup(torch.ones(1)) > 0
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)  # as in all other tests
    assert torch.equal(torch.rand(1), expected)
    with pytest.raises(ModelError, match=r"oneDNN cannot pack torch.float64 here: "):
        pack_weights(network(0), True)
    multiply = packed._multiply
    monkeypatch.setattr(packed, "_multiply", lambda *each: multiply(*each) * 1.01)
    model = wide(LARGE)
    with pytest.raises(ModelError, match=r"packed products are wrong on this CPU, by 0.01"):
        pack_weights(model, True)
    pack_weights(model, None)
    assert packed_share(model) == 0


def test_elsewhere_the_network_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="for a CPU; the weights are on meta"):
        pack_weights(wide(LARGE).to("meta"), True)
    with pytest.raises(ModelError, match="networks with linear layers; Linear has none inside"):
        pack_weights(nn.Linear(2, 2), True)
    pack_weights(nn.Linear(2, 2), None)
    assert packed_share(nn.Linear(2, 2)) == 0
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = wide(LARGE)
    pack_weights(model, None)
    assert packed_share(model) == 0
    with pytest.raises(ModelError, match="oneDNN, which this build of torch does not have"):
        pack_weights(model, True)


@pytest.mark.usefixtures("plenty")
def test_layers_that_multiply_in_their_own_way_stay() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = nn.Sequential(nn.Linear(4, 4), Doubled(4, 4)).requires_grad_(False)
    before = model(torch.ones(1, 4))
    pack_weights(model, True)
    assert [type(part) for part in model] == [PackedLinear, Doubled]
    assert packed_share(model) == 1, "of the layers that can be packed"
    torch.testing.assert_close(model(torch.ones(1, 4)), before)


def test_an_engine_says_what_it_packed(checkpoint: Path) -> None:
    plain, forced = foretell.load(checkpoint), foretell.load(checkpoint, packed=True)
    assert plain.packed == 0
    assert forced.packed == 1
    assert (plain.size, plain.dtype, plain.device) == (forced.size, forced.dtype, forced.device)
    said, expected = (
        one.describe().partition(" used")[0] for one in (forced, plain)
    )  # then: free memory, which varies
    assert said == expected.replace("thread)", "thread), 100% packed")
    for recipe in ("full", "prophet", "fast-dllm"):
        asked: Any = {"max_new_tokens": 8, "recipe": recipe}
        assert forced.generate("Tom has 3 pens.", **asked).tokens == plain.generate("Tom has 3 pens.", **asked).tokens


def test_the_bundled_model_decodes_the_same() -> None:
    """A trained model, with caches, alone and in a batch whose rows leave one by one."""
    plain, forced = (foretell.load("tiny", packed=choice) for choice in (None, True))
    assert (plain.packed, forced.packed) == (0, 1)
    prompts: Any = [one.prompt for one in BUNDLED["word"].examples(None, 3, 0)]
    recipe = "threshold cache=dual stop_at_eos=true"
    expected = [one.tokens for one in plain.generate(prompts, recipe=recipe)]
    assert [one.tokens for one in forced.generate(prompts, recipe=recipe)] == expected
    assert [forced.generate(one, recipe=recipe).tokens for one in prompts] == expected


@pytest.mark.parametrize("other", [{"compile": True}, {"quantize": "int8"}], ids=str)
def test_packed_excludes_other_products(
    checkpoint: Path, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.engine.engine.check_quantize", lambda _: None)
    monkeypatch.setattr("foretell.engine.engine.quantize_weights", lambda _: None)
    monkeypatch.setattr("foretell.engine.engine.compile_blocks", lambda _: None)
    with pytest.raises(RequestError, match="packed=True cannot be combined with compile or quantize"):
        foretell.load(checkpoint, packed=True, **other)
    monkeypatch.setattr(packed, "LEAST", 0)
    assert foretell.load(checkpoint, **other).packed == 0


@pytest.mark.usefixtures("plenty")
def test_load_packs_by_itself_unless_told_not_to(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LEAST", 1000)
    assert foretell.load(checkpoint).packed == 1
    assert foretell.load(checkpoint, packed=False).packed == 0


def test_available_memory_is_the_systems_and_the_containers(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\nHugePages_Total:       0\n")
    assert available_memory(tmp_path) == 5000 * 1024
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text("max\n")
    (folder / "memory.current").write_text("1000000\n")
    assert available_memory(tmp_path) == 5000 * 1024
    (folder / "memory.max").write_text("3000000\n")
    assert available_memory(tmp_path) == 2_000_000
    (folder / "memory.stat").write_text("anon 5\nfile 7\ninactive_file 300000\nactive_file 20000\n")
    assert available_memory(tmp_path) == 2_320_000
    older = folder / "memory"
    older.mkdir()
    (older / "memory.limit_in_bytes").write_text("1000000\n")
    (older / "memory.usage_in_bytes").write_text("1000001\n")
    assert available_memory(tmp_path) == 0
