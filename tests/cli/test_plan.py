"""`foretell plan`: what it prints, as text and as JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

SMALL = ("plan", "tiny", "--dtype", "float32", "--window", "16", "--prompt", "8", "--batch", "2")
OWN = ("--tflops", "0.1", "--bandwidth", "20")


def test_a_known_model_on_a_known_device(run: Run) -> None:
    text = run("plan", "llada-8b", "--device", "h100", "--window", "32", "--batch", "4", "-r", "dual").stdout
    assert "LLaDA" not in text
    assert "llada-8b: 8.02B parameters in bfloat16" in text
    assert "prediction, nothing was run" in text
    assert "weights 16.0 GB, keys and values" in text
    assert "fits into 80.0 GB" in text
    assert "a pass over the whole text" in text
    assert "4 x 160" in text
    assert "32 steps, at least" in text


def test_numbers_of_another_device(run: Run) -> None:
    text = run(*SMALL, *OWN).stdout
    assert "your device: 0.1 TFLOP/s, 20 GB/s" in text
    assert "fits" not in text
    assert "more rows hardly raise the throughput" in text
    assert "DOES NOT FIT into 1 MB" in run(*SMALL, *OWN, "--memory", "0.001").stdout


def test_json_holds_the_same_prediction(run: Run, checkpoint: Path) -> None:
    words = ("plan", checkpoint, "--device", "l4", "--window", "16", "--prompt", "8", "-r", "prophet", "--steps", "4")
    found = json.loads(run(*words, "--json").stdout)
    assert found["prediction"].startswith("prediction, nothing was run")
    assert (found["model"], found["steps"], found["device"]["name"], found["window"]) == ("random", 4, "L4", 16)
    assert found["step"]["seconds"] == pytest.approx(found["request"]["seconds"] / 4)
    assert found["requests_per_second"] == pytest.approx(8 / found["request"]["seconds"])
    text = run(*words).stdout
    assert f"{found['requests_per_second']:.3g} requests per second" in text


def test_the_list_of_devices_names_sources(run: Run) -> None:
    text = run("plan", "--devices").stdout
    assert "h100" in text
    assert "datasheet" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan",), "name a model"),
        (("plan", "tiny"), "a device is a name (--device h100), or --tflops and --bandwidth"),
        (("plan", "tiny", "--device", "h100", "--memory", "3"), "leave out --tflops"),
        (("plan", "tiny", "--device", "h100", "--dtype", "auto"), "name a dtype"),
        ((*SMALL, *OWN, "-r", "ful"), "unknown recipe 'ful'"),
        ((*SMALL, *OWN, "--tokens-per-step", "2"), "tokens per step are for parallel transfers"),
        (("plan", "tini", "--device", "h100"), "did you mean 'tiny'"),
    ],
)
def test_what_is_wrong_is_said(run: Run, words: tuple[str, ...], said: str) -> None:
    assert said in " ".join(run(*words, code=2).stderr.split())
