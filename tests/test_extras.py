"""Where an optional package is missing, one line names the extra, and nothing has been decoded."""

from __future__ import annotations

import json
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import foretell
from foretell.certify.calibrate import calibrate
from foretell.cli.app import app
from foretell.errors import ForetellError, MissingExtraError
from foretell.extras import MORE, PACKAGES, is_installed, require_extra


def hide(extra: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the extra's package look missing; returns what the message must contain."""
    monkeypatch.setitem(sys.modules, PACKAGES[extra][0], None)
    return f"pip install 'foretell[{extra}]'"


@pytest.mark.parametrize("extra", sorted(PACKAGES))
def test_a_missing_extra_is_named(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = hide(extra, monkeypatch)
    assert not is_installed(extra)
    with pytest.raises(MissingExtraError) as refused:
        require_extra(extra)
    assert str(refused.value).endswith(f"which is not installed: {command}")
    assert refused.value.name == PACKAGES[extra][0]
    assert isinstance(refused.value, ForetellError)
    assert isinstance(refused.value, ImportError)


def test_an_installed_extra_is_fine() -> None:
    for extra in ("hf", "lab", "plots"):
        assert is_installed(extra)
        require_extra(extra)


def test_every_extra_is_one_of_the_project() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(PACKAGES) == set(project["optional-dependencies"]) - {"dev", "docs"}  # for developers
    for extra, (package, _) in PACKAGES.items():
        lines = sorted(re.split(r"\[|>=", line)[0] for line in project["optional-dependencies"][extra])
        assert lines == sorted(name.replace("_", "-") for name in (package, *MORE.get(extra, ())))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("lab", ("eval", "--task", "word", "--limit", "2", "--out", "results")),
        ("lab", ("sweep", "--task", "word", "--limit", "2", "--out", "results", "--vary", "steps=2,4")),
        ("lab", ("calibrate", "--task", "word", "--limit", "2", "--out", "rule.json")),
        ("lab", ("tune", "--task", "word", "--limit", "20", "--out", "tuned.json")),
        ("quantize", ("eval", "--task", "word", "--limit", "2", "--out", "results", "--quantize", "int8")),
        ("quantize", ("judge", "--task", "word", "--limit", "2", "--out", "judge.json", "--quantize", "int8")),
        ("quantize", ("bench", "--requests", "1", "--quantize", "int8")),
        ("quantize", ("generate", "Tom has 3 pens.", "--quantize", "int8")),
    ],
)
def test_no_command_starts_without_its_extra(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, words: tuple[str, ...]
) -> None:
    command = hide(extra, monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("foretell.engine.engine.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    done = CliRunner().invoke(app, [words[0], str(checkpoint), *words[1:]])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith(f"{command}\n")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_calibration_in_python_checks_first(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide("lab", monkeypatch)
    with pytest.raises(MissingExtraError, match="a report or a calibration needs scipy"):
        calibrate(str(checkpoint), task="word", limit=2, work=tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_masked_lm_needs_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]}))
    (tmp_path / "model.safetensors").touch()
    hide("hf", monkeypatch)
    with pytest.raises(MissingExtraError, match="a Hugging Face masked LM needs transformers"):
        foretell.load(tmp_path)


def test_plots_need_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    hide("plots", monkeypatch)
    monkeypatch.delitem(sys.modules, "foretell.plots", raising=False)
    with pytest.raises(MissingExtraError, match="a plot needs matplotlib"):
        import_module("foretell.plots")


def test_the_harness_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    command = hide("lm-eval", monkeypatch)
    monkeypatch.delitem(sys.modules, "foretell.evaluation.harness.lm_eval", raising=False)
    with pytest.raises(SystemExit, match="error: the lm-evaluation-harness backend needs lm_eval") as left:
        runpy.run_module("foretell.evaluation.harness.lm_eval", run_name="__main__")
    assert str(left.value).endswith(command)
    with pytest.raises(MissingExtraError):
        import_module("foretell.evaluation.harness.lm_eval")
