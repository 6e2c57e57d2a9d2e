"""Reports equal numbers computed by hand, and statistics equal published values."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from foretell.errors import RequestError, StorageError
from foretell.evaluation.intervals import bootstrap, exact, mcnemar, paired_difference, penalised_speedup, wilson
from foretell.evaluation.records import Record, read_records, repair
from foretell.evaluation.report import HEADINGS, Report, compare, count_levels, report
from foretell.evaluation.sweep import expand_sweep


def record(recipe: str, key: int, right: bool, steps: int, answer: str = "1", wall: float = 1.0) -> Record:
    cost = (steps, 64, steps, 100 * steps)  # steps, budget, forwards, columns
    more: dict[str, Any] = {}
    if recipe == "fast":  # a fifth of it padding, a quarter of the answers fallbacks
        more = {"columns_computed": 125 * steps, "fallback": key == 2}
    times = (wall, wall)
    return Record(recipe, str(key), "text", answer, "1", right, *cost, 32, None, None, "complete", *times, **more)


# full: 3 of 4 right in 60 steps; fast: 2 of 4 right in 20, one lost, none won, and two answers the same.
FULL = [record("full", key, right, 60, wall=2.0) for key, right in enumerate((True, True, True, False))]
FAST = [
    record("fast", 0, True, 10),
    record("fast", 1, True, 10),
    record("fast", 2, False, 30, "2"),
    record("fast", 3, False, 30, "3"),
]


def test_rows_by_hand() -> None:
    full, fast = compare([*FULL, *FAST], ("full", "fast"))
    assert (full.n, full.accuracy, full.steps, full.step_speedup, full.difference) == (4, 0.75, 60, 1.0, 0.0)
    assert full.budget_speedup == pytest.approx(64 / 60)
    assert (fast.accuracy, fast.steps, fast.step_speedup, fast.clock_speedup) == (0.5, 20, 3.0, 2.0)
    assert fast.budget_speedup == pytest.approx(3.2)
    assert (full.columns, fast.columns) == (6000, 2000)
    assert full.padded is None
    assert (full.fallbacks, fast.fallbacks) == (None, 0.25), "not noted, and one of four"
    assert fast.padded == pytest.approx(0.2)
    assert fast.tokens_per_forward == pytest.approx(4 * 32 / 80)
    assert (fast.lost, fast.won, fast.mcnemar_p) == (1, 0, 1.0)
    assert fast.difference == -0.25
    assert fast.agreement == 0.5
    assert fast.penalised_speedup == pytest.approx(3 * (0.5 / 0.75) ** 4)
    assert (fast.difference_low, fast.difference_high) == paired_difference(1, 0, 4)


def test_a_report_shows_how_programs_were_isolated(tmp_path: Path) -> None:
    assert count_levels(FULL) == {}
    manifest = {"task": "mbpp", "model": "tiny", "seed": 3, "examples": 4, "order": ["full"], "recipes": {}}
    same = [replace(one, sandbox="bubblewrap") for one in FULL]
    other = [*same[:2], replace(FULL[2], sandbox="limits"), FULL[3]]
    for records, shown in ((FULL, "n = 4"), (same, "n = 4, sandbox: bubblewrap"), (other, "limits, 1 not recorded)")):
        made = Report(manifest, compare(records, ("full",)), count_levels(records))
        assert made.title.endswith(shown)
        assert shown in made.markdown().splitlines()[0]
    assert "sandbox: mixed (2 bubblewrap, 1 limits, " in made.title
    made.save(tmp_path)
    stored = json.loads((tmp_path / "report.json").read_text())
    assert stored["sandbox"] == {"bubblewrap": 2, "limits": 1, "not recorded": 1}


def test_half_a_run_compares_only_what_both_have() -> None:
    full, fast = compare([*FULL[:2], *FAST[1:3]], ("full", "fast", "later"))
    assert (full.n, fast.n, fast.pairs) == (2, 2, 1)
    assert fast.accuracy == 0.5
    assert (fast.difference, fast.step_speedup) == (0.0, 6.0)
    (_, apart) = compare([FULL[0], FAST[1]], ("full", "fast"))
    assert apart.pairs == 0
    with pytest.raises(RequestError, match="no results yet for 'full'"):
        compare(FAST, ("full", "fast"))
    with pytest.raises(StorageError, match="the result of '0': unknown recipe 'fast'"):
        compare([*FULL, *FAST], ("full",))


def test_what_never_ends_is_not_repaired(tmp_path: Path) -> None:
    (tmp_path / "results-0.jsonl").symlink_to("/dev/zero")
    with pytest.raises(StorageError, match=r"results-0\.jsonl: it is not a regular file"):
        repair(tmp_path)


def test_counts_that_no_run_has_are_refused(tmp_path: Path) -> None:
    for name, value in (("steps", 0), ("forwards", 0), ("budget", -1), ("columns_computed", -1), ("steps", 10**400)):
        (tmp_path / "results-0.jsonl").write_text(json.dumps(asdict(FULL[0]) | {name: value}) + "\n")
        with pytest.raises(StorageError, match=f"line 1: .*{name}"):
            read_records(tmp_path)


def test_a_report_is_printed_and_saved(tmp_path: Path) -> None:
    used = {"recipe": "full", "options": {"max_new_tokens": 64}}
    manifest = {
        "task": "word", "model": "tiny", "seed": 3, "examples": 5, "order": ["full", "fast"],
        "recipes": {"full": used, "fast": used},
    }  # fmt: skip
    made = Report(manifest, compare([*FULL, *FAST], ("full", "fast")))
    assert made.title == "word, tiny, seed 3, n = 4/4 of 5 (not complete)"
    assert replace(made, manifest=manifest | {"strict": True}).title.startswith("word, strict, tiny, seed 3")
    made.save(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert (
        "| fast | 4 | 50.0% | 15.0-85.0 | 25.0% | 20.0 | 64 | 3.00x | 2.00x | 20.0 | 2000 | 20.0% | 1.60 | -25.0 |"
        in text
    )
    assert "| -69.9 to +36.2 | 1 |" in text
    assert "- `fast` is `full` with max_new_tokens = 64" in text
    assert json.loads((tmp_path / "report.json").read_text())["rows"][1]["lost"] == 1
    (wide,), narrow = made.tables(180), made.tables(80)
    assert {table.row_count for table in (wide, *narrow)} == {2}
    assert len(wide.columns) == len(HEADINGS) == sum(len(table.columns) - 1 for table in narrow) + 1
    screen = Console(width=80, file=io.StringIO())
    screen.print(*narrow)
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in shown for heading in HEADINGS for word in heading.split())
    assert "\u2026" not in shown
    with pytest.raises(StorageError, match="holds no evaluation"):
        report(tmp_path)


@pytest.mark.parametrize(
    ("width", "name", "count"),
    [(180, "prophet", 1), (120, "prophet", 2), (80, "prophet", 3), (80, "prophet-linear", 3), (60, "prophet", 4)],
)
def test_tables_fit_and_name_every_recipe(width: int, name: str, count: int) -> None:
    records = [*FULL, *(replace(one, recipe=name) for one in FAST)]
    made = Report({"task": "word", "model": "tiny", "seed": 3, "examples": 4}, compare(records, ("full", name)))
    tables = made.tables(width)
    assert len(tables) == count
    assert [str(one.header).replace("\n", " ") for table in tables for one in table.columns[1:]] == [*HEADINGS[1:]]
    screen = Console(width=width, file=io.StringIO())
    screen.print(*tables, sep="")
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count(name) == count, "in each of them, and in one piece"
    assert "\u2026" not in shown


def test_a_long_recipe_leaves_room_for_numbers() -> None:
    name = "prophet stop.tau=staged(high=7.5,mid=5,low=2.5) steps=64 block_length=16"
    kept = {"task": "word", "model": "tiny", "seed": 3, "examples": 4}
    made = Report(kept, compare([*FULL, *(replace(one, recipe=name) for one in FAST)], ("full", name)))
    for table in made.tables(80)[1:]:
        assert table.columns[0].max_width == 26
        screen = Console(width=80, file=io.StringIO())
        screen.print(table)
        lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
        rows = "".join(line[1:27].strip() for line in lines).replace(" ", "").partition("full")[2]
        assert rows == name.replace(" ", "")


def test_wilson_on_known_values() -> None:
    # Newcombe 1998, table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for right, count, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)):
        assert wilson(right, count) == pytest.approx((low, high), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (0, 300), (3, 300), (299, 300), (300, 300), (41, 9000)])
def test_clopper_and_pearson(right: int, count: int) -> None:
    expected = stats.binomtest(right, count).proportion_ci(0.95, method="exact")
    assert exact(right, count) == pytest.approx((expected.low, expected.high), abs=1e-10)


def test_mcnemar_is_exact() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
    assert mcnemar(1, 7) == mcnemar(7, 1) == pytest.approx(2 * (1 + 8) / 2**8)


def cover(interval: Callable[[int, int], tuple[float, float]], count: int, losing: float, winning: float) -> float:
    """Return the probability that the interval from (lost, won) of `count` holds the true difference."""
    most = [int(stats.binom.ppf(0.9999, count, share)) for share in (losing, winning)]
    found = 0.0
    for lost, won in product(range(most[0] + 1), range(most[1] + 1)):
        low, high = interval(lost, won)
        if low <= winning - losing <= high:
            shares = [losing, winning, 1 - losing - winning]
            found += float(stats.multinomial.pmf([lost, won, count - lost - won], count, shares))
    return found


@pytest.mark.parametrize("count", [100, 500])
@pytest.mark.parametrize(
    ("losing", "winning"), [(0.002, 0.0), (0.01, 0.0), (0.05, 0.0), (0.0, 0.01), (0.012, 0.01), (0.06, 0.01)]
)
def test_a_paired_interval_covers_the_truth_as_often_as_it_says(count: int, losing: float, winning: float) -> None:
    def percentile(lost: int, won: int) -> tuple[float, float]:
        draws = np.random.default_rng(0).multinomial(count, [lost / count, won / count, 1 - (lost + won) / count], 400)
        low, high = np.percentile((draws[:, 1] - draws[:, 0]) / count, [2.5, 97.5])
        return float(low), float(high)

    found = cover(lambda lost, won: paired_difference(lost, won, count), count, losing, winning)
    assert found > 0.945
    if (losing + winning) * count <= 2.5:
        assert cover(percentile, count, losing, winning) < 0.75, "a percentile bootstrap does not"


def test_a_paired_interval_on_known_values() -> None:
    """One was computed with a numerical search for the likeliest shares; Wilson's is that of no differing pair."""
    assert paired_difference(0, 0, 500) == pytest.approx((-wilson(0, 500).high, wilson(0, 500).high))
    assert paired_difference(50, 0, 50).low == -1.0 == -paired_difference(0, 50, 50).high
    low, high = paired_difference(3, 12, 44)
    assert paired_difference(12, 3, 44) == pytest.approx((-high, -low))
    assert (low, high) == pytest.approx((0.03549, 0.36961), abs=1e-5)
    assert paired_difference(100, 300, 1000) == pytest.approx((0.1625, 0.2375), abs=0.002), "near the normal interval"


def test_bootstrap_is_seeded_and_near_the_normal_interval() -> None:
    values = [1.0] * 300 + [0.0] * 600 + [-1.0] * 100
    assert bootstrap(values, 1) == bootstrap(values, 1) != bootstrap(values, 2)
    spread = 1.96 * ((0.4 - 0.04) / 1000) ** 0.5
    assert bootstrap(values) == pytest.approx((0.2 - spread, 0.2 + spread), abs=0.004)
    assert bootstrap([0.0, 0.0]) == (0.0, 0.0)


def test_penalised_speedup() -> None:
    assert penalised_speedup(2.0, 0.9, 0.9) == 2.0
    assert penalised_speedup(2.0, 0.45, 0.9) == pytest.approx(0.125)
    assert penalised_speedup(2.0, 0.1, 0.0) is None


def test_sweeps_cross_their_values() -> None:
    assert expand_sweep(["prophet"], ["steps=8,16", "stop.tau=linear(start=8,end=3),staged"]) == (
        "prophet",
        "prophet steps=8 stop.tau=linear(start=8,end=3)",
        "prophet steps=8 stop.tau=staged",
        "prophet steps=16 stop.tau=linear(start=8,end=3)",
        "prophet steps=16 stop.tau=staged",
    )
    for wrong in (["steps"], ["=3"], ["steps=3,"], ["steps=1", "steps=2"]):
        with pytest.raises(RequestError):
            expand_sweep(["full"], wrong)
