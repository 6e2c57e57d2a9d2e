"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf8")
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
