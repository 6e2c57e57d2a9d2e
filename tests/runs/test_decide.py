"""What runs/decide.py computes from decisions."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend("runs")
    return importlib.import_module("decide_numbers")


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Decisions of a calibrated model: the right label is drawn from the probabilities."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        p = rng.dirichlet([4.0, 1.0, 1.0])
        item = {"p": p.tolist(), "right": int(rng.choice(3, p=p)), "mass": 0.9, "thinking": 0.9}
        rows.append({"forwards": 2, "items": [item]})
    return rows


def test_a_calibrated_model(computed: Any) -> None:
    tested, learned = make_rows(1500, 0), make_rows(600, 1)
    row = computed.summarise("word", "default", ("full", {"steps": 1}), tested, tested, learned)
    assert (row.difference, row.changed, row.forwards, row.mass) == (0, 0, 2, 0.9)
    assert row.recipe == "full steps=1"
    assert row.temperature == pytest.approx(1, abs=0.2)
    assert row.error_after < 0.05
    assert row.mean_covered == pytest.approx(0.95, abs=0.015)
    assert row.covered == pytest.approx(0.95, abs=0.03)
    assert 1 < row.size < 3


def test_the_page_names_goals_that_are_not_met(computed: Any) -> None:
    tested, full = make_rows(200, 0), make_rows(200, 0)
    for row in full:
        row["items"][0]["p"] = np.eye(3)[row["items"][0]["right"]].tolist()  # always right
    checked = computed.check_calibration("choice", tested, make_rows(100, 1))
    start = computed.CertifiedRow("choice", 0.05, 10, 100, "full transfer=threshold(0.9)", 8.0)
    held = computed.compare(start, tested, full)
    rows = [
        computed.summarise("choice", "default", ("swift", {}), tested, full, make_rows(100, 1)),
        computed.summarise("choice", "full", ("full", {}), full, full, []),
    ]
    certified = [held, computed.CertifiedRow("choice", 0.01, 10, 100, None)]
    parts = {"rows": rows, "calibrated": [checked], "certified": certified}
    stored = {name: [asdict(one) for one in part] for name, part in parts.items()} | {
        "clocks": {"choice": {"default": 1.0, "full": 10.0}},
        "heads": [{"positions": 1, "all": 100.0, "labels": 50.0}],
        "command": {
            "tune": "foretell tune", "decide": "foretell decide", "rows": 9, "pilot": 3, "fresh": 8, "seconds": 1.0,
            "says": "Certified.", "recipe": "full", "temperature": 1.0, "doubt": 0.1, "caution": 0.0,
            "expected": [0.9, 1.0], "accuracy": 0.5, "forwards": 2.0, "error": 0.2, "error_after": 0.1, "covered": 0.95,
            "size": 1.0,
        },
        "coverage": 0.95,
    }  # fmt: skip
    numbers = json.loads(json.dumps(stored))
    text = importlib.import_module("page").render("decide", numbers)
    assert held.changed == sum(np.argmax(one["items"][0]["p"]) != one["items"][0]["right"] for one in tested)
    assert f"{held.changed} of 200 held-out decisions changed" in text
    assert ", above the promise" in text
    assert "| choice | 1% | 10, 100 | nothing | - |" in text
    assert "within 0.5 points of full decoding at 3 forwards or fewer: met; `full` +0.0 points" in text
    assert "choice, calibration error at most 0.02 after calibration (`default`)" in text
    assert "after temperature (`default`)" not in text
    assert "The logits of the labels take at least 3x less time than those of all tokens: not met; 2x at least" in text
    assert "| default |" in text
    assert "10.0x" in text
    assert "\n```\nforetell tune\nforetell decide\n```\n" in text
    assert len(importlib.import_module("decide").draw(numbers).axes) == 1
    plt.close("all")


def test_parts_that_were_not_measured_are_left_out(computed: Any) -> None:
    checked = asdict(computed.check_calibration("word", make_rows(50, 0), make_rows(50, 1)))
    numbers = {"rows": [], "calibrated": [checked], "clocks": {}, "coverage": 0.95, "heads": None, "command": None}
    text = importlib.import_module("page").render("decide", json.loads(json.dumps(numbers)))
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Goals", "## Calibration"]
    assert "png" not in text
    assert importlib.import_module("decide").draw(numbers) is None


def test_the_interval_counts_that_the_quantile_is_random(computed: Any) -> None:
    rng = np.random.default_rng(0)
    learned, tested = rng.random((400, 99)), rng.random((400, 200))
    bounds = [np.sort(one)[94] for one in learned]  # the 95th of 99: 0.95 of 100
    shares = [float((one <= bound).mean()) for one, bound in zip(tested, bounds, strict=True)]
    low, high = computed.expect_coverage(99, 200)
    assert np.mean([low <= one <= high for one in shares]) == pytest.approx(0.96, abs=0.03)
    plain = computed.exact(190, 200)
    assert high - low > plain[1] - plain[0]


def test_the_floor_is_the_error_of_a_calibrated_model(computed: Any) -> None:
    few, many = (computed.find_floor([0.8] * count) for count in (100, 2500))
    assert few[0] == pytest.approx(0.8 * 0.2 / 0.4 / np.sqrt(100) * np.sqrt(2 / np.pi), rel=0.1)
    assert many[0] == pytest.approx(few[0] / 5, rel=0.1)
    assert few[1] > few[0]
    assert computed.find_floor([1.0] * 10) == (0, 0)


def test_ranking(computed: Any) -> None:
    assert computed.rank_right([0.9, 0.8, 0.7], [True, False, True]) == 0.5
    assert computed.rank_right([0.9, 0.9, 0.7], [True, False, False]) == 0.75
    assert computed.rank_right([0.9, 0.8], [True, True]) is None


def test_answers_of_the_command(computed: Any) -> None:
    answers = [
        {"value": True, "probability": 0.9, "calibrated": 0.8, "conformal": [True]},
        {"value": False, "probability": 0.3, "calibrated": 0.4, "conformal": [False, True]},
    ]
    rows = [{"forwards": at, "answers": {"q1": one}} for at, one in enumerate(answers)]
    found = computed.describe_answers(rows, [False, True])
    assert found == {
        "accuracy": 0, "forwards": 0.5, "error": pytest.approx(0.8), "error_after": pytest.approx(0.7),
        "covered": 0.5, "size": 1.5,
    }  # fmt: skip


def test_what_is_not_measured_again_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend("runs")
    decide = importlib.import_module("decide")
    file = tmp_path / "decide.json"
    assert decide.keep_published({"heads": [1]}, file)["rows"] == []
    old = {"rows": [{"task": "word", "way": 1}, {"task": "choice", "way": 2}], "clocks": {"word": 1}, "heads": [3]}
    file.write_text(json.dumps(old))
    kept = decide.keep_published({"rows": [{"task": "word", "way": 4}], "clocks": {"choice": 5}}, file)
    assert kept["rows"] == [{"task": "choice", "way": 2}, {"task": "word", "way": 4}]
    assert kept["clocks"] == {"word": 1, "choice": 5}
    assert (kept["heads"], kept["command"], kept["certified"]) == ([3], None, [])
