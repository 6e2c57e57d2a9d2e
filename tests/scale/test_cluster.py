"""The cluster that the other tests of this folder run on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scale.conftest import TwoNodes, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


def count_nodes() -> int:
    import ray

    return sum(1 for node in ray.nodes() if node["Alive"])


def test_it_has_two_nodes_and_gets_a_new_one(nodes: TwoNodes) -> None:
    import ray

    assert count_nodes() == 2

    def describe() -> str:
        import foretell

        return foretell.load("tiny").describe()

    remote: Any = ray.remote(num_cpus=1)(describe)
    assert "tiny" in ray.get(remote.remote())
    nodes.kill_second()
    wait_for(lambda: count_nodes() == 1)
    nodes.restore()
    wait_for(lambda: count_nodes() == 2)
