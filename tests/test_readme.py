"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import foretell
from foretell.evaluation.report import HEADINGS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf8")
TERMS = re.findall(
    r"^- \*\*(.+?)\*\*(?: \((.+?)\))?", (ROOT / "docs/glossary.md").read_text(encoding="utf8"), re.MULTILINE
)
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_python_runs(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": __name__})
    assert capsys.readouterr().out.strip()


def test_there_is_code() -> None:
    assert len(BLOCKS) >= 2


def test_files_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf8")):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name} points to {link}"
    for script in set(re.findall(r"runs/\w+\.py", README)):
        assert (ROOT / script).exists()


def test_glossary_is_sorted_and_linked() -> None:
    names = [name.lower().replace("-", " ") for name, _ in TERMS]
    assert names == sorted(set(names))
    assert "docs/glossary.md" in README
    assert "(glossary.md)" in (ROOT / "docs/architecture.md").read_text(encoding="utf8")


@pytest.mark.parametrize("term", [*dict.fromkeys(HEADINGS), *foretell.POLICIES])
def test_glossary_has_what_the_interface_shows(term: str) -> None:
    explained = {one.lower().strip("`") for pair in TERMS for one in pair}
    assert {term, term.removesuffix("s")} & explained


def test_tree_lists_every_package() -> None:
    packages = {path.name for path in (ROOT / "src/foretell").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert set(re.findall(r"^  (\w+)/", README.split("## The tree")[1], flags=re.MULTILINE)) == packages
