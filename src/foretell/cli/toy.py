"""An engine around the closed-form model, with a vocabulary of plain words: a demonstration without weights."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from foretell.engine.codec import Codec
from foretell.engine.engine import Engine
from foretell.models.toy import Toy

SUFFIX = "and so it is"
_WORDS = (
    "<mask> <end> what where who is on the hill does river go lives by sea and so it stone cloud tree wind bird "
    "lake field wolf star moon rain snow leaf road house light fire night day song boat bridge garden window door hand "
    "old new small wide deep slow quiet bright runs sings falls rests turns opens grows waits near under over with"
)


def toy_engine(seed: int = 10) -> Engine:
    words = _WORDS.split()
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    codec = Codec(folder=Path("toy"), tokenizer=tokenizer, mask_id=0, end_ids=(1,))
    return Engine(Toy(vocab=len(words), mask_id=0, seed=seed), codec)
