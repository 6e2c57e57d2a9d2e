"""A random model with a byte-level tokenizer, which can write any text."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from foretell.engine.codec import Codec
from foretell.engine.engine import Engine
from tests.helpers import network

MERGES = ('" :', "t r", "tr u", "tru e", "r e", "re d", "1 2", '" re', 'Ġ "', "a b", "b c", ", Ġ")


def make_codec() -> Codec:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(left, right) for left, right in (pair.split() for pair in MERGES)]
    words = dict.fromkeys(["<mask>", "<end>", *letters, *(left + right for left, right in merges)])
    tokenizer = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<mask>", special=True), AddedToken("<end>", special=True)])
    return Codec(Path("random"), tokenizer, vocab_size=len(words), mask_id=0, end_ids=(1,))


def make_engine(seed: int) -> Engine:
    codec = make_codec()
    return Engine(network(seed, codec.vocab_size, mask_id=0), codec)
