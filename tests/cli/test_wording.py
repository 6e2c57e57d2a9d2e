"""Formatting of numbers for people."""

from __future__ import annotations

from foretell.cli.results import totals
from foretell.cli.wording import count, ratio
from foretell.engine.completion import Completion


def test_one_is_not_many() -> None:
    assert [count(number, "prompt") for number in (0, 1, 2)] == ["0 prompts", "1 prompt", "2 prompts"]
    done = Completion("a", None, (1, 2), 2, 3, 4, 16, 4, "settled", 0.5)
    assert totals([done], 1.0).startswith("1 prompt · 4.0 steps on average (4.00x fewer than a full decoding) · ")


def test_a_ratio_says_which_way() -> None:
    assert [ratio(6, 4), ratio(4, 6), ratio(4, 4)] == ["1.50x fewer", "1.50x more", "1.00x fewer"]
