"""How a body becomes choices and tickets."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.engine.engine import Engine
from foretell.serve import Limits, app
from foretell.serve.bodies import ChatBody
from tests.serve.conftest import QUESTION


@pytest.mark.parametrize(("recipe", "early"), [("swift", True), ("swift verify=recheck", False)])
def test_text_that_a_check_may_change_is_not_streamed_early(tiny: Engine, recipe: str, early: bool) -> None:
    service = app(tiny, recipes=("swift", "swift verify=recheck")).state.service
    messages = [{"role": "user", "content": QUESTION}]
    body = ChatBody(model="tiny", messages=messages, recipe=recipe, stream=True)
    (choice,) = service.prepare(body, ())
    mailbox: Any = None
    assert [one.text for one in service.ticket(body, choice, mailbox, 0, "").observers] == [True] * early


def test_the_worker_has_the_limits_of_the_server(tiny: Engine) -> None:
    worker = app(tiny, limits=Limits(max_batch=3, max_waiting=4, max_groups=5)).state.service.worker
    assert (worker.max_batch, worker.max_waiting, worker.max_groups) == (3, 4, 5)
