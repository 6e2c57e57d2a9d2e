"""`foretell models`: the bundled models, the families, and the cache of the Hugging Face hub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from foretell.engine.engine import BUNDLED, load
from foretell.models.catalogue import bundled_models, families
from foretell.models.load import FAMILIES
from tests.cli.conftest import Run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


def add(cache: Path, name: str, checkpoint: Path | None, config: dict[str, object] | None = None) -> None:
    """Put a model into the cache as the hub's library does."""
    repo = cache / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "blobs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    if checkpoint is not None:
        shutil.copytree(checkpoint, snapshot, dirs_exist_ok=True)
    if config is not None:
        (snapshot / "config.json").write_text(json.dumps(config))


def test_bundled_models_have_their_true_sizes(run: Run, cache: Path) -> None:
    listed = {one.name: one for one in bundled_models()}
    assert set(listed) == {path.parent.name for path in BUNDLED.glob("*/config.json")}
    assert listed["tiny"].parameters == load("tiny").size
    shown = run("models").stdout
    for one in listed.values():
        assert f"{one.name} " in shown
        assert one.about.split()[0] in shown
    assert "2.0M parameters, 4 MB" in shown


def test_families_say_what_they_were_checked_against(run: Run, cache: Path) -> None:
    shown = " ".join(run("models").stdout.split())
    assert {one.name for one in families()} == {*FAMILIES, "masked LM"}
    for one in families():
        assert one.models in shown
        assert f"Checked: {one.checked}" in shown


def test_the_cache(run: Run, cache: Path, checkpoint: Path) -> None:
    assert "downloads it" in run("models").stdout
    add(cache, "lab/works", checkpoint)
    add(cache, "lab/masked", None, {"architectures": ["BertForMaskedLM"], "model_type": "bert"})
    add(cache, "lab/causal", checkpoint, {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    lines = {line.split()[0]: line for line in run("models").stdout.splitlines() if line.startswith("lab/")}
    assert lines["lab/works"].rstrip().endswith(" MB, llada")
    assert lines["lab/masked"].rstrip().endswith("masked LM, without weights as safetensors")
    assert lines["lab/causal"].rstrip().endswith("not supported")
