"""The study's scripts on small random networks: bundled tasks and public ones, decoded once and shared."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from foretell.engine.trace_files import load_traces
from foretell.errors import RequestError
from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.records import read_records
from tests.evaluation.test_benchmarks import ROWS, write

RUNS = Path(__file__).parents[2] / "runs"
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a script in this test's folder and returns the page on one line."""
    monkeypatch.syspath_prepend(str(RUNS))

    def started(script: str, model: Path, *words: str) -> str:
        folders = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", [script, "--model", str(model), *folders, *words])
        importlib.import_module(script).main()
        plt.close("all")
        return " ".join((tmp_path / "out" / f"{script}.md").read_text().split())

    return started


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Public benchmarks of a few rows."""
    for name, file in (("mmlu", "hf_test.jsonl"), ("gsm8k", "test.jsonl")):
        (tmp_path / "data" / name).mkdir(parents=True)
        write(tmp_path / "data" / name / file, ROWS[name])
    return tmp_path / "data"


def numbers(folder: Path, script: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / f"{script}.json").read_text())
    return found


def folders(folder: Path) -> set[str]:
    """Return the folders of all decodings, without the model's name."""
    return {
        "/".join(path.parent.relative_to(folder / "work").parts[1:]) for path in folder.glob("work/**/manifest.json")
    }


def test_the_main_table_replays_and_checks_itself(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    page = run("main_table", checkpoint, "--tasks", "sudoku", "--limit", "4", "--clock", "2")
    assert "Of the 6 decodings in that run that were also replayed, 6 took the same steps" in page
    assert "The paper's Sudoku: +3.0 points at 2.46x." in page
    found = numbers(tmp_path, "main_table")["tasks"]["sudoku"]
    assert [row["n"] for row in found["rows"]] == [4] * 4
    assert [row["budget"] for row in found["rows"]] == [24, 24, 24, 12]
    assert all(row["clock_speedup"] > 0 for row in found["rows"])
    assert (tmp_path / "out" / "main_table.png").stat().st_size > 1000
    assert "[main_table](main_table.md)" in (tmp_path / "out" / "README.md").read_text()


def test_a_replay_that_is_not_the_live_run_is_refused(
    run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(RUNS))
    monkeypatch.setattr(importlib.import_module("main_table"), "count_agreeing", lambda *_: 0)
    with pytest.raises(RequestError, match="only 0 of 3 live decodings"):
        run("main_table", checkpoint, "--tasks", "sudoku", "--limit", "1")


def test_decodings_are_shared(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    run("last_change", checkpoint, "--tasks", "sudoku", "--limit", "3")
    assert folders(tmp_path) == {"traced/sudoku/full/3"}
    for script, limit in (("gap", "3"), ("last_change", "2")):
        run(script, checkpoint, "--tasks", "sudoku", "--limit", limit)
    assert folders(tmp_path) == {"traced/sudoku/full/3"}, "a smaller run takes the first of a larger one"
    first = numbers(tmp_path, "last_change")["tasks"][0]
    assert len(first["right"]) + len(first["wrong"]) + first["silent"] == 2
    run("last_change", checkpoint, "--tasks", "sudoku", "--limit", "4")
    assert folders(tmp_path) == {"traced/sudoku/full/3", "traced/sudoku/full/4"}


def test_public_benchmarks_with_and_without_their_suffix(run: Run, literate: Path, data: Path, tmp_path: Path) -> None:
    page = run("convergence", literate, "--tasks", "mmlu", "--limit", "2", "--data", str(data))
    assert "| mmlu, suffix, low-confidence |" in page
    assert "`python runs/convergence.py --model literate --tasks mmlu --limit 2`" in page
    assert "99.7 | 99.9" in page
    assert folders(tmp_path) == {
        f"traced/{task}/{order}/2" for task in ("mmlu", "mmlu-free") for order in ("full", "random")
    }
    page = run("dynamics", literate, "--tasks", "mmlu", "--limit", "1", "--data", str(data))
    assert len(folders(tmp_path)) == 4
    assert page.count("| full |") == 2


def test_found_regions_replay_and_check_themselves(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    page = run("found_regions", checkpoint, "--tasks", "choice", "choice-free", "sudoku", "--limit", "3")
    assert "Of 42 decodings made live, in batches of 4, 42 took the same steps to the same answer" in page
    found = numbers(tmp_path, "found_regions")["tasks"]
    assert [len(one["results"]) for one in found.values()] == [7, 5, 5]
    assert found["choice"]["seen"]["delimiter"]["final"] == 1.0, "the suffix is pinned"
    assert found["choice-free"]["seen"]["delimiter"]["final"] == 0.0, "and without it a random network never writes it"
    assert found["choice-free"]["results"]["delimiter, min"]["row"]["settled"] == 0.0
    assert all(one["risk"] + one["row"]["agreement"] == 1.0 for one in found["sudoku"]["results"].values())
    assert (tmp_path / "out" / "found_regions.png").stat().st_size > 1000
    assert folders(tmp_path) == {f"traced/{task}/full/3" for task in ("choice", "choice-free", "sudoku")}


def test_found_regions_that_are_not_the_live_ones_are_refused(
    run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(RUNS))
    script = importlib.import_module("found_regions")
    monkeypatch.setattr(script, "decode_live", lambda one, _: {one.cases[0].example.id: (0, None)})
    with pytest.raises(RequestError, match="sudoku: only 0 of 4 live decodings are what the replay says"):
        run("found_regions", checkpoint, "--tasks", "sudoku", "--limit", "1")


def test_what_is_missing_is_said_at_once(run: Run, literate: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no data for piqa"):
        run("main_table", literate, "--tasks", "mmlu", "piqa", "--data", str(data))
    with pytest.raises(RequestError, match="no suffix prompt"):
        run("convergence", literate, "--tasks", "sudoku", "--limit", "1")
    with pytest.raises(RequestError, match="choose word or gsm8k"):
        run("ablations", literate, "--tasks", "mmlu", "--data", str(data))
    assert folders(tmp_path) == set()


def test_a_missing_extra_and_code_that_is_not_allowed_end_a_script_in_one_line(
    run: Run, literate: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: Any = importlib.import_module("shared")
    (data / "mbpp").mkdir()
    write(data / "mbpp" / "hf_test.jsonl", ROWS["mbpp"])
    with pytest.raises(SystemExit, match=r"^error: .* has to be allowed: --allow-code-execution$"):
        shared.run_script(lambda: run("main_table", literate, "--tasks", "mbpp", "--data", str(data)))
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(SystemExit, match=r"^error: .* pip install 'foretell\[lab\]'$"):
        shared.run_script(lambda: run("main_table", literate, "--tasks", "mmlu", "--limit", "1", "--data", str(data)))
    assert folders(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_papers_ablations(run: Run, literate: Path, data: Path, tmp_path: Path) -> None:
    page = run("ablations", literate, "--tasks", "gsm8k", "--limit", "1", "--data", str(data))
    assert "| window 128 | static 8 | live |" in page
    assert "| 128 | Prophet, min | replayed |" in page
    found = folders(tmp_path)
    assert {"plain/gsm8k/full_steps=16/1", "traced/gsm8k_128/full/1", "traced/gsm8k_128/random/1"} <= found
    assert len(found) == 4 + 4 + 2 + 3 + 4


@pytest.mark.parametrize(
    ("rise", "before", "after", "said"),
    [
        (50.0, (0.2, 0.3), (0.4, 0.5), "agrees in direction"),
        (50.0, (0.4, 0.5), (0.2, 0.3), "differs"),
        (50.0, (0.9, 1.0), (0.9, 1.0), "differs, less than half of that change here"),
        (50.0, (0.1, 0.9), (0.2, 0.9), "not decided with this many problems"),
        (-50.0, (0.9, 1.0), (0.1, 0.2), "agrees in direction"),
        (0.1, (0.9, 1.0), (0.9, 1.0), "no clear change in either"),
        (0.1, (0.1, 0.2), (0.9, 1.0), "differs"),
    ],
)
def test_changes_beside_the_papers(
    rise: float, before: tuple[float, float], after: tuple[float, float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(RUNS))
    assert importlib.import_module("convergence").classify_change(rise, before, after) == said


def test_the_index_starts_with_what_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUNS))
    module = importlib.import_module("results_page")
    page = (
        "# A\n- no remark\n## Compared with the paper\nSome words.\n\nAgrees with the paper:\n\n- b\n\n"
        "Differs from the paper:\n\n- a\n\nNot decided with this many problems:\n\n- c\n"
    )
    text = module.make_index({"gap": page + "\n## Next\n- d", "own": "# Title\n"})
    order = ["What agrees", "- [gap](gap.md): b", "What differs", "- [gap](gap.md): a", "What is not decided", ": c"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "no remark" not in text
    assert ": d" not in text
    assert "| [own](own.md) | Title | |" in text


def test_certified_and_judge_share_decodings_and_replays(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    words = ("--tasks", "sudoku", "choice", "--limit", "4", "--taught", "2")
    page = run("certified", checkpoint, *words)
    assert "4 held-out problems per task" in page
    assert "certified rules keep delta in" in page
    found = numbers(tmp_path, "certified")
    assert {row["family"] for row in found["rows"]} > {"prophet-min", "entropy", "judge", "parallel + entropy"}
    assert all(row["certified"]["stops"] == 0 for row in found["rows"]), "two examples show nothing"
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("work/*/tables/**/*.*")}
    assert len(kept) >= 20
    page = run("judge", checkpoint, *words)
    assert "choice -> sudoku" in page
    assert len(numbers(tmp_path, "judge")["importance"]["choice"]) == 23
    assert (tmp_path / "out" / "judge.png").stat().st_size > 1000
    now = {path: path.stat().st_mtime_ns for path in tmp_path.glob("work/*/tables/**/*.*")}
    assert kept.items() < now.items(), "what was replayed is not replayed again"


def test_more_problems_begin_with_those_that_are_there(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    run("last_change", checkpoint, "--tasks", "sudoku", "--limit", "3")
    run("last_change", checkpoint, "--tasks", "sudoku", "--limit", "5")
    (few,), (many,) = (list(tmp_path.glob(f"work/*/traced/sudoku/full/{count}")) for count in (3, 5))
    before, after = ({record.id: record for record in read_records(folder)} for folder in (few, many))
    assert len(after) == 5
    assert {name: after[name] for name in before} == before, "clock and all"
    assert read_manifest(many)["limit"] == 5
    assert load_traces(many / str(after[next(iter(before))].trace))
