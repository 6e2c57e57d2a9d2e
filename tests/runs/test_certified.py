"""The results and the page of runs/certified.py for known outcomes."""

from __future__ import annotations

import importlib
from dataclasses import asdict, replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from foretell.certify.coverage import CoverageResult
from foretell.certify.outcomes import Outcomes
from foretell.policies.stop.families import FAMILIES, Family
from foretell.policies.stop.sure import Sure
from tests.runs.test_study import RUNS

PROBLEMS = 1400


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RUNS))
    return importlib.import_module("certified")


def planted(rules: int, steps: int, bold: int = 0, errors: int = 0) -> Outcomes:
    """Return rules that take `steps` of 16 steps and lose nothing; with `bold`, all but the first take that and err."""
    taken, changed = np.full((rules, PROBLEMS), steps), np.zeros((rules, PROBLEMS), dtype=bool)
    if bold:
        taken[1:], changed[1:, :errors] = bold, True
    return Outcomes(taken, np.full(PROBLEMS, 16), changed, changed)


@pytest.fixture
def found(script: Any) -> Any:
    """Entropy is fast and safe; linear is faster with a risk of 1.07%; the others are slow, parallel is fastest."""
    judge = Family("judge", "", "", (1.0, 0.0), Sure)
    few = {name: replace(one, settings=(2.0, one.published or 1.0, 0.5)) for name, one in FAMILIES.items()}
    made = {name: (family, planted(3, 8)) for name, family in few.items()}
    made["sched"] = (few["sched"], planted(3, 1))
    made["entropy"] = (few["entropy"], planted(3, 4))
    made["linear"] = (few["linear"], planted(3, 8, bold=2, errors=15))
    return made | {"judge": (judge, planted(2, 8)), script.BOTH: (few["entropy"], planted(3, 1))}


def test_shared_takes_the_fastest_that_its_part_of_delta_certifies(script: Any, found: Any) -> None:
    rows = {(row.family, row.loss, row.risk): row for row in script.measure("word", found)}
    assert len(rows) == 12 * 2 * 4
    assert len(script.SHARING) == 9
    assert not {"sched", script.BOTH} & {*script.SHARING}, "they look elsewhere than the recipe does"
    linear, shared = rows["linear", "answer", 0.01], rows["shared", "answer", 0.01]
    assert 0 < linear.certified.violations < 0.05
    assert linear.naive.violations > 0.4
    assert 2 <= linear.certified.speedup < 2.5
    assert 4 <= shared.certified.speedup < 4.2
    assert shared.certified.violations < linear.certified.violations
    assert shared.naive.violations == linear.naive.violations, "naively the fastest is what is not safe"
    assert shared.published is None
    assert linear.published.violations == 1.0
    assert rows["shared", "answer", 0.05].certified.speedup == 8.0, "at 5% linear is certified too"
    assert rows["shared", "success", 0.005].certified.speedup == 2.0, "only the judge's share of delta is large enough"
    assert rows["entropy", "success", 0.005].certified.stops == 1.0


def test_equal_families_are_charged_once(script: Any, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def note(families: list[Family]) -> list[float]:
        given.append([one.name for one in families])
        return []

    monkeypatch.setattr(script, "share_delta", note)
    monkeypatch.setattr(script.Coverage, "evaluate_certified", lambda *_: kept())
    for task in ("word", "choice"):
        assert [*script.measure(task, found)]
    assert given[0] == [*script.SHARING]
    assert given[1] == [name for name in script.SHARING if name not in ("prophet-min", "linear-min")]


def test_the_picture_shows_speedups_and_draws(script: Any, found: Any) -> None:
    rows = [*script.measure("word", found)]
    figure = script.draw({"rows": [asdict(row) for row in rows], "ideal": {"word": (3.0, 2.5)}})
    speedups, broken = figure.axes
    assert [text.get_text() for text in speedups.texts][::3] == ["2.00x", "2.50x"], "Prophet's, and the bound"
    shared = [row for row in rows if (row.family, row.loss) == ("shared", "answer")]
    heights = [bar.get_height() for bar in broken.patches]
    ways = [[100 * getattr(row, way).violations for row in shared] for way in ("certified", "naive")]
    assert heights == pytest.approx([*ways[0], *ways[1]])
    plt.close(figure)


def kept(above: float = 0.0, violations: float = 0.0, stops: float = 1.0) -> CoverageResult:
    return CoverageResult(speedup=1.5, risk=0.01, above=above, violations=violations, stops=stops)


def test_the_verdict_counts_draws_and_splits(script: Any) -> None:
    result = script.FamilyResult
    rows = [
        result("word", "a", "success", 0.01, kept(above=0.09, violations=0.02), kept(above=0.5, violations=0.4), None),
        result("word", "b", "success", 0.02, kept(violations=0.05), kept(above=0.04, violations=0.6), None),
        result("choice", "a", "success", 0.005, kept(stops=0.0), kept(), None),
        result("choice", "b", "success", 0.05, kept(above=0.06, violations=0.06), kept(above=0.3), None),
    ]
    draws, splits = (script.count_kept(rows, which) for which in ("violations", "above"))
    assert (draws["kept"]["certified"], draws["cases"], draws["stops"]) == (3, 4, 3)
    assert draws["worst"]["certified"] == {"share": 0.06, "family": "b", "task": "choice", "risk": 0.05}
    assert draws["kept"]["naive"] == 2
    assert draws["worst"]["naive"] == {"share": 0.6, "family": "b", "task": "word", "risk": 0.02}
    assert draws["mean"] == pytest.approx(0.25)
    assert (splits["kept"]["certified"], splits["kept"]["naive"]) == (2, 2)
    assert splits["worst"]["certified"]["share"] == 0.09


def test_the_headline_is_not_the_family_named_after_looking(script: Any, found: Any) -> None:
    rows = [asdict(row) for row in script.measure("word", found)]
    numbers = {"limit": 2800, "draws": 10, "splits": 5, "taught": 5, "shared": script.SHARING, "confidence": 0.95}
    numbers |= {"parallel": "p", "ideal": {"word": (3.0, 2.5)}, "rows": rows, "seed": 1}
    page = importlib.import_module("page").render("certified", numbers)
    (said,) = (line for line in page.splitlines() if line.startswith("- answer, word, at 1% / 95%"))
    assert "`prophet-min` (Prophet with its smallest gap) has 2.00x; `shared` 4." in said
    assert "(reaches 2x); sched, the fastest family in hindsight, 16.00x" in said
    assert "`parallel + entropy`: 16.00x" in said
    assert page.count("over draws:") == page.count("over splits:") == 2


def test_a_mean_over_some_certified_splits_says_so(script: Any) -> None:
    some, never = kept(stops=0.25), replace(kept(stops=0.0), speedup=1.0)
    rows = [
        script.FamilyResult("word", name, "success", 0.01, found, kept(), None)
        for name, found in {"prophet-min": kept(), "shared": never, script.BOTH: some}.items()
    ]
    assert [row[2] for row in script.speed_rows(rows, "success")] == ["1.50x", "1.00x", "1.50x (25.0%)"]
    said = script.describe_speeds(rows, "word")["certified"]
    assert (said["shared"]["some"], said["shared"]["reached"]) == (None, False)
    assert (said[script.BOTH]["stops"], said[script.BOTH]["some"]) == (0.25, 3.0)


def test_the_losses_are_those_of_certificates(script: Any) -> None:
    assert tuple(script.LOSSES) == ("answer", "success")
    assert script.LOSSES["success"] == "a wrong answer where full decoding's is right"
