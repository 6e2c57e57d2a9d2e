"""`foretell eval` and `foretell tasks`: which tasks there are, what they need, and prompts with a layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretell.cli.tasks import HEADINGS
from foretell.errors import PermissionNeededError, VocabularyError
from foretell.evaluation.benchmarks.bundled import BUNDLED
from foretell.evaluation.benchmarks.gsm8k import GSM8K
from foretell.evaluation.benchmarks.humaneval import HUMANEVAL
from foretell.evaluation.catalogue import ABOUT, CATALOGUE, PUBLIC, list_tasks
from foretell.evaluation.records import read_records
from foretell.evaluation.run import Evaluation, PreparedEvaluation
from tests.cli.conftest import WORDS, Run
from tests.evaluation.levels import BEST_LEVEL

QUESTION = {"question": "How many eggs are there?", "answer": "#### 18"}
FUNCTION = {
    "task_id": "HumanEval/0",
    "entry_point": "one",
    "prompt": 'def one() -> int:\n    """Return 1."""\n',
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A FORETELL_DATA folder with one row of GSM8K and one of HumanEval."""
    for source, row in ((GSM8K().source, QUESTION), (HUMANEVAL.source, FUNCTION)):
        file = tmp_path / "data" / source.folder / source.files[0]
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(row))
    monkeypatch.setenv("FORETELL_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": WORDS, "answer": answer}) for answer in ("3", None, None)))
    return file


def test_tasks_lists_every_task_in_a_line_of_80_columns(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.evaluation.catalogue.find_spec", lambda _: None)
    lines = [line.rstrip() for line in run("tasks").stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    shown = {line.split()[0]: line for line in lines if line}
    assert set(CATALOGUE) <= set(shown)
    for task in list_tasks():
        assert shown[task.name].startswith(f"{task.name} ")
        assert f" {task.about}" in shown[task.name], "nothing is cut"
        assert task.kind in HEADINGS
    assert shown["word"].endswith("word problems of one to five steps")
    assert shown["gsm8k"].endswith("data found")
    assert shown["gsm8k-free"].endswith("data found")
    assert shown["mmlu"].endswith("data missing")
    assert shown["humaneval"].endswith("data found, runs code")
    assert shown["mbpp"].endswith("data missing, runs code")
    assert shown["prompts"].endswith("--data FILE, --layout")
    assert shown["fill"].endswith("--data FILE")
    assert set(ABOUT) == {name for name in CATALOGUE if not name.endswith("-free")}


def test_tasks_says_what_can_be_fetched_or_is_not_installed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORETELL_DATA", str(tmp_path))
    monkeypatch.setattr("foretell.evaluation.catalogue.find_spec", lambda name: name == "datasets" or None)
    monkeypatch.setattr("foretell.extras.find_spec", lambda _: None)
    shown = {line.split()[0]: line.rstrip() for line in run("tasks").stdout.splitlines() if line.strip()}
    assert shown["mmlu"].endswith("data on the hub")
    assert shown["sudoku4x4"].endswith("data missing"), "which no hub has"
    assert shown["eval,"].endswith("it is missing: pip install 'foretell[lab]'.")


def test_an_unknown_task_lists_prompts_too(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    said = run("eval", checkpoint, "--task", "promts", "--out", tmp_path / "out", code=2).stderr
    assert "unknown task 'promts'; did you mean 'prompts'?" in said
    said = run("eval", checkpoint, "--task", "prompts", "--out", tmp_path / "out", code=2).stderr
    assert "none was given: use source=... (--data FILE)" in said


@pytest.mark.parametrize("task", ["gsm8k", "gsm8k-free"])
def test_a_model_that_cannot_read_a_benchmark_names_what_it_can(
    run: Run, checkpoint: Path, data: Path, tmp_path: Path, task: str
) -> None:
    said = run("eval", checkpoint, "--task", task, "--out", tmp_path / "out", code=2).stderr
    assert said == (
        f"error: {checkpoint} cannot read {task}: its vocabulary of 126 tokens lacks words of this benchmark; tasks "
        f"that it can do: {', '.join(BUNDLED)}, prompts\n"
    )
    assert not (tmp_path / "out").exists()
    assert task.removesuffix("-free") in PUBLIC


def test_only_tasks_that_fit_are_named(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    """The tasks are tried: a context of 60 has room only for short windows."""
    config = json.loads((checkpoint / "config.json").read_text())
    folder = tmp_path / "short"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"max_sequence_length": 60}))
    with pytest.raises(VocabularyError, match=r"can do: sudoku, countdown, prompts$"):
        PreparedEvaluation.prepare(Evaluation(str(folder), "gsm8k", ("full",), tmp_path / "out"))


def test_your_own_words_keep_their_hints(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    shared = ("--limit", "1", "--out", tmp_path / "out")
    said = run("eval", checkpoint, "--task", "word", "--suffix", "The anwser is", *shared, code=2).stderr
    assert "has no 'anwser' (did you mean 'answer'?)" in said
    file = tmp_path / "prompts.jsonl"
    file.write_text('"Tom has 3 apples ."\n"Tom has 3 aples ."\n')
    said = run("eval", checkpoint, "--task", "prompts", "--data", file, *shared[2:], code=2).stderr
    assert "prompts.jsonl, line 2, example 2: the model's vocabulary has no 'aples' (did you mean 'apples'?)" in said
    assert not (tmp_path / "out").exists(), "a later prompt is checked before the first one is decoded"


def test_running_code_is_allowed_by_the_flag_here_and_by_the_argument_in_python(
    run: Run, checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    for words in (("eval", "--out", tmp_path / "out"), ("judge", "--out", tmp_path / "judge.json")):
        said = run(words[0], checkpoint, "--task", "humaneval", *words[1:], code=2).stderr
        assert said.endswith("has to be allowed: --allow-code-execution\n")
    with pytest.raises(PermissionNeededError, match=r"has to be allowed: allow_code_execution=True$"):
        PreparedEvaluation.prepare(Evaluation(str(checkpoint), "humaneval", ("full",), tmp_path / "out"))
    allowed = ("--task", "humaneval", "--allow-code-execution", "--sandbox", BEST_LEVEL)
    assert "cannot read humaneval" in run("eval", checkpoint, *allowed, "--out", tmp_path / "out", code=2).stderr
    misspelled = (*allowed[:-1], "bubblwrap", "--out", tmp_path / "out")
    assert "'bubblwrap'; did you mean 'bubblewrap'?" in run("eval", checkpoint, *misspelled, code=2).stderr


def budgets(folder: Path) -> set[int]:
    return {record.budget for record in read_records(folder)}


def test_prompts_take_a_layout(run: Run, checkpoint: Path, prompts: Path, tmp_path: Path) -> None:
    asked = ("eval", checkpoint, "--task", "prompts", "--data", prompts, "-r", "full")
    said = run(*asked, "--out", tmp_path / "default")
    assert '2 of 3 prompts have no "answer" and count as wrong' in said.stderr
    run(*asked, "--out", tmp_path / "named", "--layout", "word")
    run(*asked, "--out", tmp_path / "mine", "--layout", "word", "--max-new-tokens", "12", "--suffix", "The answer is")
    assert budgets(tmp_path / "default") == budgets(tmp_path / "named") == {24}
    assert budgets(tmp_path / "mine") == {12}
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    assert manifest["recipes"]["full"]["options"] == {
        "max_new_tokens": 12,
        "suffix": "The answer is",
        "answer_length": 2,
    }
    assert "unknown layout 'wrd'; did you mean 'word'?" in run(*asked, "--out", "x", "--layout", "wrd", code=2).stderr


def test_a_sweep_takes_a_layout(run: Run, checkpoint: Path, prompts: Path, tmp_path: Path) -> None:
    shared = (checkpoint, "--task", "prompts", "--data", prompts, "--layout", "word", "--out", tmp_path / "out")
    run("sweep", *shared, "--base", "full", "--vary", "steps=4,8")
    assert budgets(tmp_path / "out") == {4, 8, 24}


def test_a_worker_prepares_the_same(checkpoint: Path, prompts: Path, tmp_path: Path) -> None:
    """A worker gets the options as the first process resolved them."""
    what = Evaluation(str(checkpoint), "prompts", ("full",), tmp_path, source=prompts, options={"answer_length": 3})
    first = PreparedEvaluation.prepare(what)
    assert first.recipes[0].options == {"max_new_tokens": 24, "suffix": "The answer is", "answer_length": 3}
    assert PreparedEvaluation.prepare(first.evaluation).recipes == first.recipes


def test_nothing_is_graded_where_no_prompt_has_an_answer(
    run: Run, checkpoint: Path, prompts: Path, tmp_path: Path
) -> None:
    prompts.write_text(json.dumps(WORDS))
    said = run("eval", checkpoint, "--task", "prompts", "--data", prompts, "-r", "full", "--out", tmp_path / "out")
    assert "1/1  full in " in said.stderr


def test_a_calibration_takes_prompts_as_a_task(run: Run, checkpoint: Path, prompts: Path, tmp_path: Path) -> None:
    words = ("calibrate", checkpoint, "--risk", "0.9", "--confidence", "0.5", "--family", "prophet")
    prompts.write_text("\n".join(json.dumps(f"Tom has {number} boxes .") for number in range(2, 6)))
    run(*words, "--task", "prompts", "--data", prompts, "--out", tmp_path / "a.json")
    run(*words, "--prompts", prompts, "--out", tmp_path / "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
