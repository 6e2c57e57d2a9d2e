"""The environment of `make test-lm-eval` holds what its tests import, in pinned versions."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = re.compile(r"^\$\(VENV\)-lm-eval/\.ready:(?:.|\n)*?^\ttouch", re.MULTILINE)


def imported(file: Path) -> set[str]:
    """Top-level packages that a file imports when it is loaded, apart from the standard library and our own."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"foretell", "tests"}


def test_the_harness_environment_has_what_its_tests_import() -> None:
    (target,) = TARGET.findall((ROOT / "Makefile").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    depends = {re.split("[<>=]", one)[0] for one in project["dependencies"]}
    pinned = dict(line.split("==") for line in (ROOT / "constraints-lm-eval.txt").read_text().splitlines()[1:])
    files = ("tests/conftest.py", "tests/evaluation/test_lm_eval.py")
    needed = set[str]().union(*(imported(ROOT / file) for file in files))
    assert {"hypothesis", "pytest", "torch"} <= needed
    assert needed <= depends | set(target.split())
    assert needed | {"lm_eval", "pytest-timeout"} <= set(pinned)
    assert target.count("--constraint constraints-lm-eval.txt") == 2
