"""Numbers that no decoding can use are refused when a request is made, before any memory is taken."""

from __future__ import annotations

import pytest

from foretell.engine.engine import Engine, load
from foretell.engine.request import Layout, Request
from foretell.engine.scheduler import Scheduler
from foretell.errors import RequestError
from foretell.recipes.presets import parse
from tests.helpers import network


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load("tiny")


HUGE = (2**31, 2**59, 2**63, 10**30, 10**5000)


@pytest.mark.parametrize("number", HUGE, ids=["2**31", "2**59", "2**63", "10**30", "10**5000"])
def test_huge_numbers_are_refused_when_a_request_is_made(engine: Engine, number: int) -> None:
    for name in ("steps", "block_length", "max_new_tokens", "answer_length", "answer_start", "top_k"):
        with pytest.raises(RequestError, match=f"{name} must be"):
            engine.template(**{"answer_length": 2, name: number})  # type: ignore[arg-type]
    for recipe in ("full cache.visible=near({})", "full stop=persistent({})", "full stop=stable({})"):
        if number < 10**4000:
            with pytest.raises(RequestError, match="must be at most 2147483647"):
                engine.template(recipe=recipe.format(number))


def test_a_window_of_a_hundred_million_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match="max_new_tokens must be from 1 to 1048576"):
        engine.template(max_new_tokens=10**8)
    with pytest.raises(RequestError, match="from 1 to 1048576 positions"):
        Layout(10**8)


def test_the_largest_budget_takes_one_step_per_token() -> None:
    (done,) = Scheduler(network(5)).run([Request((3,), Layout(6), parse(f"full steps={2**31 - 1}"))])
    assert done.steps == 6
