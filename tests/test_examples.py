"""Every command and every Python example of the README and the docs runs, in order, page by page.

An HTML comment before a block says how it differs from that:

    <!-- not run: REASON -->     needs a GPU, other weights, the network, or hours
    <!-- slow: REASON -->        runs only under `make test-docs`, with all blocks of its page before it
    <!-- output -->              what the block before it prints; times may differ

A block with a title is a file that the blocks after it use. A page's blocks share a folder.
"""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import foretell
from foretell.cli.app import app
from tests.serve.conftest import PATIENCE, Served, serve

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r'^(?:<!-- (.+?) -->\n)?( *)```(\w*)(?: title="(.+?)")?\n(.*?)^\2```$', re.MULTILINE | re.DOTALL)
RUN = {"bash", "python"}
SHOWN = {"bibtex", "js", "json", "nginx", "text", "toml"}  # never run here; tests/serve runs the JavaScript
MARKS = r"not run: .+|slow: .+|output"
ADDRESS = "http://localhost:8000"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    mark: str
    language: str
    title: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.mark.startswith("not run")


@functools.cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    text = page.read_text(encoding="utf8")
    found = []
    for match in FENCE.finditer(text):
        mark, _, language, title, code = (group or "" for group in match.groups())
        line = text[: match.start()].count("\n") + 1
        found.append(Block(page.relative_to(ROOT).as_posix(), line, mark, language, title, code))
    return tuple(found)


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


class Reader:
    """Types in what a page says, in an empty folder, and remembers what is printed."""

    def __init__(self, server: Served, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.server, self.patch, self.capsys = server, patch, capsys
        self.printed = ""

    def read(self, block: Block) -> None:
        if block.title:
            Path(block.title).write_text(block.code, encoding="utf8")
        if block.mark == "output":
            self.compare(block)
        elif block.is_run:
            self.printed = self.run_python(block) if block.language == "python" else self.run_commands(block)

    def compare(self, block: Block) -> None:
        printed = [without_times(line) for line in self.printed.splitlines()]
        for line in block.code.splitlines():
            assert without_times(line) in printed, f"{block}: {line!r} is not printed, but {self.printed!r}"

    def run_python(self, block: Block) -> str:
        code = compile(block.code.replace(ADDRESS, self.server.url), str(block), "exec")
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(code, names)
        if "client" in names:
            names["client"].close()
        return self.capsys.readouterr().out

    def run_commands(self, block: Block) -> str:
        return "".join(self.run_command(block, words, line) for words, line in commands_of(block))

    def run_command(self, block: Block, words: list[str], line: str) -> str:
        with self.patch.context() as patch:
            while words and (given := re.fullmatch(r"(\w+)=(.*)", words[0])):
                patch.setenv(given[1], given[2])
                words = words[1:]
            if words[0] == "curl":
                command = ["bash", "-c", line.replace(ADDRESS, self.server.url)]
                return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
            assert words[0] == "foretell", f"{block}: cannot run {line!r} here; say why with <!-- not run: ... -->"
            if words[1] == "serve":  # one server runs for all pages; this one would not end
                program: Any = typer.main.get_command(app)
                program.commands["serve"].make_context("serve", words[2:])
                return ""
            done = CliRunner().invoke(app, words[1:])
            assert done.exit_code == 0, f"{block}: {line}\n{done.output}"
            return done.stdout


def commands_of(block: Block) -> Iterator[tuple[list[str], str]]:
    """The commands of a block: without comments, and with what is continued on the next line."""
    for line in block.code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words, line


def without_times(line: str) -> str:
    return " ".join(re.sub(r"\d+\.\d+ s\b", "# s", line).split())


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve(foretell.load("tiny")) as one:
        yield one


def read_page(page: Path, slow: bool, reader: Reader) -> None:
    for block in blocks_of(page):
        if slow or not block.mark.startswith("slow"):
            reader.read(block)


def is_slow(page: Path) -> bool:
    return any(block.mark.startswith("slow") for block in blocks_of(page))


@pytest.fixture
def reader(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    modules, policies = set(sys.modules), {name: dict(named) for name, named in foretell.POLICIES.items()}
    yield Reader(server, monkeypatch, capsys)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    for name, named in policies.items():
        foretell.POLICIES[name].clear()
        foretell.POLICIES[name].update(named)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(one.is_run for one in blocks_of(page))], ids=lambda page: page.stem
)
def test_page(page: Path, reader: Reader) -> None:
    read_page(page, slow=False, reader=reader)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [page for page in PAGES if is_slow(page)], ids=lambda page: page.stem)
def test_page_slow(page: Path, reader: Reader) -> None:
    read_page(page, slow=True, reader=reader)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_has_a_language_and_a_known_mark(block: Block) -> None:
    assert block.language in RUN | SHOWN, "name the language: bash and python are run, the others are shown"
    assert not block.mark or re.fullmatch(MARKS, block.mark)


def test_all_fences_are_found() -> None:
    """A block inside a list, or one that is not closed, would not be run."""
    for page in PAGES:
        fences = re.findall(r"^\s*(?:```|~~~)", page.read_text(encoding="utf8"), re.MULTILINE)
        assert len(fences) == 2 * len(blocks_of(page)), page.name
    assert sum(block.is_run for block in BLOCKS) >= 30


def test_output_is_compared(reader: Reader) -> None:
    reader.printed = "7\n2 of 64 steps · 0.29 s"
    reader.compare(Block("page", 1, "output", "text", "", "2 of 64 steps · 0.01 s\n"))
    with pytest.raises(AssertionError, match="not printed"):
        reader.compare(Block("page", 1, "output", "text", "", "3 of 64 steps · 0.29 s\n"))
