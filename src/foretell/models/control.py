"""Control tokens of a tokenizer, such as <|im_end|>, and how a text can spell them without becoming them."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from foretell.errors import RequestError

WRITTEN = ("content", "name")  # what a user writes in a message
PRIVATE = range(0xE000, 0xF900)  # characters that Unicode leaves to everyone


@dataclass(frozen=True)
class ControlTokens:
    """Added tokens that are special, that structure a text, or that the chat template writes.

    The content of a chat may spell one. To tell it from the template's own, `mark` puts a character into the spelling,
    the template is rendered, and `rename` gives the tokens without a mark other names. `plain` is the same
    tokenizer with these other names, so that it reads the old names as plain text.
    """

    tokenizer: Tokenizer | None = None
    names: Mapping[str, str] = field(default_factory=dict)  # spelling -> the name that only we know
    normalized: bool = False  # whether some are also found in other spellings, such as other case

    @classmethod
    def find(cls, tokenizer: Tokenizer, template: str, structural: Collection[int | None]) -> ControlTokens:
        added = {
            token.content: token
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.content and (token.special or number in structural or token.content in template)
        }
        key = secrets.token_hex(8)  # nobody can write a name in advance
        names = {spelling: f"\U000f0000{key}.{index}\U000f0000" for index, spelling in enumerate(added)}
        return cls(tokenizer, names, any(token.normalized for token in added.values()))

    def spelled(self, conversation: Sequence[Mapping[str, str]]) -> bool:
        """Return whether the content of a message may become a control token."""
        texts = (message[key] for message in conversation for key in WRITTEN if key in message)
        return bool(self.names) and (self.normalized or any(self._written.search(text) for text in texts))

    def mark(self, conversation: Sequence[Mapping[str, str]], mark: str) -> list[dict[str, str]]:
        """Put `mark` after the first character of each control token that the content of a message spells or begins."""
        starts = re.compile(f"(?={self._written.pattern})(.)", re.DOTALL)
        return [
            {key: starts.sub(rf"\1{mark}", text) if key in WRITTEN else text for key, text in message.items()}
            for message in conversation
        ]

    def rename(self, text: str, mark: str) -> str:
        """Return a rendered text for `plain`: control tokens get their other names, and marks are removed."""
        own = re.compile(f"(?:{self._pattern.pattern})(?!{mark})")  # the mark follows a token of one character
        return own.sub(lambda found: self.names[found[0]], text).replace(mark, "")

    @cached_property
    def plain(self) -> Tokenizer:
        """The tokenizer with the control tokens under their other names and the same ids."""
        assert self.tokenizer is not None, "there are no names without a tokenizer"
        described = json.loads(self.tokenizer.to_str())
        for token in described["added_tokens"]:
            if token["content"] in self.names:
                token |= {"content": self.names[token["content"]], "normalized": False, "single_word": False}
        described["model"] = self._rename_model(described["model"])
        return Tokenizer.from_str(json.dumps(described))

    def _rename_model(self, model: dict[str, Any]) -> dict[str, Any]:
        """Rename what the model itself knows as a word or a piece."""
        vocab, unk = model["vocab"], model.get("unk_token")
        if isinstance(vocab, dict):
            vocab = {self.names.get(word, word): number for word, number in vocab.items()}
        else:  # of Unigram: pieces with scores, by id
            vocab = [[self.names.get(piece, piece), score] for piece, score in vocab]
        changed = {"vocab": vocab}
        if isinstance(unk, str) and unk in self.names:
            changed["unk_token"] = self.names[unk]
        if "merges" in model:  # none may end in, or begin with, a word that has another name
            changed["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & self.names.keys()]
        return model | changed

    @cached_property
    def _written(self) -> re.Pattern[str]:
        """A control token, or the beginning of one at the end of a text: the text that comes next could complete it."""
        begun = {name[:size] for name in self.names for size in range(1, len(name)) if not name[0].isspace()}
        ends = "|".join(re.escape(one) for one in sorted(begun, key=len, reverse=True))
        return re.compile(f"(?:{self._pattern.pattern})" + (rf"|(?:{ends})\s*\Z" if ends else ""))  # templates may trim

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(name) for name in sorted(self.names, key=len, reverse=True)))


def unused_character(texts: Iterable[str]) -> str:
    """Return a character for private use that occurs in no text."""
    used = {letter for text in texts for letter in text}
    for code in PRIVATE:
        if chr(code) not in used:
            return chr(code)
    raise RequestError(f"the messages contain all {len(PRIVATE)} characters that Unicode leaves for private use")
