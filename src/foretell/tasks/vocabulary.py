"""The bundled model's tokenizer: words and single digits; numbers always have two digits.

A single digit is encoded with a leading zero ("4" becomes the tokens 0 4) and decoded without it, so that a number
never moves the tokens after it. Rows of four digits, as in Sudoku, stay unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from foretell.storage import make_folder, write_file
from foretell.tasks import TASKS

UNKNOWN, START, EOS, MASK, EOT = "<unk>", "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|eot_id|>"
SPECIALS = (UNKNOWN, START, EOS, MASK, "<|start_header_id|>", "<|end_header_id|>", EOT)
DIGITS = "0123456789"
# Operators with blanks around them occur in chains of thought, bare ones in Countdown. They are different tokens, so
# that decoding restores the exact text.
SPLIT = r" [-+*=] | \.|\n|[0-9]|[A-Za-z]+|[^\sA-Za-z0-9]"
CHAT_TEMPLATE = (
    "{{ '<|startoftext|>' }}{% for message in messages %}{{ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
)


def list_words(texts: Iterable[str]) -> list[str]:
    """Return every token of the texts except digits, sorted: the order is part of the checkpoint."""
    return sorted({token for text in texts for token in re.findall(SPLIT, text)} - set(DIGITS))


def build_tokenizer() -> Tokenizer:
    vocabulary = [*SPECIALS, *DIGITS, *list_words(text for task in TASKS.values() for text in task.texts)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(f"(?<![0-9]){digit}(?![0-9])"), f"0{digit}") for digit in DIGITS]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.Split(Regex("^ +$"), "removed")]
    )
    tokenizer.decoder = build_decoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def build_decoder() -> decoders.Decoder:
    """Return a decoder that joins tokens with blanks, then removes the blanks and zeros that the text did not have."""
    rules = (
        (r" ?\n ?", "\n"),
        (r"(?<=[0-9]) (?=[0-9])", ""),
        (r"(?<![0-9])0(?=[0-9](?![0-9]))", ""),
        (r"(?<! ) (?=[.?)])", ""),
        (r"(?<! ) (?=[-+=,] (?! ))", ""),
        (r"(?<=[^ ][-+=,]) (?! )", ""),
        (r"  +", " "),
    )
    joined = decoders.WordPiece(prefix="##", cleanup=False)
    return decoders.Sequence([joined, decoders.Fuse(), *(decoders.Replace(Regex(old), new) for old, new in rules)])


def write_tokenizer(folder: Path) -> Tokenizer:
    """Write the tokenizer files, which `transformers` and `tokenizers` can load, and return the tokenizer."""
    tokenizer = build_tokenizer()
    make_folder(folder)
    write_file(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    special = {"bos_token": START, "eos_token": EOS, "pad_token": EOS, "unk_token": UNKNOWN, "mask_token": MASK}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 256,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        **special,
    }
    write_file(folder / "tokenizer_config.json", json.dumps(settings, indent=2) + "\n")
    write_file(folder / "special_tokens_map.json", json.dumps(special, indent=2) + "\n")
    return tokenizer
