"""`foretell serve --replicas`, as a program, on the cluster of the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from typing import Any

import pytest

from tests.scale.conftest import PATIENCE, TwoNodes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "foretell", "serve", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def read_curl(process: subprocess.Popen[str]) -> tuple[str, dict[str, Any], list[str]]:
    """Return the address and the body of the command that the program suggests, and what it has printed."""
    assert process.stderr is not None
    lines: list[str] = []
    while not (lines and lines[-1].startswith("curl")):
        line = process.stderr.readline()
        assert line, lines
        lines.append(line.rstrip())
    return lines[-1].split()[1], json.loads(lines[-1][lines[-1].index("'") + 1 : lines[-1].rindex("'")]), lines


def test_it_serves_and_drains(nodes: TwoNodes) -> None:
    process = start("tiny", "--replicas", "2", "--ray", nodes.address, "--port", "0", "--recipe", "full")
    try:
        address, body, lines = read_curl(process)
        assert any("serving tiny at" in line and "with 2 replicas" in line for line in lines)
        found: list[Any] = []

        def ask() -> None:
            request = urllib.request.Request(address, json.dumps(body | {"n": 8}).encode())
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                found.append(json.load(answer))

        thread = threading.Thread(target=ask)
        thread.start()
        metrics = address.replace("/v1/chat/completions", "/metrics")
        while "foretell_rows_running 0" in urllib.request.urlopen(metrics, timeout=PATIENCE).read().decode():
            assert thread.is_alive(), "it was done before the signal"
        os.kill(process.pid, signal.SIGTERM)
        thread.join(PATIENCE)
        assert len(found[0]["choices"]) == 8
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()
        from ray import serve

        serve.shutdown()  # the port is that of this test


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nothing", "--replicas", "2"), "there is no folder 'nothing'"),
        (("tiny", "--ray", "127.0.0.1:1"), "there is no Ray cluster at '127.0.0.1:1'"),
        (("tiny", "--ray", "nonsense"), "there is no Ray cluster at 'nonsense'"),
        (("tiny", "--ray", "ray://127.0.0.1:10001"), "cannot be started by Ray's client"),
    ],
)
def test_what_is_refused_before_a_cluster_is_asked(words: tuple[str, ...], says: str) -> None:
    process = start(*words)
    _, printed = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert says in printed
