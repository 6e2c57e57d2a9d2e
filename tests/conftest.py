"""Settings and folders that every test may use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import foretell
from foretell.models.dream import DREAM
from foretell.models.family import Family
from foretell.models.llada import LLADA, save_llada
from foretell.models.transformer import Transformer, TransformerConfig
from tests.models.checkpoints import write_dream

torch.set_num_threads(1)  # small tensors are slower with more
settings.register_profile("fixed", derandomize=True)  # the same examples every time; `make explore` draws others
settings.register_profile("explore", print_blob=True)
settings.load_profile("fixed")

TINY = Path(foretell.__file__).parent / "checkpoints" / "tiny"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaDA checkpoint folder with the bundled tokenizer and small random weights."""
    folder = tmp_path_factory.mktemp("models") / "random"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(TINY / name, folder)
    save_llada(_network(126, mask_id=3), folder, eos_token_id=2, pad_token_id=2, max_sequence_length=256)
    return folder


@pytest.fixture(scope="session")
def literate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaDA checkpoint with small random weights whose tokenizer, a byte-level BPE, reads any text."""
    folder = tmp_path_factory.mktemp("models") / "literate"
    ids = _save_tokenizer(folder, LLADA)
    end, mask = ids["<|endoftext|>"], ids["<|mdm_mask|>"]
    save_llada(_network(len(ids), mask), folder, eos_token_id=end, pad_token_id=end, max_sequence_length=4096)
    return folder


@pytest.fixture(scope="session")
def literate_dream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in Dream's format."""
    folder = tmp_path_factory.mktemp("models") / "literate-dream"
    ids = _save_tokenizer(folder, DREAM)
    end, mask = ids["<|endoftext|>"], ids["<|mask|>"]
    return write_dream(folder, vocab_size=len(ids), eos_token_id=end, pad_token_id=end, mask_token_id=mask)


def _save_tokenizer(folder: Path, family: Family) -> dict[str, int]:
    """Write a byte-level BPE that knows the family's special tokens, and return its vocabulary."""
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([" The answer is A B C D 7\n", "The answer is"] * 3, trainer)
    tokenizer.add_special_tokens(sorted(family.special))
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer.get_vocab()


def _network(vocabulary: int, mask_id: int) -> Transformer:
    """Random, and sure enough of itself that a gap is worth a look."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocabulary, mask_id, dim=32, layers=2, heads=2, kv_heads=2, hidden=48))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return model
