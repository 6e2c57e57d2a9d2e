"""The files of the page fit its content policy, and a saved run contains every module that it needs."""

from __future__ import annotations

import re
from pathlib import Path

import foretell

STATIC = Path(foretell.__file__).parent / "serve" / "static"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";$', re.MULTILINE)


def imports(name: str) -> set[str]:
    return set(IMPORT.findall((STATIC / name).read_text()))


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    html = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
    for file in STATIC.iterdir():
        addresses = set(re.findall(r"https?://[^\s\"'`]+", file.read_text()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, file.name


def test_every_file_is_used() -> None:
    html = (STATIC / "index.html").read_text()
    linked = set(re.findall(r'"static/([\w.-]+)"', html))
    reached, todo = set(linked), [name for name in linked if name.endswith(".js")]
    while todo:
        new = imports(todo.pop()) - reached
        reached |= new
        todo += new
    assert reached | {"index.html"} == {file.name for file in STATIC.iterdir()}


def test_a_saved_run_contains_the_modules_of_the_player_in_order() -> None:
    save = (STATIC / "save.js").read_text()
    listed = re.findall(r'"([\w-]+\.js)"', re.search(r"MODULES = \[(.*?)\]", save, re.DOTALL)[1])  # type: ignore[index]
    assert listed[-1] == "player.js"
    for at, name in enumerate(listed):
        source = (STATIC / name).read_text()
        assert imports(name) <= set(listed[:at]), name
        # Only these forms are understood when a run is saved.
        assert len(re.findall(r"^import ", source, re.MULTILINE)) == len(imports(name)), name
        assert not re.search(r"^export (?!function |const )", source, re.MULTILINE), name
        assert not re.search(r"\bimport\(|\bfetch\(", source), name


def test_files_stay_small() -> None:
    assert {
        file.name: len(file.read_text().splitlines())
        for file in STATIC.iterdir()
        if len(file.read_text().splitlines()) > 300
    } == {}
