"""The plan of the paper's tables: what is decoded, with which settings, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretell.errors import RequestError
from foretell.evaluation.benchmarks import BENCHMARKS
from foretell.evaluation.catalogue import PUBLIC, benchmark_named
from foretell.evaluation.task_recipe import TaskRecipe
from foretell.policies.stop.schedules import Linear
from foretell.reproduce import paper
from foretell.reproduce.plan import (
    CONFIGURATIONS,
    NO_STUDENT,
    ONE_MODEL,
    TABLES,
    Decoding,
    Plan,
    Subject,
    make_plan,
)
from tests.evaluation.test_benchmarks import ROWS, write

LLADA, TINY = Subject(paper.LLADA, student=True), Subject(paper.LLADA, counterparts=True, student=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), *paper.NAMES)


def write_data(folder: Path, *tasks: str) -> Path:
    """Write a few rows of these benchmarks."""
    for task in tasks:
        source = BENCHMARKS[PUBLIC[task]].source
        (folder / source.folder).mkdir()
        file = next(name for name in reversed(source.files) if "json" in name)
        write(folder / source.folder / file, ROWS[PUBLIC[task]])
    return folder


def plan(data: Path, subject: Subject = LLADA, *tables: str, **options: Any) -> Plan:
    return make_plan(subject, tables or tuple(TABLES), data=data, **options)


def test_the_whole_plan_decodes_each_thing_once(data: Path) -> None:
    planned = plan(data, allow_code_execution=True, sandbox="limits")
    assert not planned.skipped
    assert len(planned.decodings) == len(set(planned.decodings)) == 24 + 4 + 5 + 4 + 8 + 1 + 3 + 2
    used = [table.name for table in planned.tables if Decoding("gsm8k", "full") in table.decodings]
    assert used == ["main", "steps", "schedules", "fast-dllm", "sdtt"]
    assert {one.task for one in planned.decodings} == {*paper.NAMES, "gsm8k_128"}
    assert [one.recipe for one in planned.decodings if one.student] == ["full steps=128", "prophet steps=128"]


def test_prophet_has_the_thresholds_of_its_benchmark_everywhere(data: Path) -> None:
    stopped = 0
    for one in plan(data).decodings:
        benchmark = benchmark_named(one.task)
        stop: Any = TaskRecipe.of(one.recipe, benchmark).recipe.stop
        if "prophet" in one.recipe:
            assert stop.tau == (Linear() if "linear" in one.recipe else benchmark.thresholds), one
            stopped += 1
        else:
            assert not hasattr(stop, "tau"), one
    assert stopped == 20


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_compared_with_full_decoding_of_the_same_setting(name: str) -> None:
    for subject in (LLADA, TINY):
        table = TABLES[name](subject)
        for row in table.rows:
            assert row.base.recipe.startswith("full")
            assert row.base.task == row.decoding.task
            assert any(other.decoding == row.base and other.setting == row.setting for other in table.rows)


def test_the_papers_results_stand_beside_the_decoder_that_they_are_of() -> None:
    found = {
        (row.setting, row.decoder): row.paper and row.paper.accuracy
        for name in TABLES
        for row in TABLES[name](LLADA).rows
    }
    assert found["Sudoku", "Prophet"] == 38.0
    assert [found["window 256", f"{steps} steps"] for steps in (16, 32, 64, 128)] == [7.7, 22.5, 58.8, 76.2]
    assert (found["window 128", "full"], found["window 128", "Prophet"]) == (71.3, 72.7)
    assert (found["random", "baseline"], found["random", "Prophet"]) == (63.8, 66.6)
    assert (found["block 128", "baseline"], found["block 128", "Prophet"]) == (33.1, 52.2)
    assert (found["gsm8k", "staged"], found["gsm8k", "linear"]) == (77.9, 77.4)
    assert (found["gsm8k", "Fast-dLLM"], found["gsm8k", "parallel transfer alone"]) == (76.6, None)
    assert found["gsm8k", "SDTT + Prophet"] == 76.4


def test_counterparts_have_the_same_shares_of_their_window() -> None:
    recipes = {name: [one.recipe for one in TABLES[name](TINY).decodings] for name in TABLES}
    assert recipes["steps"][:5] == ["full", "full steps=4", "full steps=8", "full steps=16", "full steps=32"]
    assert "full steps=32" in recipes["sdtt"]
    assert "full block_length=6" in recipes["blocks"]
    assert "prophet block_length=96" in recipes["blocks"]
    main = TABLES["main"](TINY)
    assert {row.decoding.task for row in main.rows} == {"word", "choice", "sudoku", "countdown"}
    assert main.rows[0].setting == "choice (paper: MMLU)"
    planned = make_plan(TINY, limit=2)
    assert set(planned.problems.values()) == {2}
    assert not any(CONFIGURATIONS in table.notes for table in planned.tables)


def test_dream_has_only_the_main_table_in_the_paper(data: Path) -> None:
    planned = plan(data, Subject(paper.DREAM))
    for table in planned.tables:
        assert (ONE_MODEL in table.notes) == (table.name != "main")
        assert any(row.paper is not None for row in table.rows) == (table.name == "main")


def test_without_a_student_there_is_no_sdtt(data: Path) -> None:
    (table,) = plan(data, Subject(paper.LLADA), "sdtt").tables
    assert [row.decoder for row in table.rows] == ["teacher", "teacher, half the steps", "Prophet"]
    assert NO_STUDENT in table.notes
    (table,) = plan(data, LLADA, "sdtt").tables
    assert NO_STUDENT not in table.notes


def test_a_choice_of_tasks(data: Path) -> None:
    planned = plan(data, LLADA, tasks=["gsm8k"])
    assert set(planned.problems) == {"gsm8k", "gsm8k_128"}
    assert [table.name for table in plan(data, LLADA, tasks=["mmlu"]).tables] == ["main"]
    with pytest.raises(RequestError, match="unknown task 'gsm9k'; did you mean 'gsm8k'"):
        plan(data, LLADA, tasks=["gsm9k"])
    with pytest.raises(RequestError, match="unknown table 'block'; did you mean 'blocks'"):
        plan(data, LLADA, "block")
    with pytest.raises(RequestError, match="No row of these tables"):
        plan(data, LLADA, "steps", tasks=["mmlu"])


def test_what_cannot_be_decoded_is_known_before(tmp_path: Path) -> None:
    some = write_data(tmp_path, "sudoku4x4", "humaneval")
    planned = plan(some, LLADA, "main")
    assert set(planned.problems) == {"sudoku4x4"}
    assert planned.skipped["gpqa"].label == "no data"
    assert "gpqa_main.csv" in planned.skipped["gpqa"].reason
    assert planned.skipped["humaneval"].label == "not allowed"
    assert planned.skipped["humaneval"].reason.endswith("--allow-code-execution")
    assert {one.task for one in planned.decodings} == {"sudoku4x4"}
    with pytest.raises(RequestError, match=r"nothing to decode. gpqa: no data for gpqa"):
        plan(some, LLADA, "main", tasks=["gpqa"])


def test_damaged_data_are_an_error(tmp_path: Path) -> None:
    write_data(tmp_path, "sudoku4x4", "mmlu")
    write(tmp_path / "mmlu" / "hf_test.jsonl", [{"question": "?"}])
    with pytest.raises(RequestError, match=r"hf_test.jsonl, line 1: 'choices' is missing"):
        plan(tmp_path, LLADA, "main")


def test_the_cost_counts_forward_passes(data: Path) -> None:
    planned = plan(data)
    assert planned.cost(Decoding("gsm8k", "full")) == (2, 512, 512)
    assert planned.cost(Decoding("gsm8k", "prophet")) == (2, 512, round(2 * 256 / 1.63))
    assert planned.cost(Decoding("gsm8k", "full steps=16")) == (2, 32, 32)
    assert planned.cost(Decoding("gsm8k", "prophet steps=128", student=True)) == (2, 256, round(2 * 256 / 3.21))
    assert planned.cost(Decoding("gsm8k_128", "prophet block_length=8")) == (2, 256, 256)


def test_models_are_told_apart(literate: Path, literate_dream: Path) -> None:
    assert Subject.of(str(literate)) == Subject(paper.LLADA)
    assert Subject.of(str(literate_dream), "student") == Subject(paper.DREAM, student=True)
    assert Subject.of("tiny") == Subject(paper.LLADA, counterparts=True)
    assert Subject.of("Dream-org/Dream-v0-Instruct-7B") == Subject(paper.DREAM), "not here: only its name is known"
    assert Subject.of("my/model", tasks=["word"]) == Subject(paper.LLADA, counterparts=True)


@pytest.mark.parametrize("task", paper.NAMES)
def test_the_page_names_the_file_of_every_benchmark(task: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
    source = BENCHMARKS[PUBLIC[task]].source
    assert any(f"| {source.folder}/{file} | " in page for file in source.files)
    assert source.hub is None or source.hub.path in page
