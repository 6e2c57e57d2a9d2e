"""Messages name the value, whatever it is."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from foretell.errors import RecipeError, RequestError, one_of, show, unknown, whole, within


class Silent:
    def __repr__(self) -> str:
        raise KeyError("no")


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_every_value_can_be_shown() -> None:
    assert show("a\nb") == r"'a\nb'"
    assert show(10**5000) == "a number of thousands of digits"
    assert show([10**5000]) == "a list"
    assert show(nested(100_000)) == "a list"
    assert show(Silent()) == "a Silent"
    assert show("x" * 90) == f"'{'x' * 76}..."


def test_an_unknown_name_of_any_type() -> None:
    assert unknown("word", "fulll", ("full", "prophet")) == (
        "unknown word 'fulll'; did you mean 'full'? (available: full, prophet)"
    )
    assert unknown("word", 10**5000, ("full",)) == "unknown word a number of thousands of digits (available: full)"
    for value in (nested(100_000), Silent(), None, 3, "fulll", np.array(["full", "a"])):
        with pytest.raises(RequestError, match="unknown word"):
            one_of("word", value, ("full",), RequestError)
    one_of("word", "full", ("full",))


def test_numbers_that_64_bits_cannot_hold() -> None:
    for value in (2**63, -(2**63), 10**400, 10**5000):
        with pytest.raises(RecipeError, match=r"x must be below 2\*\*63 if it is a whole number, got"):
            within("x", value, -inf)
    for fine in (2**63 - 1, 1e308, inf):
        within("x", fine, 0.0)
    with pytest.raises(RecipeError, match="x must be at least 0, got nan"):
        within("x", nan, 0.0)
    with pytest.raises(RecipeError, match="x must be at most 2147483647, got a number of thousands of digits"):
        whole("x", 10**5000, 1)
