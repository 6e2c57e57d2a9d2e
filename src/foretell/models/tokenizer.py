"""Build a checkpoint's tokenizer from tokenizer.json, vocab.json with merges.txt (Dream), or vocab.txt (BERT)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from foretell.errors import ModelError
from foretell.models.family import Family, Settings

# Models and tokenizers whose vocab.txt holds the word pieces of BERT; other models use vocab.txt differently.
_WORD_PIECE_MODELS = ("bert", "convbert", "distilbert", "electra", "mobilebert", "squeezebert")
_WORD_PIECE_CLASSES = ("Bert", "ConvBert", "DistilBert", "Electra", "MobileBert", "SqueezeBert")
_WORD_PIECE_NAMES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
VOCABULARIES = ("tokenizer.json", "vocab.*", "merges.txt", "*.model", "*.tiktoken")
_MASKS, _SEPARATORS = ("[MASK]", "<mask>"), ("[SEP]", "</s>")  # the usual names in masked LMs, if no file states them


def read_tokenizer(folder: Path, family: Family | None, special: Mapping[str, int]) -> Tokenizer:
    """Load the tokenizer in `folder`; `special` are the family's documented tokens, for files that name none."""
    whole = folder / "tokenizer.json"
    if whole.is_file():
        try:
            return Tokenizer.from_file(str(whole))
        except Exception as problem:  # tokenizers raises plain Exception
            raise ModelError(f"{whole}: not a tokenizer ({problem})") from problem
    if family is None and (folder / "vocab.txt").is_file():
        return _word_pieces(folder)
    if family is None or family.words is None:
        raise ModelError(f"{whole}: missing; it holds the tokenizer of this model")
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _byte_pairs(folder, family.words, special)
    raise ModelError(f"{folder}: has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt")


def has_tokenizer(folder: Path) -> bool:
    """Return whether `folder` has a vocabulary file, readable or not."""
    return any(path.is_file() for pattern in VOCABULARIES for path in folder.glob(pattern))


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`, or an empty one if the file does not exist."""
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise ModelError(f"{file}: not valid JSON ({problem})") from problem
    if not isinstance(values, dict):
        raise ModelError(f"{file}: holds a {type(values).__name__}; it must be a JSON object")
    return values


def named_tokens(folder: Path) -> dict[str, str]:
    """Return the texts of bos_token, eos_token, mask_token and the other named tokens of the folder."""
    stated = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
    texts = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in stated.items()
        if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def documented_tokens(family: Family | None, settings: Settings) -> Mapping[str, int]:
    """Return the published special tokens if the vocabulary has the published size, otherwise none."""
    known = family is not None and settings.values.get("vocab_size") == family.vocab_size
    return family.special if family is not None and known else {}


def mask_of(folder: Path, tokenizer: Tokenizer) -> int | None:
    """Return the mask token of a masked LM's tokenizer, or None."""
    return _first_known(tokenizer, (named_tokens(folder).get("mask_token"), *_MASKS))


def separator_of(folder: Path, tokenizer: Tokenizer) -> int | None:
    """Return the token that a masked LM's tokenizer puts at the end of a text, or None."""
    return _first_known(tokenizer, (named_tokens(folder).get("sep_token"), *_SEPARATORS))


def _first_known(tokenizer: Tokenizer, names: tuple[str | None, ...]) -> int | None:
    known = (tokenizer.token_to_id(name) for name in names if name)
    return next((number for number in known if number is not None), None)


def _word_pieces(folder: Path) -> Tokenizer:
    """Build BERT's WordPiece tokenizer from vocab.txt and tokenizer_config.json, as transformers builds it."""
    file, config = folder / "vocab.txt", folder / "tokenizer_config.json"
    stated = Settings(config, read_json(config))
    _refuse_other_word_pieces(folder, stated)
    stated.require("do_lower_case", True, False)
    stated.require("tokenize_chinese_chars", True, False)
    stated.require("strip_accents", None, True, False)
    ids = _read_pieces(file)
    named = named_tokens(folder)
    special = {kind: named.get(f"{kind}_token", usual) for kind, usual in _WORD_PIECE_NAMES.items()}
    missing = [name for kind, name in special.items() if name not in ids and kind != "pad"]
    if missing:
        raise ModelError(f"{file}: has no {', '.join(missing)}, which the tokenizer needs")
    tokenizer = Tokenizer(WordPiece(ids, unk_token=special["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=stated.values.get("tokenize_chinese_chars", True),
        strip_accents=stated.values.get("strip_accents"),
        lowercase=stated.values.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = [(special[kind], ids[special[kind]]) for kind in ("cls", "sep")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special['cls']} $A {special['sep']}", special_tokens=ends
    )
    tokenizer.add_special_tokens([name for name in special.values() if name in ids])
    tokenizer.add_tokens(list(_added_tokens(folder, {}).values()))
    return tokenizer


def _refuse_other_word_pieces(folder: Path, stated: Settings) -> None:
    """Raise ModelError if vocab.txt belongs to a tokenizer other than BERT's."""
    name, model = stated.values.get("tokenizer_class"), read_json(folder / "config.json").get("model_type")
    known = {f"{kind}Tokenizer{fast}" for kind in _WORD_PIECE_CLASSES for fast in ("", "Fast")}
    if name not in known if name is not None else model not in _WORD_PIECE_MODELS:
        whose = f"tokenizer_class {name!r}" if name is not None else f"model_type {model!r}"
        raise ModelError(
            f"{folder}: has no tokenizer.json, and vocab.txt alone is enough for BERT's tokenizer only, not for "
            f"{whose}; save the tokenizer with transformers to get a tokenizer.json"
        )


def _read_pieces(file: Path) -> dict[str, int]:
    """Return the word pieces of a vocab.txt with their ids, the line numbers from 0."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # not splitlines: pieces may contain other line separators
    except UnicodeDecodeError as problem:
        raise ModelError(f"{file}: not UTF-8 text ({problem.reason} at byte {problem.start})") from problem
    return {piece: number for number, piece in enumerate(lines if lines[-1] else lines[:-1])}


def _byte_pairs(folder: Path, words: str, special: Mapping[str, int]) -> Tokenizer:
    """Build Qwen2's byte-level BPE tokenizer. Added tokens keep their own ids, which may leave gaps."""
    added = _added_tokens(folder, special)
    ids = read_json(folder / "vocab.json") | {token.content: number for number, token in added.items()}
    try:
        tokenizer = Tokenizer(BPE(vocab=ids, merges=_merges(folder / "merges.txt")))
    except Exception as problem:  # tokenizers raises plain Exception
        raise ModelError(f"{folder / 'merges.txt'}: does not fit vocab.json ({problem})") from problem
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(list(added.values()))
    return tokenizer


def _merges(file: Path) -> list[tuple[str, str]]:
    pairs = []
    for line in file.read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" ")
        if right and not line.startswith("#version"):
            pairs.append((left, right))
    return pairs


def _added_tokens(folder: Path, special: Mapping[str, int]) -> dict[int, AddedToken]:
    """Return the tokens outside the byte pairs, sorted by id."""
    file = folder / "tokenizer_config.json"
    stated = read_json(file).get("added_tokens_decoder") or {}
    plain = read_json(folder / "added_tokens.json") or special
    added = {number: AddedToken(text, special=True, normalized=False) for text, number in plain.items()}
    try:
        for number, entry in stated.items():
            flags = {name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "single_word", "special")}
            added[int(number)] = AddedToken(
                entry["content"], normalized=bool(entry.get("normalized", not flags["special"])), **flags
            )
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise ModelError(f"{file}: 'added_tokens_decoder' must be an object of ids, each with its content") from problem
    return dict(sorted(added.items()))
