"""What the README and the docs name exists. tests/test_examples.py runs what they show."""

from __future__ import annotations

import json
import logging
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
    text = README + (ROOT / "docs/recipes.md").read_text(encoding="utf8")
    assert set(re.findall(r"\bforetell\.(load|parse)\b", text)) == {"load", "parse"}


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
    text = (ROOT / "docs/recipes.md").read_text(encoding="utf8")
    for table in text.partition("## The six questions")[::2]:
        assert set(foretell.PRESETS) <= set(re.findall(r"`([a-z-]+)`", table))


def test_glossary_is_sorted_and_linked() -> None:
    names = [name.lower().replace("-", " ") for name, _ in TERMS]
    assert names == sorted(set(names))
    assert "docs/glossary.md" in README
    assert "(glossary.md)" in (ROOT / "docs/architecture.md").read_text(encoding="utf8")


@pytest.mark.parametrize("term", [*dict.fromkeys(HEADINGS), *foretell.POLICIES])
def test_glossary_has_what_the_interface_shows(term: str) -> None:
    explained = {one.lower().strip("`") for pair in TERMS for one in pair}
    assert {term, term.removesuffix("s")} & explained


def test_architecture_lists_every_package() -> None:
    packages = {path.name for path in (ROOT / "src/foretell").iterdir() if path.is_dir() and path.name != "__pycache__"}
    table = (ROOT / "docs/architecture.md").read_text(encoding="utf8").partition("| package | holds |")[2]
    rows = re.findall(r"^\| (`[^|]+) \|", table.partition("\n\n")[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == packages


def test_reference_lists_every_public_name() -> None:
    """Old names, which are the same objects, are left out."""
    text = (ROOT / "docs/python.md").read_text(encoding="utf8")
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^<!-- names -->\n(.+)", text, re.MULTILINE)))
    assert sorted(listed) == sorted(set(foretell.__all__) - {"Words", "teach"})


def test_everyone_can_read_the_readme() -> None:
    """Lines of text stay short; tables, links and commands may be longer."""
    text = [line for line in README.splitlines() if not re.match(r"[|!]|foretell ", line)]
    assert max(map(len, text)) <= 125
    assert len(README.splitlines()) <= 170


def test_the_site_builds_without_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a missing page or heading, or a page that the navigation leaves out, is a warning."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("mkdocs")
    logger.addHandler(handler)
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path)))
    finally:
        logger.removeHandler(handler)
    assert not warnings
    shown = (tmp_path / "python.html").read_text(encoding="utf8")
    assert all(f'id="{name}"' in shown for name in set(foretell.__all__) - {"Words", "teach"})
    commands = (tmp_path / "cli.html").read_text(encoding="utf8")
    assert "--answer-length" in commands
    assert "<li>Results go to stdout" in commands  # the forge's Markdown wants no blank line before a list


def test_the_readme_has_the_measured_sizes() -> None:
    measured = json.loads((ROOT / "docs/results/download_size.json").read_text())
    assert f"{measured['gpu_mb'] / 1000:.1f} GB in all" in README
    assert f"{measured['cpu_mb']} MB in all" in README
    shown = dict(re.findall(r"^\| `([\w-]+)` \|.*\| ([\d.]+) \|$", README, re.MULTILINE))
    assert shown == {
        name: f"{size:.1f}" if size < 10 else f"{size:.0f}" for name, size in measured["extras_mb"].items()
    }
