"""Which requests share a batch, and which replica gets them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.scale import routing
from foretell.scale.groups import find_group
from foretell.scale.routing import ASSIGNMENT, Assignment, Watch, rank_replicas

CHAT, TEXT, DECISIONS = "/v1/chat/completions", "/v1/completions", "/v1/decisions"


def group(path: str = CHAT, **body: Any) -> str:
    return find_group(path, json.dumps(body).encode())


def test_what_does_not_change_the_batch_does_not_change_the_group() -> None:
    plain = group(messages=[{"role": "user", "content": "a"}])
    assert plain == group(
        messages=[{"role": "user", "content": "b"}], stream=True, seed=3, max_tokens=9, steps=4, user="me"
    )
    assert plain == group(TEXT, prompt="c", recipe=None)
    assert group(recipe="full", layout="word") == group(layout="word", recipe="full")
    assert group(response_format={"a": 1, "b": 2}) == group(response_format={"b": 2, "a": 1})
    assert group(temperature=0) == group(temperature=0.0, top_p=0.5, top_k=3) == plain


@pytest.mark.parametrize(
    "more",
    [
        {"recipe": "full"},
        {"recipe": "full stop=never"},
        {"layout": "choice"},
        {"block_length": 8},
        {"temperature": 0.5},
        {"temperature": 1},
        {"top_p": 0.5},
        {"answer_length": 3},
        {"response_format": {"type": "json_schema"}},
        {"questions": [{"name": "q"}]},
    ],
)
def test_what_changes_the_batch_changes_the_group(more: dict[str, Any]) -> None:
    assert group(**more) != group()
    assert group(**more) == group(**more)


def test_decisions_are_never_with_texts() -> None:
    assert group(DECISIONS) == group("/v1/systemone") != group()


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"recipe": 1e999}'])
def test_bodies_that_are_refused_later_have_a_group(raw: bytes) -> None:
    assert find_group(CHAT, raw).startswith("text")


NAMES = [f"r{at}" for at in range(8)]


def test_a_group_keeps_its_replica_while_there_is_room() -> None:
    for one in ("a", "b", "c"):
        first = rank_replicas(one, dict.fromkeys(NAMES, 0))[0]
        assert rank_replicas(one, dict.fromkeys(NAMES, 3))[0] == first
    assert len({rank_replicas(str(one), dict.fromkeys(NAMES, 0))[0] for one in range(100)}) == 8


def test_groups_are_spread_evenly() -> None:
    firsts = Counter(rank_replicas(str(one), dict.fromkeys(NAMES, 0))[0] for one in range(4000))
    assert all(400 < count < 600 for count in firsts.values()), firsts


def test_only_the_groups_of_a_lost_replica_move() -> None:
    all_idle = dict.fromkeys(NAMES, 0)
    without = {name: 0 for name in NAMES if name != "r3"}
    for one in map(str, range(300)):
        before, after = rank_replicas(one, all_idle)[0], rank_replicas(one, without)[0]
        assert before in (after, "r3")


def test_an_overloaded_replica_is_passed_over() -> None:
    loads = dict.fromkeys(NAMES, 2)
    order = rank_replicas("a", loads)
    busy = loads | {order[0]: 6}
    assert rank_replicas("a", busy) == [*order[1:], order[0]]
    assert rank_replicas("a", busy, balance=4.0) == order
    busiest = busy | {order[1]: 9}
    assert rank_replicas("a", busiest) == [*order[2:], order[0], order[1]]
    assert rank_replicas("a", busy | {order[1]: 5, order[2]: 4}, balance=1.0)[-3:] == [order[2], order[1], order[0]]


def test_one_group_alone_fills_all_replicas() -> None:
    loads = dict.fromkeys(NAMES[:4], 0)
    for _ in range(8):
        loads[rank_replicas("a", loads)[0]] += 1
    assert sorted(loads.values(), reverse=True) == [3, 3, 2, 0]


def test_replicas_to_avoid_come_last_and_do_not_count() -> None:
    loads = dict.fromkeys(NAMES[:3], 1)
    order = rank_replicas("a", loads)
    assert rank_replicas("a", loads, {order[0]}) == [*order[1:], order[0]]
    assert rank_replicas("a", loads | {order[0]: 100}, {order[0]})[0] == order[1]
    uneven = {order[0]: 0, order[1]: 4, order[2]: 3}  # 4 is less than 1.25 times the mean of the two
    assert rank_replicas("a", uneven, {order[0]}) == [*order[1:], order[0]]
    assert rank_replicas("a", loads, NAMES) == order
    assert rank_replicas("a", {}) == []


@settings(deadline=None)
@given(
    st.sampled_from(["", "a", "é", "text 1"]),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 50), min_size=1),
    st.sets(st.sampled_from(NAMES)),
    st.floats(1, 4),
)
def test_every_replica_is_ranked_once_and_the_first_is_not_overloaded(
    name: str, loads: dict[str, int], avoid: set[str], balance: float
) -> None:
    order = rank_replicas(name, loads, avoid, balance)
    assert sorted(order) == sorted(loads)
    good = [one for one in loads if one not in avoid]
    if good:
        assert order[0] in good
        assert loads[order[0]] <= balance * (sum(loads[one] for one in good) + 1) / len(good)


def test_loads_are_counted() -> None:
    watch = Watch()
    for name in ("a", "a", "b"):
        watch.note_sent(name)
    watch.note_done("b")
    watch.note_done("c")  # of a request that was sent before this process knew the replica
    assert watch.loads(["a", "b", "c"]) == {"a": 2, "b": 0, "c": 0}


def test_a_silent_replica_is_avoided_until_it_is_heard_or_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    watch.note_silent("a")
    watch.note_silent("b")
    assert watch.silent() == {"a", "b"}
    watch.note_heard("a")
    assert watch.silent() == {"b"}
    monkeypatch.setattr(routing, "FORGIVEN", -1.0)
    assert watch.silent() == set()


def test_a_request_learns_where_it_goes() -> None:
    async def send() -> list[str | None]:
        assignment = Assignment()
        ASSIGNMENT.set(assignment)
        seen = []
        watch.note_sent("a")
        assert assignment.since >= began
        seen.append(assignment.replica)
        await asyncio.create_task(probe())
        seen.append(assignment.replica)
        watch.note_refused()
        seen.append(assignment.replica)
        watch.note_sent("b")
        watch.note_refused()
        assignment.since = 0.0
        watch.note_accepted("b")
        assert assignment.since >= began
        return [*seen, assignment.replica]

    async def probe() -> None:
        """Ask a replica for its load, on behalf of another request."""
        watch.note_refused()

    watch, began = Watch(), time.monotonic()
    watch.note_sent("b")  # without an assignment: of a broadcast
    assert asyncio.run(send()) == ["a", "a", None, "b"]
