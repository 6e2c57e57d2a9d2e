"""Convert text to token ids and back, with the checkpoint's tokenizer, chat template and special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import BPE

from foretell.errors import ModelError, RequestError, VocabularyError, unknown
from foretell.loop.spelling import Spelling, is_part, printable
from foretell.models.chat import ChatTemplate, Message, check_messages
from foretell.models.control import ControlTokens, unused_character
from foretell.models.family import Family, Settings
from foretell.models.hub import repo_of
from foretell.models.load import BUNDLED, FAMILIES, family_of
from foretell.models.tokenizer import (
    documented_tokens,
    explain_errors,
    has_tokenizer,
    mask_of,
    named_tokens,
    read_tokenizer,
    separator_of,
)

NAMED = 5  # number of unknown words that a message lists
ALIKE = 0.75  # difflib's ratio from which a word is suggested: short words are easily similar
COMPARED = 5_000  # size of a vocabulary up to which the nearest word is searched for


@dataclass(frozen=True, slots=True)
class Codec:
    """What a checkpoint folder says about text. It does not need the weights."""

    folder: Path
    tokenizer: Tokenizer  # empty if the folder has none; prompts are then token ids
    vocab_size: int  # token ids that the model reads
    mask_id: int | None  # None if neither config.json nor the tokenizer names a mask
    end_ids: tuple[int, ...]  # tokens that end a text; the first one fills what comes after it
    leading: tuple[int, ...] = ()  # special tokens that every text begins with, such as BERT's [CLS]
    template: ChatTemplate | None = None  # of the folder, or else the one documented for its family
    controls: ControlTokens = ControlTokens()  # what the content of a chat may spell, but not become

    @classmethod
    def load(cls, folder: Path | str, family: str | None = None) -> Codec:
        """Load the codec of `folder`; `family` overrides the model_type of its config.json."""
        folder = Path(folder)
        settings = Settings.read(folder)
        if family is not None and family.lower() not in FAMILIES:
            raise RequestError(unknown("family", family, FAMILIES))
        kind = FAMILIES[family.lower()] if family is not None else family_of(settings)
        published = documented_tokens(kind, settings)
        tokenizer = read_tokenizer(folder, kind, published) if has_tokenizer(folder) else Tokenizer(BPE())
        mask_id = _mask_id(settings, tokenizer, kind, published.values())
        end_ids = _end_ids(settings, tokenizer, kind, published)
        template = ChatTemplate.find(folder) or _documented_template(kind, tokenizer)
        with explain_errors(f"{folder}: the tokenizer cannot encode a single letter"):
            leading, _ = _around(tokenizer)
        written = template.text if template is not None else ""
        return cls(
            folder=folder,
            tokenizer=tokenizer,
            vocab_size=_vocab_size(settings, kind),
            mask_id=mask_id,
            end_ids=end_ids,
            leading=leading,
            template=template,
            controls=ControlTokens.find(tokenizer, written, {mask_id, *end_ids, *leading}),
        )

    @property
    def reads_text(self) -> bool:
        """Whether the folder has a tokenizer."""
        return self.tokenizer.get_vocab_size() > 0

    def prompt(
        self, prompt: str | Sequence[Message], chat: bool | None = None, special_tokens: bool = False
    ) -> list[int]:
        """Return the token ids of a prompt. The chat template is applied to messages, and to text if `chat` is true.

        By default, it is applied to text if the folder itself has a chat template. `special_tokens` as in `chat`.
        """
        if isinstance(prompt, str) and not self.uses_template(chat):
            return self.encode(prompt, special=True)
        if chat is False:
            raise RequestError("chat messages need the chat template, which chat=False (--raw) leaves out")
        return self.chat(prompt, special_tokens)

    def uses_template(self, chat: bool | None) -> bool:
        """Return whether the chat template is applied to text, with this value of the option `chat`."""
        own = self.template is not None and not self.template.documented
        return own if chat is None else chat

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of `text`; `special` adds the tokens that every text begins with.

        Tokens for the end of a text, such as BERT's [SEP], are left out, because the text continues.
        """
        return [*(self.leading if special else ()), *self._encode(text)]

    def encode_masked(self, parts: Sequence[str], sizes: Sequence[int]) -> list[int]:
        """Return the token ids of a whole text, with its special tokens: `parts` with `sizes` masks between them.

        The tokenizer reads the text as one if it knows its mask token, otherwise part by part.
        """
        assert self.mask_id is not None, "the caller has checked that there is a mask"
        own = self.tokenizer.id_to_token(self.mask_id)
        if own is not None:
            ids = self._encode("".join(part + own * size for part, size in zip(parts, (*sizes, 0), strict=True)), True)
            if ids.count(self.mask_id) == sum(sizes):
                return ids
        ids = self._encode(parts[0])
        for size, part in zip(sizes, parts[1:], strict=True):
            ids += [self.mask_id] * size + self._encode(part)
        if ids.count(self.mask_id) != sum(sizes):
            raise RequestError(f"the tokenizer reads a mask in another spelling; write every mask as [MASK] or {own}")
        return [*self.leading, *ids, *_around(self.tokenizer)[1]]

    def _encode(self, text: str, special: bool = False) -> list[int]:
        if not isinstance(text, str):
            raise RequestError(f"the text is a {type(text).__name__}; it must be a string")
        self._check_tokenizer()
        return self._encode_with(self.tokenizer, text, special)

    def _encode_with(self, tokenizer: Tokenizer, text: str, special: bool = False) -> list[int]:
        with explain_errors("the text cannot be encoded", self._advice(), VocabularyError):
            encoding = tokenizer.encode(text, add_special_tokens=special)
        unk = _unknown_id(tokenizer)
        if unk is not None and unk in encoding.ids:
            places = [place for token, place in zip(encoding.ids, encoding.offsets, strict=True) if token == unk]
            missing = tuple(dict.fromkeys(text[start:end] for start, end in places))
            raise VocabularyError(
                f"the model's vocabulary has no {_list_missing(missing, self.words())}{self._advice()}"
            )
        largest = max((token for token in encoding.ids if token != self.mask_id), default=0)
        if largest >= self.vocab_size:
            raise ModelError(
                f"{self.folder}: the tokenizer gives {tokenizer.id_to_token(largest)!r} the id {largest}, but the "
                f"model reads only ids from 0 to {self.vocab_size - 1}"
            )
        ids: list[int] = encoding.ids
        return ids

    def _check_tokenizer(self) -> None:
        if not self.reads_text:
            raise RequestError(f"{self.folder}: has no tokenizer, so it cannot read text; give token ids")

    def _advice(self) -> str:
        name = repo_of(self.folder) or (self.folder.name if self.folder.parent == BUNDLED else self.folder)
        return f"; list its words with: foretell vocab {name}"

    def chat(self, messages: Sequence[Message] | str, special_tokens: bool = False) -> list[int]:
        """Return the token ids of a conversation, up to where the reply begins; a string is one user message.

        Content that spells a special token, such as "<|im_end|>", is plain text, so that nobody can forge a turn of
        the conversation; with `special_tokens` it becomes that token.
        """
        self._check_tokenizer()
        if self.template is None:
            raise RequestError(f"{self.folder}: the model has no chat template; give it plain text to continue")
        conversation = check_messages(messages)
        if special_tokens or not self.controls.spelled(conversation):
            return self._encode(self.template.render(conversation))
        mark = unused_character([self.template.text, *(text for one in conversation for text in one.values())])
        with explain_errors(f"{self.folder}: the tokenizer cannot be copied"):
            plain = self.controls.plain
        text = self.template.render(self.controls.mark(conversation, mark))
        return self._encode_with(plain, self.controls.rename(text, mark))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of `ids`; empty without a tokenizer."""
        if skip_special:
            hidden = {self.mask_id, *self.end_ids}  # not every tokenizer registers these as special
            ids = [token for token in ids if token not in hidden]
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return one printable string per token, to draw a canvas with; control characters are escaped."""
        return [self._piece(token) for token in ids]

    def spelling(self) -> Spelling:
        """Return how tokens are written inside a text."""
        return Spelling(self._spell, _is_spaced(self.tokenizer))

    def words(self) -> list[str]:
        """Return the vocabulary in the order of its ids, without special tokens."""
        self._check_tokenizer()
        special = {token for token, added in self.tokenizer.get_added_tokens_decoder().items() if added.special}
        return self.pieces(sorted(set(self.tokenizer.get_vocab().values()) - special))

    def _piece(self, token: int) -> str:
        text = self._spell(token)
        if any(map(is_part, text)):  # a part of a character, which only the stored form shows
            text = self.tokenizer.id_to_token(token) or text
        return printable(text)

    def _spell(self, token: int) -> str:
        """Return a token as written in a text, with white space; parts of a character as surrogate escapes."""
        stored = self.tokenizer.id_to_token(token)
        if stored is None:
            return f"<{token}>"
        text = self.tokenizer.decode([token], skip_special_tokens=False)
        if "\ufffd" in text:
            return _raw(stored).decode("utf8", "surrogateescape")
        # Decoders trim a lone token; its stored form still has the spaces, which some tokenizers write as a symbol.
        spelled = stored.replace("▁", " ")
        return spelled if not text or spelled.strip() == text.strip() else text


def _vocab_size(settings: Settings, family: Family | None) -> int:
    """Return the embedding's number of rows. Outside our families, embedding_size is the width of a row."""
    rows = settings.count("vocab_size")
    return rows if family is None else settings.count("embedding_size", rows)


def _mask_id(settings: Settings, tokenizer: Tokenizer, family: Family | None, published: Iterable[int]) -> int | None:
    known = max(_vocab_size(settings, family), tokenizer.get_vocab_size())
    stated = settings.token("mask_token_id", known + 1)  # it may come right after the vocabulary
    if stated is not None:
        return stated
    if family is not None:
        name = family.mask
        return family.special[name] if family.special[name] in published else tokenizer.token_to_id(name)
    return mask_of(settings.file.parent, tokenizer)


def _end_ids(
    settings: Settings, tokenizer: Tokenizer, family: Family | None, published: Mapping[str, int]
) -> tuple[int, ...]:
    """Return config.json's end tokens, then the tokenizer's, then those of the family's chats."""
    stated, size = settings.values.get("eos_token_id"), _vocab_size(settings, family)
    each = stated if isinstance(stated, list) else [stated]
    ids = [Settings(settings.file, {"eos_token_id": one}).token("eos_token_id", size) for one in each]
    folder = settings.file.parent
    names = [named_tokens(folder).get("eos_token"), *(family.ends if family is not None else ())]
    ids += [published.get(name, tokenizer.token_to_id(name)) for name in names if name]
    if family is None:
        ids.append(separator_of(folder, tokenizer))
    # The tokenizer may know more tokens than the model.
    return tuple(dict.fromkeys(token for token in ids if token is not None and token < size))


def _around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that the tokenizer puts before every text, and those that it puts after it."""
    if tokenizer.num_special_tokens_to_add(is_pair=False) == 0:
        return (), ()
    sample = tokenizer.encode("a", add_special_tokens=True)
    real = [at for at, special in enumerate(sample.special_tokens_mask) if not special]
    return (tuple(sample.ids[: real[0]]), tuple(sample.ids[real[-1] + 1 :])) if real else ((), ())


def _is_spaced(tokenizer: Tokenizer) -> bool:
    """Return whether the decoder puts a space between two bare words, tried on the first two of the vocabulary."""
    stored = ((token, tokenizer.id_to_token(token)) for token in range(tokenizer.get_vocab_size()))
    words = (token for token, name in stored if name and name.isascii() and name.isalpha())
    return " " in tokenizer.decode(list(islice(words, 2))).strip()


def _raw(stored: str) -> bytes:
    """Return the bytes of a token that is a part of a character, in either notation that tokenizers use."""
    lone = re.fullmatch("<0x([0-9A-Fa-f]{2})>", stored)
    if lone:
        return bytes.fromhex(lone[1])
    letters = _byte_letters()
    return bytes(letters[letter] for letter in stored) if letters.keys() >= set(stored) else stored.encode()


@cache
def _byte_letters() -> dict[str, int]:
    """Return GPT-2's letter of each byte: the same code if it is visible; the others count up from 256."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


def _documented_template(family: Family | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the family's published template, if the tokenizer knows the tokens that it uses."""
    if family is None or family.chat_template is None:
        return None
    written = [name for name in family.special if name in family.chat_template]
    if any(tokenizer.token_to_id(name) is None for name in written):
        return None
    return ChatTemplate(f"the documented {family.name} template", family.chat_template, documented=True)


def _list_missing(missing: Sequence[str], words: Sequence[str]) -> str:
    """Return the first few missing words, each with the nearest known one."""
    named = ", ".join(repr(word) + _hint(word, words) for word in missing[:NAMED])
    return named + (f" and {len(missing) - NAMED} more words" if len(missing) > NAMED else "")


def _hint(word: str, words: Sequence[str]) -> str:
    alike = [one for one in words if one.lower() == word.lower()]
    if not alike and len(words) <= COMPARED:
        alike = get_close_matches(word, words, n=1, cutoff=ALIKE)
    return f" (did you mean {alike[0]!r}?)" if alike else ""


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    name = getattr(tokenizer.model, "unk_token", None)
    return None if name is None else tokenizer.token_to_id(name)
