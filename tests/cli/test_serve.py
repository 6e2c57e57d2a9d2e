"""`foretell serve`: what it prints, what it refuses, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvicorn

from foretell.cli import serve as serve_module
from tests.cli.conftest import Run
from tests.cli.test_program import PROGRAM

PATIENCE = 120  # seconds


@contextmanager
def started(*words: str, **extra: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start the program, and yield it with its output up to the command that it suggests."""
    process = subprocess.Popen(
        [*PROGRAM, "serve", *words, "--port", "0"], stderr=subprocess.PIPE, text=True, env=os.environ | extra
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        while not (lines and lines[-1].startswith("curl")):
            line = process.stderr.readline()
            assert line, lines
            lines.append(line.rstrip())
        yield process, lines
    finally:
        process.kill()
        process.communicate()


def post(line: str, **more: object) -> dict[str, object]:
    """Send the request of a curl command."""
    address = line.split()[1]
    body = json.loads(line[line.index("'") + 1 : line.rindex("'")]) | more
    headers = {"authorization": "Bearer secret"} if "Authorization" in line else {}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def test_it_says_what_it_serves_and_stops_at_ctrl_c() -> None:
    with started("tiny", "--max-batch", "2", FORETELL_API_KEY="secret") as (process, lines):
        assert "serving tiny at http://localhost:" in lines[-3]
        assert lines[-2].startswith("recipe: swift · offered: swift, ")
        assert "secret" not in lines[-1]
        assert post(lines[-1])["object"] == "chat.completion"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_a_running_request_is_finished() -> None:
    with started("tiny") as (process, lines):
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(post(lines[-1], recipe="full", n=2)["choices"]))
        thread.start()
        metrics = lines[-1].split()[1].replace("/v1/chat/completions", "/metrics")
        for _ in range(PATIENCE * 50):
            text = urllib.request.urlopen(metrics, timeout=PATIENCE).read().decode()
            if "foretell_rows_running 0" not in text:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        thread.join(PATIENCE)
        assert len(found) == 1
        assert process.wait(PATIENCE) == 0


def test_risk_and_its_file(tmp_path: Path) -> None:
    with started("tiny", "--risk", "0.05", "--state", str(tmp_path / "state.jsonl")) as (_, lines):
        assert "recipe: full at first; faster ones are earned with risk 0.05" in lines[-2]
        assert post(lines[-1])["foretell"]["steps"] == 61  # type: ignore[index]


def test_a_model_of_ones_own_is_told_how_to_be_faster(literate: Path) -> None:
    with started(str(literate)) as (_, lines):
        assert any("foretell tune" in line for line in lines)
        assert "full transfer=threshold(0.99)" in lines[-3]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tiny", "--recipe", "swiftt"), "unknown recipe 'swiftt'"),
        (("tiny", "--recipe", "missing.json"), "missing.json"),
        (("tiny", "--port", "70000"), "--port must be from 0 to 65535, got 70000"),
        (("tiny", "--max-batch", "0"), "max_batch must be at least 1"),
        (("tiny", "--timeout", "0"), "timeout must be from"),
        (("tiny", "--grace", "-1"), "--grace must be from"),
        (("tiny", "--audit", "0.1"), "--audit needs a certified recipe"),
        (("tiny", "--on-drift", "full"), "--on-drift needs --audit"),
        (("tiny", "--cpus", "2"), "--cpus is for replicas"),
        (("tiny", "--max-replicas", "2"), "--max-replicas is for replicas"),
        (("tiny", "--replicas", "0"), "--replicas must be at least 1"),
        (("tiny", "--replicas", "2", "--risk", "0.1"), "--risk and --audit need all requests in one process"),
        (("tiny", "--ray", "auto", "--recipe", "swiftt"), "unknown recipe 'swiftt'"),
        (("nothing",), "there is no folder 'nothing'"),
    ],
)
def test_what_is_refused_before_it_starts(run: Run, words: tuple[str, ...], says: str) -> None:
    assert says in run("serve", *words, code=2).stderr


def test_a_missing_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.extras.is_installed", lambda _: False)
    assert "pip install 'foretell[server]'" in run("serve", "tiny", code=2).stderr


def test_replicas_need_ray(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'foretell[ray]'" in run("serve", "tiny", "--replicas", "2", code=2).stderr


def test_what_ray_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but Ray itself, which `make test-ray` tests."""
    asked: list[Any] = []

    def run_server(cluster: Any, model: str, options: dict[str, Any], *, greet: Any, wait: Any, report: Any) -> None:
        asked.append((cluster, model, options))
        report("starting")
        info = {"model": "tiny", "recipes": [{"name": "full"}, {"name": "swift"}], "examples": [{"prompt": "Hi"}]}
        greet("http://127.0.0.1:9", info)
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        timer.start()
        wait()

    module = ModuleType("foretell.scale.run")
    vars(module).update(LOCAL="local", Cluster=lambda *given: given, run_server=run_server)
    monkeypatch.setitem(sys.modules, "foretell.scale.run", module)
    monkeypatch.setattr("foretell.extras.require_extra", lambda _: None)
    words = ("serve", "tiny", "--replicas", "3", "--max-replicas", "9", "--recipe", "full", "--recipe", "swift")
    done = run(*words, "--api-key", "secret", "--port", "9", "--grace", "7", "--max-batch", "2", "--allowed-host", "Me")
    ((cluster, model, options),) = asked
    assert (cluster, model) == (("local", "127.0.0.1", 9, 7.0), "tiny")
    assert (options["replicas"], options["max_replicas"], options["cpus"], options["gpus"]) == (3, 9, 1.0, None)
    assert options["recipes"] == ("full", "swift")
    assert options["limits"].max_batch == 2
    assert (options["access"].key, options["access"].hosts[-1]) == ("secret", "me")
    assert "serving tiny at http://127.0.0.1:9 with 3 replicas" in done.stderr
    assert "recipe: full · offered: full, swift" in done.stderr
    assert '"content": "Hi"' in done.stderr
    assert "secret" not in done.stderr
    run("serve", "tiny", "--ray", "auto", "--cpus", "0.5")
    assert asked[1][0][0] == "auto"
    assert (asked[1][2]["replicas"], asked[1][2]["cpus"]) == (1, 0.5)


def test_a_server_in_this_process(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal ends the server and not the process, and what was printed names what was asked for."""
    real, ports, access, stopped = serve_module.listen, list[int](), list[Any](), list[bool]()

    def listen(made: Any, host: str, port: int, grace: float, greet: Any) -> None:
        def leave(port: int) -> None:
            ports.append(port)
            greet(port)
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()

        assert grace == 7
        assert made.state.service.limits.max_tokens == 99
        access.append(made.user_middleware[0].kwargs["access"])
        stop = uvicorn.Server.shutdown

        async def shutdown(self: Any, sockets: Any = None) -> None:
            assert made.state.service.draining  # since the signal
            assert self.config.timeout_graceful_shutdown == 7
            assert self.config.timeout_keep_alive > 60  # nginx's; openai's client has 5
            stopped.append(True)
            await stop(self, sockets)

        monkeypatch.setattr("uvicorn.Server.shutdown", shutdown)
        real(made, host, port, grace, leave)

    monkeypatch.setattr(serve_module, "listen", listen)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORETELL_API_KEY", "another")
    words = ("serve", "tiny", "--port", "0", "--host", "0.0.0.0", "--api-key", "secret", "--window", "64")
    more = ("--grace", "7", "--max-tokens", "99", "--cors-origin", "http://there.example")
    done = run(*words, *more, "--risk", "0.05", "--pilot", "3", "--recipe", "full")
    assert [(one.key, one.hosts, one.origins) for one in access] == [("secret", (), ("http://there.example",))]
    assert stopped
    assert f"serving tiny at http://localhost:{ports[0]}" in done.stderr
    assert "recipe: full at first; faster ones are earned with risk 0.05" in done.stderr
    assert "Bearer $FORETELL_API_KEY" in done.stderr
    assert "secret" not in done.stderr


def test_hosts_that_are_served() -> None:
    def hosts(host: str, *named: str) -> tuple[str, ...]:
        return serve_module._hosts({"host": host, "allowed_host": list(named)})

    assert hosts("127.0.0.1") == ("localhost", "127.0.0.1", "::1", "127.0.0.1")
    assert hosts("0.0.0.0") == hosts("::") == ()
    assert hosts("0.0.0.0", "Example.org")[-1] == "example.org"
