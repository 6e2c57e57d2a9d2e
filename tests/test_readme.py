"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

import foretell
from foretell.cli.app import app
from foretell.evaluation.report import HEADINGS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf8")
TERMS = re.findall(
    r"^- \*\*(.+?)\*\*(?: \((.+?)\))?", (ROOT / "docs/glossary.md").read_text(encoding="utf8"), re.MULTILINE
)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    for path in re.findall(r"\b((?:tests|runs|src|docs)/[\w/]+\.\w+)", page.read_text(encoding="utf8")):
        assert (ROOT / path).exists(), f"{page.name} mentions {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    commands: Any = typer.main.get_command(app)
    for command, rest in re.findall(r"\bforetell ([a-z]+) (.*)", page.read_text(encoding="utf8").replace("\\\n", "")):
        known = commands.commands[command]
        options = {
            option for one in (known, *getattr(known, "commands", {}).values()) for p in one.params for option in p.opts
        }
        assert set(re.findall(r"(?<=\s)--[a-z-]+", rest.split("`")[0])) <= options, f"{page.name}: foretell {command}"


def test_every_preset_is_listed() -> None:
    assert set(foretell.PRESETS) <= set(re.findall(r"`([a-z-]+)`", README))


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
