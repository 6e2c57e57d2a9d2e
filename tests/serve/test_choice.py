"""Text that streams early never has to be taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.engine.codec import Codec
from foretell.serve.choice import hold_back, stable_text
from foretell.serve.service import writes_alone
from tests.conftest import TINY

CODEC = Codec.load(TINY)


@given(st.lists(st.integers(4, CODEC.vocab_size - 1), min_size=1, max_size=12))
def test_more_tokens_only_add_to_stable_text(tokens: list[int]) -> None:
    whole = CODEC.decode(tokens)
    assert not writes_alone(CODEC)
    for count in range(len(tokens) + 1):
        assert whole.startswith(stable_text(CODEC.decode(tokens[:count]), alone=False))


def test_a_word_that_may_change_is_held_back() -> None:
    zero, three, times = (CODEC.encode(one)[-1] for one in ("0", "3", " * "))
    assert CODEC.decode([zero]) == "0"
    assert CODEC.decode([zero, three]) == "3"
    assert stable_text(CODEC.decode([zero]), alone=False) == ""
    assert stable_text(CODEC.decode([zero, three, times, zero]), alone=False) == "3 *"


def test_a_byte_level_decoder_holds_back_parts_of_characters_only(literate: Path) -> None:
    codec = Codec.load(literate)
    assert writes_alone(codec)
    tokens = codec.encode("naïve 数学 done")
    whole, seen = codec.decode(tokens), set()
    for count in range(len(tokens) + 1):
        shown = stable_text(codec.decode(tokens[:count]), alone=True)
        assert whole.startswith(shown)
        seen.add(shown)
    assert any(shown.endswith("数") for shown in seen)
    assert whole in seen


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("one two", (), "one two"),
        ("one two", ("wait!", "x"), "one two"),
        ("one two", ("two three",), "one "),
        ("one two", ("o!", "two!"), "one "),
        ("one two\n", ("\n\n",), "one two"),
        ("aaa", ("aab",), "a"),
    ],
)
def test_the_beginning_of_a_stop_string_is_held_back(text: str, stops: tuple[str, ...], shown: str) -> None:
    assert hold_back(text, stops) == shown
