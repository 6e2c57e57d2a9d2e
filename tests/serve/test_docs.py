"""What docs/serving.md says about the server is true."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from foretell.serve.bodies import REFUSED, WITHOUT_EFFECT, ChatBody, CompletionBody
from foretell.serve.metrics import Metrics
from foretell.serve.problems import KINDS
from foretell.storage import names_of
from tests.serve.conftest import ANSWER, PATIENCE, Served

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/serving.md").read_text(encoding="utf8")
DECISIONS = (ROOT / "docs/decisions.md").read_text(encoding="utf8")
ADDRESS = "http://localhost:8000"
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(SCRIPT,) = re.findall(r"```js\n(.*?)```", PAGE, re.DOTALL)


def run(code: str, server: Served) -> None:
    """Run an example against a test's server, and close its client."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(code.replace(ADDRESS, server.url), "docs", "exec"), names)
    names["client"].close()


@pytest.mark.parametrize("code", PYTHON)
def test_python_runs(code: str, server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert ADDRESS in code
    run(code, server)
    printed = capsys.readouterr().out
    assert "The answer is 7" in printed
    if "drafts" in code:
        assert "".join(re.findall("final: (.*)\n", printed)).split() == ANSWER.split()
        assert "step 0:" in printed


def test_the_example_of_a_decision_runs(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DECISIONS.partition("## Over HTTP")[2], re.DOTALL)
    run(code, server)
    assert capsys.readouterr().out.startswith("0 to 19 ")


def test_there_are_examples() -> None:
    assert len(PYTHON) == 2


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_javascript_runs(server: Served, tmp_path: Path) -> None:
    script = tmp_path / "drafts.mjs"
    script.write_text(SCRIPT.replace(ADDRESS, server.url))
    done = subprocess.run(["node", script], check=False, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert not done.stderr
    assert "".join(re.findall("final: (.*)\n", done.stdout)).split() == ANSWER.split()
    assert "step 0:" in done.stdout


def test_every_parameter_is_in_the_table() -> None:
    table = PAGE.partition("## Parameters")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.+?) \| (honoured|refused|no effect)", table, re.MULTILINE)
    said = {(name, verdict) for names, verdict in rows for name in re.findall(r"`(\w+)`", names)}
    expected = {(name, "honoured") for kind in (ChatBody, CompletionBody) for name in names_of(kind)}
    expected |= {(name, "refused") for name in REFUSED} | {(name, "no effect") for name in WITHOUT_EFFECT}
    assert said == expected


def test_every_metric_is_listed(server: Served) -> None:
    metrics: Metrics = server.service.metrics
    listed = set(re.findall(r"`(foretell_\w+)", PAGE))
    names = re.findall(r"^# TYPE (\S+) \w+$", metrics.text().decode(), re.MULTILINE)
    assert {name for name in names if not name.endswith("_created")} <= listed


def test_every_status_is_listed() -> None:
    listed = set(map(int, re.findall(r"\b[45]\d\d\b", PAGE.partition("## Errors and limits")[2])))
    assert set(KINDS) - {415} <= listed


def test_the_curl_command_works(server: Served) -> None:
    (command,) = re.findall(r"^(curl .*)$", PAGE, re.MULTILINE)
    done = subprocess.run(
        ["bash", "-c", command.replace(ADDRESS, server.url)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "The answer is 7" in done.stdout
