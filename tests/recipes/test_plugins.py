"""Policies that others register are known to recipes, to the command line and to its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RULE = '''
from dataclasses import dataclass

import torch

from foretell.policies import POLICIES
from foretell.loop.protocols import Verdict


@dataclass(frozen=True)
class AtOnce:
    """Settled from the start."""

    def reads(self, state):
        return state.answer

    def __call__(self, beliefs, state):
        return Verdict(torch.ones_like(state.done))


POLICIES["stop"]["at_once"] = AtOnce
'''


def foretell(folder: Path, imports: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "rules.py").write_text(RULE)
    environment = {**os.environ, "FORETELL_IMPORT": imports, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "foretell", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=200
    )


def test_a_file_is_imported_wherever_a_recipe_is_read(tmp_path: Path) -> None:
    words = ("--task", "choice", "--limit", "4", "--recipe", "full", "--recipe", "full stop=at_once")
    done = foretell(tmp_path, "rules.py", "eval", "tiny", *words, "--out", "o", "--workers", "2", "--batch-size", "1")
    assert done.returncode == 0, done.stderr
    assert "29.00x" in done.stdout, "one step for each of 29"
    assert "at_once" in foretell(tmp_path, str(tmp_path / "rules.py"), "recipes").stdout


def test_a_plugin_that_fails_is_named(tmp_path: Path) -> None:
    done = foretell(tmp_path, "nowhere,rules", "recipes", "at_once")
    assert "FORETELL_IMPORT=nowhere cannot be imported: ModuleNotFoundError" in done.stderr
    assert "Settled from the start" in done.stdout
