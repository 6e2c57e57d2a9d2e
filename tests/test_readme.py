"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import foretell

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_python_runs(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": __name__})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_names_are_public(page: Path) -> None:
    text = page.read_text(encoding="utf8")
    imported = ",".join(re.findall(r"^\s*from foretell import ([\w, ]+)", text, flags=re.MULTILINE))
    names = {name.split()[0] for name in imported.split(",") if name.strip()}
    names |= set(re.findall(r"(?<![\w./-])foretell\.([A-Za-z_]\w*)", text))
    modules = {path.stem for path in Path(foretell.__file__).parent.iterdir()}
    assert names - modules <= set(foretell.__all__), page.name


def test_documented_names_are_found() -> None:
    """The README names at least these, so that the test above has something to check."""
    assert set(re.findall(r"\bforetell\.(load|Recipe)\b", README)) == {"load", "Recipe"}


def test_there_is_code() -> None:
    assert len(BLOCKS) >= 2


def test_files_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf8")):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name} points to {link}"
    for script in set(re.findall(r"runs/\w+\.py", README)):
        assert (ROOT / script).exists()
