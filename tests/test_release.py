"""The package's description on an index, and its metadata."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://forge.example/team/foretell"
README = (ROOT / "README.md").read_text(encoding="utf8")
build = pytest.importorskip("hatchling", reason="hatchling is not installed") and __import__("hatch_build")


def test_without_a_repository_no_link_leads_nowhere() -> None:
    text = build.describe(README, None, "1.2.3")
    assert not re.findall(r"\]\((?!https?:|#)", text)
    assert "race.webp" not in text
    assert "Two decodings of one problem" not in text  # the caption of the picture
    assert "All results." in text  # the words of a link stay
    assert "(https://github.com/pixeli99/Prophet)" in text


def test_pictures_and_links_lead_to_the_release() -> None:
    text = build.describe(README, REPOSITORY, "1.2.3")
    assert f"]({REPOSITORY}/raw/v1.2.3/docs/pictures/race.webp)" in text
    assert f"[All results]({REPOSITORY}/blob/v1.2.3/docs/results/README.md)" in text
    assert not re.findall(r"\]\((?!https?:|#)", text)


def test_urls_are_not_invented() -> None:
    assert not any("foretell" in url for url in build.name_urls(None).values())
    assert build.name_urls(REPOSITORY)["Homepage"] == REPOSITORY


def test_the_hook_reads_the_version_and_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata: dict[str, object] = {}
    monkeypatch.setenv("FORETELL_REPOSITORY", REPOSITORY + "/")
    build.Description(str(ROOT), {}).update(metadata)
    import foretell

    assert f"{REPOSITORY}/raw/v{foretell.__version__}/" in str(metadata["readme"])
    assert set(metadata) == {"readme", "urls"}


def test_classifiers_name_the_python_that_runs_the_tests() -> None:
    """A version is listed when the tests have run with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r":: (3\.\d+)", " ".join(project["classifiers"]))
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in versions
    assert project["requires-python"] == f">={versions[0]}"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_the_sdist_holds_what_git_tracks() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {*listed["only-include"], ".ci"} == {name.partition("/")[0] for name in tracked.splitlines()}


def test_the_package_builds_from_what_the_dockerfile_copies(tmp_path: Path) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    copied = re.findall(r"(?m)^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text())
    names = [name for line in copied for name in line.split()]
    assert set(names) == allowed
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tmp_path, check=True)
    assert len([*tmp_path.glob("dist/foretell-*.whl")]) == 1
