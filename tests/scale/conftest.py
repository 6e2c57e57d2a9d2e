"""One local Ray cluster of two nodes for all tests with the marker `ray`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ATTEMPTS = 5  # a node that is not up within 30 seconds fails, which happens on a busy machine
PATIENCE = 180.0  # seconds
CPUS = 4  # of each node, as Ray counts them: every actor of the tests asks for one or none
STORE = 80_000_000  # bytes of a node's object store, nearly the least that Ray accepts


@dataclass
class TwoNodes:
    """A head node, on which the test itself runs, and a second node that a test may kill."""

    cluster: Any
    address: str
    second: Any = None
    lost: list[Any] = field(default_factory=list)

    def restore(self) -> None:
        """Start a second node unless there is one."""
        if self.second is None:
            self.second = retry(lambda: self.cluster.add_node(num_cpus=CPUS, object_store_memory=STORE))

    def kill_second(self) -> None:
        """Kill every process of the second node, as kill -9 does. The next `restore` starts another one."""
        node, self.second = self.second, None
        self.lost.append(node)
        self.cluster.remove_node(node, allow_graceful=False)


def retry(start: Callable[[], Any]) -> Any:
    """Return the result of `start`, which gets several attempts."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return start()
        except Exception:
            if not left:
                raise
            time.sleep(2)
    raise AssertionError("the last attempt raises")


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[TwoNodes]:
    """The cluster of this run. Tests use `nodes`, which also replaces a node that an earlier test killed."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed; run make test-ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["FORETELL_IMPORT"] = str(Path(__file__).with_name("slow.py"))  # processes of the nodes inherit it
    import ray
    from ray.cluster_utils import Cluster

    def start() -> Any:
        made = Cluster(initialize_head=False)
        try:
            made.add_node(num_cpus=CPUS, object_store_memory=STORE, include_dashboard=False)
        except Exception:
            made.shutdown()
            raise
        return made

    cluster = retry(start)
    try:
        made = TwoNodes(cluster, cluster.address)
        made.restore()
        retry(lambda: ray.init(address=made.address, ignore_reinit_error=True, log_to_driver=False))
        yield made
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def nodes(two_nodes: TwoNodes) -> TwoNodes:
    """The cluster, with both nodes up."""
    two_nodes.restore()
    return two_nodes
