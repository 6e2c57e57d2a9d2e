"""The text that tokens spell, and which token each letter comes from. Answers are searched for in this text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

REMEMBERED = 1024  # cached drafts: more than the rows of a batch, so that the last draft of each row is among them


class SpelledText(NamedTuple):
    """A text of n tokens, and the letters of each. A character that several tokens share belongs to all of them."""

    string: str
    starts: list[int]  # [n]
    ends: list[int]  # [n]

    def tokens(self, start: int, end: int) -> range:
        """Return the tokens that hold any of the letters from `start` up to `end`."""
        return range(bisect_right(self.ends, start), bisect_left(self.starts, end))


class Spelling:
    """How the tokens of one vocabulary are written; one object for all rows of a state.

    A piece that holds a part of a character is written with surrogate escapes, so that pieces can be joined again.
    """

    def __init__(self, spell: Callable[[int], str], spaced: bool = False) -> None:
        self.piece = cache(spell)  # called for every token of every draft
        self.spaced = spaced  # whether tokens are bare words, so that the spaces between them belong to no token
        self._found: dict[Hashable, range] = {}

    def find_once(self, key: Hashable, find: Callable[[], range]) -> range:
        """Return what `find` returned for this key before, so that an unchanged draft is searched only once."""
        found = self._found.get(key)  # one lookup: another thread may clear the cache at any time
        if found is None:
            if len(self._found) >= REMEMBERED:
                self._found.clear()
            found = self._found[key] = find()
        return found

    def text(self, ids: Iterable[int]) -> SpelledText:
        return self.join([self.piece(token) for token in ids])

    def join(self, pieces: Sequence[str]) -> SpelledText:
        """Join pieces to one text, close to what the tokenizer's decoder writes."""
        bare = [piece.removeprefix("##") for piece in pieces] if self.spaced else pieces
        made = [before + piece for before, piece in zip(_blanks(pieces), bare, strict=True)] if self.spaced else bare
        ends = list(accumulate(map(len, made)))
        starts = [end - len(piece) for end, piece in zip(ends, bare, strict=True)]
        return _join_characters(SpelledText("".join(made), starts, ends))


def blank_between(before: str, after: str) -> str:
    """Return what separates two bare words: a space, or nothing around punctuation and inside numbers."""
    if not before or not after or before[-1].isspace() or after[0].isspace() or after.startswith("##"):
        return ""
    glued = before[-1].isdigit() and after[0].isdigit()
    return "" if glued or after[0] in ",.?!:;)=+-*/%'" or before[-1] in "(=+-*/$'" else " "


def looks_spaced(pieces: Iterable[str]) -> bool:
    """Return whether these pieces are bare words: none begins with the space before it."""
    return not any(piece[:1] == " " and piece[1:2].isalpha() for piece in pieces)


def printable(text: str) -> str:
    """Return `text` fit for a terminal: control characters are escaped, parts of characters become U+FFFD."""
    return "".join(
        letter if letter.isprintable() else "\ufffd" if is_part(letter) else repr(letter)[1:-1] for letter in text
    )


def _blanks(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the space or the empty string before each piece."""
    before = ""
    for piece in pieces:
        yield blank_between(before, piece)
        before = piece or before


def _join_characters(text: SpelledText) -> SpelledText:
    """Return the same text with parts of characters joined where they form a whole one."""
    if text.string.isascii() or not any(map(is_part, text.string)):
        return text
    whole = _bytes(text.string).decode("utf8", "surrogateescape")
    parts, edges = ([0, *accumulate(len(_bytes(letter)) for letter in string)] for string in (text.string, whole))
    starts = [bisect_right(edges, parts[start]) - 1 for start in text.starts]
    return SpelledText(whole, starts, [bisect_left(edges, parts[end]) for end in text.ends])


def is_part(letter: str) -> bool:
    """Return whether this letter stands for a byte of an incomplete character."""
    return "\udc80" <= letter <= "\udcff"


def _bytes(text: str) -> bytes:
    return text.encode("utf8", "surrogateescape")
