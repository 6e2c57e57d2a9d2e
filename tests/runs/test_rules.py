"""Stored replays belong to the code that runs, and a renamed judge keeps all fields of its family."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import foretell
from foretell.certify.outcomes import Outcomes
from foretell.certify.train_judge import JudgeConfig
from foretell.policies.region.masked import Masked
from foretell.policies.stop.families import FAMILIES
from tests.runs.test_study import RUNS, Run, run

__all__ = ["run"]

SOURCE = Path(foretell.__file__).parent


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RUNS))
    return importlib.import_module("rules")


def watched(do: Callable[..., Any], files: set[Path]) -> Callable[..., Any]:
    """Return the function wrapped so that the project's files that it runs are added to `files`."""

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            files.add(Path(frame.f_code.co_filename))

    def done(*given: Any) -> Any:
        sys.setprofile(note)
        try:
            return do(*given)
        finally:
            sys.setprofile(None)

    return done


def test_a_change_of_whatever_a_replay_runs_through_makes_it_anew(
    rules: Any, run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: set[Path] = set()
    for name in ("replay_rules", "fit_judge", "collect_labels"):
        monkeypatch.setattr(rules, name, watched(getattr(rules, name), files))
    run("certified", checkpoint, "--tasks", "choice", "--limit", "2", "--taught", "2")
    assert len(files) > 20
    assert files - {*rules.sources()} == set()


@pytest.mark.parametrize(
    ("words", "taught"), [((), 500), (("--limit", "4"), 40), (("--limit", "4", "--taught", "7"), 7)]
)
def test_a_small_limit_teaches_fewer_problems(
    rules: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], taught: int
) -> None:
    folders = ("--model", str(checkpoint), "--tasks", "sudoku", "--out", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["certified", *folders, *words])
    assert importlib.import_module("shared").parse_options(rules.make_rules_parser(None)).taught == taught


@pytest.fixture
def pool(rules: Any, tmp_path: Path) -> Any:
    """A pool without any problems."""
    made = rules.Pool("sudoku", argparse.Namespace(taught=0, limit=0, decodings=tmp_path, tables=None))
    made.__dict__["every"] = ()
    return made


def test_what_is_kept_is_what_the_imported_code_made(
    rules: Any, pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(*_: object) -> Outcomes:
        made.append(1)
        return Outcomes(*(np.zeros(0),) * 4)

    monkeypatch.setattr(rules, "replay_rules", counted)
    for _ in range(2):
        pool.replay(FAMILIES["entropy"])
    assert len(made) == 1
    monkeypatch.setattr(rules, "ROOT", tmp_path)  # whatever happens to the files, this is the code that runs
    pool.replay(FAMILIES["entropy"])
    assert len(made) == 1
    monkeypatch.setattr(rules, "VERSION", "another")
    pool.replay(FAMILIES["entropy"])
    assert len(made) == 2


def test_a_judge_under_another_name_is_the_same_family(rules: Any, pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    family = replace(FAMILIES["entropy"], region=Masked(), fitted_to=frozenset({"a"}))
    assert family.published is not None
    monkeypatch.setattr(rules, "fit_judge", lambda *_: argparse.Namespace(save=Path.touch))
    monkeypatch.setattr(rules, "judge_family", lambda _: family)
    assert pool.train_judge("mine", JudgeConfig()) == replace(family, name="mine")
