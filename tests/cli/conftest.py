"""A small random checkpoint in LLaDA's format, with the bundled tokenizer, and a runner in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from foretell.cli.app import app
from foretell.engine.engine import BUNDLED
from foretell.models.llada import save_llada
from foretell.models.transformer import Transformer, TransformerConfig

Run = Callable[..., Result]
MASK = 3
END = 2
WORDS = "Tom has 3 boxes with 4 apples each ."
LAYOUTS = {
    "default": "word",
    "layouts": {"word": {"max_new_tokens": 24, "block_length": 8, "suffix": "The answer is", "answer_length": 2}},
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "random"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(BUNDLED / "tiny" / name, folder / name)
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    torch.manual_seed(2)
    model = Transformer(TransformerConfig(size, MASK, dim=32, layers=1, heads=2, kv_heads=2, hidden=64))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:  # wide enough that drafts change, and that gaps reach the thresholds
                weight.normal_(0, 1.6 if name == "head.weight" else 0.8)
    save_llada(model, folder, eos_token_id=END)
    (folder / "foretell.json").write_text(json.dumps(LAYOUTS))
    return folder


@pytest.fixture
def run(run_once: Run) -> Run:
    return run_once


@pytest.fixture(scope="session")
def run_once() -> Run:
    """Return a runner of commands, also for fixtures that several tests share."""
    runner = CliRunner()

    def invoke(*words: str | Path, stdin: str | bytes | None = None, code: int = 0) -> Result:
        result = runner.invoke(app, [str(word) for word in words], input=stdin)
        assert result.exit_code == code, result.output
        return result

    return invoke
