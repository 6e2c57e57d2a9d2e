"""The tokenizer's files: exact round trips, fixed-width numbers, the same ids from both libraries."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import foretell
from foretell.tasks import TRAINED, draw, vocabulary

FOLDER = Path(foretell.__file__).parent / "checkpoints" / "tiny"
TEXTS = [
    text
    for task in TRAINED.values()
    for problem in draw(task, np.random.default_rng(7), 1000, test=False)
    for text in (problem.prompt, problem.response)
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def test_every_text_round_trips(tokenizer: Tokenizer) -> None:
    encodings = tokenizer.encode_batch(TEXTS)
    assert tokenizer.decode_batch([encoding.ids for encoding in encodings]) == TEXTS
    assert all(vocabulary.UNKNOWN not in encoding.tokens for encoding in encodings)


def test_transformers_reads_the_same_ids(tokenizer: Tokenizer) -> None:
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(FOLDER)
    some = TEXTS[::40]
    ids = [encoding.ids for encoding in tokenizer.encode_batch(some)]
    assert theirs(some)["input_ids"] == ids
    assert [theirs.decode(each) for each in ids] == some
    message = [{"role": "user", "content": some[0]}]
    chat = theirs.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    assert chat == f"<|startoftext|>{some[0]}<|eot_id|>"
    assert (theirs.mask_token, theirs.pad_token, theirs.eos_token) == ("<|mdm_mask|>", "<|endoftext|>", "<|endoftext|>")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("4", ["0", "4"]),
        ("42", ["4", "2"]),
        ("1003\n0300", ["1", "0", "0", "3", "\n", "0", "3", "0", "0"]),
        ("3 * 4 = 12 .", ["0", "3", " * ", "0", "4", " = ", "1", "2", " ."]),
        ("9-4=5,5", ["0", "9", "-", "0", "4", "=", "0", "5", ",", "0", "5"]),
        ("Tom has 3 zebras.", ["Tom", "has", "0", "3", "<unk>", "."]),
        ("A) 0 to 9", ["A", ")", "0", "0", "to", "0", "9"]),
    ],
)
def test_tokens_of(tokenizer: Tokenizer, text: str, tokens: list[str]) -> None:
    assert tokenizer.encode(text).tokens == tokens


def test_an_unknown_word_can_be_named(tokenizer: Tokenizer) -> None:
    text = "Tom has 3 purple zebras."
    encoding = tokenizer.encode(text)
    unknown = tokenizer.token_to_id(vocabulary.UNKNOWN)
    spans = [span for token, span in zip(encoding.ids, encoding.offsets, strict=True) if token == unknown]
    assert [text[start:end] for start, end in spans] == ["purple", "zebras"]


def test_offsets_rise(tokenizer: Tokenizer) -> None:
    offsets = tokenizer.encode("Tom has 3 boxes with 4 apples each.").offsets
    assert all(before[1] <= after[1] for before, after in pairwise(offsets))


def test_the_shipped_files_are_the_ones_that_the_code_writes(tmp_path: Path) -> None:
    vocabulary.write_tokenizer(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (FOLDER / path.name).read_text()
