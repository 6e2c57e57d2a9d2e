"""The environments of the make targets hold what their tests import, in pinned versions."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOWEST = ("decide", "hf", "lab", "parquet", "plots", "quantize", "server")
TOOLS = ("hypothesis", "jsonschema", "openai", "pytest", "pytest-timeout", "pytest-xdist", "typesafe-sdk")


def imported(file: Path) -> set[str]:
    """Top-level packages that a file imports when it is loaded, apart from the standard library and our own."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"foretell", "tests"}


@pytest.mark.parametrize(
    ("name", "package", "extra", "files"),
    [
        ("lm-eval", "lm_eval", "lm-eval", ("tests/evaluation/test_lm_eval.py",)),
        ("litellm", "litellm", "server", ("tests/serve/conftest.py", "tests/serve/test_litellm.py")),
        ("ray", "ray", "lab,ray,server", ("tests/scale/conftest.py",)),
    ],
)
def test_an_environment_has_what_its_tests_import(name: str, package: str, extra: str, files: tuple[str, ...]) -> None:
    found = re.search(rf"^\$\(VENV\)-{name}/\.ready:(?:.|\n)*?^\ttouch", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    target = found[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for name in extra.split(",") for one in project["optional-dependencies"][name]]
    depends = {re.split(r"[\[<>=]", one)[0] for one in [*project["dependencies"], *extras]}
    pinned = dict(line.split("==") for line in (ROOT / f"constraints-{name}.txt").read_text().splitlines()[1:])
    needed = set[str]().union(*(imported(ROOT / file) for file in ("tests/conftest.py", *files)))
    assert {"hypothesis", "pytest", "torch"} <= needed
    assert needed <= depends | set(target.split())
    assert needed | {package, "pytest-timeout"} <= set(pinned)
    assert f'".[{extra}]"' in target
    assert target.count(f"--constraint constraints-{name}.txt") == 2


def test_the_lowest_versions_are_the_floors_of_the_project() -> None:
    """Of everything that `make test-lowest` installs by name: the dependencies, the extras and the test tools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for name in LOWEST for one in extras[name])]
    wanted += [one for one in extras["dev"] if one.partition(">=")[0] in TOOLS]
    floors = dict(one.split(">=") for one in wanted)
    pinned = dict(line.split("==") for line in (ROOT / "constraints-lowest.txt").read_text().splitlines()[1:])
    assert set(pinned) == set(floors)
    for name, floor in floors.items():
        assert re.fullmatch(rf"{re.escape(floor)}(\.0)*", pinned[name]), name
    makefile = (ROOT / "Makefile").read_text()
    assert f'{" ".join(TOOLS)} --editable ".[{",".join(LOWEST)}]"' in makefile
    assert makefile.count("--constraint constraints-lowest.txt") == 2
