"""Text out of tokens: how pieces are joined, and which token each letter comes from."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from foretell.loop.spelling import Spelling, blank_between, looks_spaced, printable


def words(*pieces: str, spaced: bool = False) -> Spelling:
    return Spelling(pieces.__getitem__, spaced)


@pytest.mark.parametrize(
    ("pieces", "spaced", "text"),
    [
        (["The", "answer", "is", "1", "2", "."], True, "The answer is 12."),
        ([" The", " answer", " is", " 1", "2"], False, " The answer is 12"),
        (['{"', "answer", '":'], False, '{"answer":'),  # bare words in a vocabulary whose words bring their blanks
        (["play", "##ing", "it"], True, "playing it"),
        (["a ##", "##b"], False, "a ####b"),
        (["7", " - ", "3", "", "2"], True, "7 - 32"),
        ([], True, ""),
    ],
)
def test_pieces_are_joined_as_text(pieces: list[str], spaced: bool, text: str) -> None:
    made = words(*pieces, spaced=spaced).text(range(len(pieces)))
    assert made.string == text
    spelled = [made.string[start:end] for start, end in zip(made.starts, made.ends, strict=True)]
    assert spelled == [piece.removeprefix("##") if spaced else piece for piece in pieces]


def test_letters_belong_to_tokens() -> None:
    text = words("The", "ans", "##wer", "", "is", spaced=True).text(range(5))
    assert text.string == "The answer is"
    assert text.tokens(0, 3) == range(1)
    assert text.tokens(3, 4) == range(1, 1)  # the blank belongs to none
    assert text.tokens(6, 8) == range(1, 3)
    assert text.tokens(10, 13) == range(4, 5)
    assert text.tokens(0, 13) == range(5)


def test_parts_of_characters_are_put_together() -> None:
    """Three tokens of two characters, and a byte that belongs to none."""
    raw = "é東".encode()
    pieces = [part.decode("utf8", "surrogateescape") for part in (raw[:1], raw[1:3], raw[3:], b"\x80", b"x")]
    text = words(*pieces).text(range(5))
    assert text.string == "é東\udc80x"
    assert [text.tokens(at, at + 1) for at in range(4)] == [range(2), range(1, 3), range(3, 4), range(4, 5)]
    assert printable(text.string + "\n\x1b") == "é東\ufffdx\\n\\x1b"


def test_blanks() -> None:
    assert blank_between("", "a") == blank_between("a", "") == blank_between("1", "2") == blank_between("a", ".") == ""
    assert blank_between("is", "7") == blank_between("7", "is") == " "
    assert looks_spaced(["The", "answer", " + "])
    assert not looks_spaced(["The", " answer"])


class _Forgetful(dict[Hashable, range]):
    """A cache that another thread clears right after anything is put into it."""

    def __setitem__(self, key: Hashable, value: range) -> None:
        pass


def test_a_cache_that_another_thread_clears() -> None:
    spelling = Spelling(str)
    spelling._found = _Forgetful()
    assert spelling.find_once("key", lambda: range(2)) == range(2)
