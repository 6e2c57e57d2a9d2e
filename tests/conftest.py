"""Settings and folders that every test may use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import foretell
from foretell.models.llada import save_llada
from foretell.models.transformer import Transformer, TransformerConfig

torch.set_num_threads(1)  # small tensors are slower with more

TINY = Path(foretell.__file__).parent / "models" / "tiny"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaDA checkpoint folder with the bundled tokenizer and small random weights."""
    folder = tmp_path_factory.mktemp("models") / "random"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(TINY / name, folder)
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=126, mask_id=3, dim=32, layers=2, heads=2, kv_heads=2, hidden=48))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    save_llada(model, folder, eos_token_id=2, pad_token_id=2, max_sequence_length=256)
    return folder
