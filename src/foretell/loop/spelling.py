"""The text that tokens spell, and which token each letter comes from: what an answer is looked for in."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

REMEMBERED = 1024  # drafts: more than the rows of a batch, so that each one's last is among them


class Text(NamedTuple):
    """A text of n tokens, and the letters of each. Tokens that share a character all have it."""

    string: str
    starts: list[int]  # [n]
    ends: list[int]  # [n]

    def tokens(self, start: int, end: int) -> range:
        """The tokens that hold any of the letters from `start` up to `end`."""
        return range(bisect_right(self.ends, start), bisect_left(self.starts, end))


class Spelling:
    """How the tokens of one vocabulary are written; one object for all rows of a state.

    A piece that is a part of a character holds surrogate escapes, so that neighbours can be put together again.
    """

    def __init__(self, spell: Callable[[int], str], spaced: bool = False) -> None:
        self.piece = cache(spell)  # asked for every token of every draft
        self.spaced = spaced  # whether tokens are bare words, and the blanks between them belong to none
        self._found: dict[Hashable, range] = {}

    def once(self, key: Hashable, look: Callable[[], range]) -> range:
        """What `look` found under this key the last time: a draft that has not changed is not looked through again."""
        if key not in self._found:
            if len(self._found) >= REMEMBERED:
                self._found.clear()
            self._found[key] = look()
        return self._found[key]

    def text(self, ids: Iterable[int]) -> Text:
        return self.join([self.piece(token) for token in ids])

    def join(self, pieces: Sequence[str]) -> Text:
        """Pieces as one text, close to what the tokenizer's own decoder writes."""
        bare = [piece.removeprefix("##") for piece in pieces] if self.spaced else pieces
        made = [before + piece for before, piece in zip(_blanks(pieces), bare, strict=True)] if self.spaced else bare
        ends = list(accumulate(map(len, made)))
        starts = [end - len(piece) for end, piece in zip(ends, bare, strict=True)]
        return _whole(Text("".join(made), starts, ends))


def blank_between(before: str, after: str) -> str:
    """What stands between two bare words: a blank, or nothing around punctuation and inside numbers."""
    if not before or not after or before[-1].isspace() or after[0].isspace() or after.startswith("##"):
        return ""
    glued = before[-1].isdigit() and after[0].isdigit()
    return "" if glued or after[0] in ",.?!:;)=+-*/%'" or before[-1] in "(=+-*/$'" else " "


def looks_spaced(pieces: Iterable[str]) -> bool:
    """Whether these pieces are bare words: none brings the blank in front of it."""
    return not any(piece[:1] == " " and piece[1:2].isalpha() for piece in pieces)


def printable(text: str) -> str:
    """Fit for a terminal: line ends and the like are escaped, parts of characters are a replacement sign."""
    return "".join(
        letter if letter.isprintable() else "\ufffd" if is_part(letter) else repr(letter)[1:-1] for letter in text
    )


def _blanks(pieces: Iterable[str]) -> Iterator[str]:
    """What stands in front of each piece."""
    before = ""
    for piece in pieces:
        yield blank_between(before, piece)
        before = piece or before


def _whole(text: Text) -> Text:
    """The same text with the parts of characters put together where they complete each other."""
    if text.string.isascii() or not any(map(is_part, text.string)):
        return text
    whole = _bytes(text.string).decode("utf8", "surrogateescape")
    parts, edges = ([0, *accumulate(len(_bytes(letter)) for letter in string)] for string in (text.string, whole))
    starts = [bisect_right(edges, parts[start]) - 1 for start in text.starts]
    return Text(whole, starts, [bisect_left(edges, parts[end]) for end in text.ends])


def is_part(letter: str) -> bool:
    """Whether this stands for a byte of a character that is not whole."""
    return "\udc80" <= letter <= "\udcff"


def _bytes(text: str) -> bytes:
    return text.encode("utf8", "surrogateescape")
