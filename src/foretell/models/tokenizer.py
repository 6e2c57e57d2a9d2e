"""Build a checkpoint's tokenizer from tokenizer.json, vocab.json with merges.txt (Dream), or vocab.txt (BERT)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from foretell.errors import ForetellError, ModelError
from foretell.models.family import LARGEST, Family, Settings, read_json
from foretell.storage import read_file, read_text

# Models and tokenizers whose vocab.txt holds the word pieces of BERT; other models use vocab.txt differently.
_WORD_PIECE_MODELS = ("bert", "convbert", "distilbert", "electra", "mobilebert", "squeezebert")
_WORD_PIECE_CLASSES = ("Bert", "ConvBert", "DistilBert", "Electra", "MobileBert", "SqueezeBert")
_WORD_PIECE_NAMES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_NAMED = tuple(f"{kind}_token" for kind in ("bos", "eos", *_WORD_PIECE_NAMES))
VOCABULARIES = ("tokenizer.json", "vocab.*", "merges.txt", "*.model", "*.tiktoken")
_Id = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST)]
_MASKS, _SEPARATORS = ("[MASK]", "<mask>"), ("[SEP]", "</s>")  # the usual names in masked LMs, if no file states them


class _AddedToken(msgspec.Struct):
    id: _Id


class _TokenizerModel(msgspec.Struct):
    vocab: dict[str, _Id] | list[Any] = []  # Unigram's is a list


class _TokenizerFile(msgspec.Struct):
    """The numbers in tokenizer.json."""

    model: _TokenizerModel
    added_tokens: list[_AddedToken] = []


def read_tokenizer(folder: Path, family: Family | None, special: Mapping[str, int]) -> Tokenizer:
    """Load the tokenizer in `folder`; `special` are the family's documented tokens, for files that name none."""
    whole = folder / "tokenizer.json"
    if whole.exists():
        written = read_file(whole, "tokenizer", ModelError)
        with explain_errors(f"{whole}: not a tokenizer"):
            msgspec.json.decode(written, type=_TokenizerFile)  # tokenizers uses memory up to the largest id
            tokenizer = Tokenizer.from_buffer(written)
        # A prompt is encoded as a whole, whatever the file says about batches.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer
    if family is None and (folder / "vocab.txt").exists():
        with explain_errors(f"{folder / 'vocab.txt'}: not a tokenizer"):
            return _word_pieces(folder)
    if family is None or family.words is None:
        raise ModelError(f"{whole}: missing; it holds the tokenizer of this model")
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        with explain_errors(f"{folder / 'merges.txt'}: does not fit vocab.json"):
            return _byte_pairs(folder, family.words, special)
    raise ModelError(f"{folder}: has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt")


@contextmanager
def explain_errors(problem: str, advice: str = "", error: type[ForetellError] = ModelError) -> Iterator[None]:
    """Raise what tokenizers raises in this block as `error`: Exception itself, or Rust's panic, a BaseException."""
    try:
        yield
    except ForetellError:
        raise
    except BaseException as reason:
        if isinstance(reason, Exception) or type(reason).__name__ == "PanicException":
            raise error(f"{problem} ({reason!s:.300}){advice}") from reason
        raise


def has_tokenizer(folder: Path) -> bool:
    """Return whether `folder` has a vocabulary file, readable or not."""
    return any(path.exists() for pattern in VOCABULARIES for path in folder.glob(pattern))


def named_tokens(folder: Path) -> dict[str, str]:
    """Return the texts of bos_token, eos_token, mask_token and the other named tokens of the folder."""
    texts: dict[str, str] = {}
    for file in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
        stated = Settings(file, read_json(file))
        for name, value in stated.values.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                texts[name] = text
            elif name in _NAMED and value is not None:
                raise stated.problem(name, "a text, or an object with its content")
    return texts


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
    # Not splitlines: pieces may contain other line separators.
    lines = read_text(file, "vocabulary", ModelError).split("\n")
    return {piece: number for number, piece in enumerate(lines if lines[-1] else lines[:-1])}


def _byte_pairs(folder: Path, words: str, special: Mapping[str, int]) -> Tokenizer:
    """Build Qwen2's byte-level BPE tokenizer. Added tokens keep their own ids, which may leave gaps."""
    added = _added_tokens(folder, special)
    vocabulary = Settings(folder / "vocab.json", read_json(folder / "vocab.json"))
    for word in vocabulary.values:
        vocabulary.token(word, LARGEST)
    ids = dict(vocabulary.values) | {token.content: number for number, token in added.items()}
    tokenizer = Tokenizer(BPE(vocab=ids, merges=_merges(folder / "merges.txt")))
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
    for line in read_text(file, "merges", ModelError).splitlines():
        left, _, right = line.partition(" ")
        if right and not line.startswith("#version"):
            pairs.append((left, right))
    return pairs


def _added_tokens(folder: Path, special: Mapping[str, int]) -> dict[int, AddedToken]:
    """Return the tokens outside the byte pairs, sorted by id."""
    file = folder / "tokenizer_config.json"
    stated = read_json(file).get("added_tokens_decoder") or {}
    plain = Settings(folder / "added_tokens.json", read_json(folder / "added_tokens.json") or special)
    added: dict[int, AddedToken] = {}
    for text in plain.values:
        number = plain.token(text, LARGEST)
        if number is None:
            raise plain.problem(text, "a token id")
        added[number] = AddedToken(text, special=True, normalized=False)
    try:
        for number, entry in stated.items():
            if not 0 <= int(number) < LARGEST:
                raise ValueError(f"{number} is not a token id")
            flags = {name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "single_word", "special")}
            added[int(number)] = AddedToken(
                entry["content"], normalized=bool(entry.get("normalized", not flags["special"])), **flags
            )
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise ModelError(f"{file}: 'added_tokens_decoder' must be an object of ids, each with its content") from problem
    return dict(sorted(added.items()))
