"""The benchmarks on small files in the public schemas: prompts, layouts, answers and grades."""

from __future__ import annotations

import csv
import gzip
import json
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretell.engine.engine import Completion
from foretell.engine.options import Options
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example, make_strict
from foretell.evaluation.benchmarks import BENCHMARKS, find, source
from foretell.evaluation.benchmarks.gsm8k import GSM8K
from foretell.evaluation.benchmarks.humaneval import build_program
from foretell.evaluation.benchmarks.mbpp import MBPP
from foretell.evaluation.catalogue import CATALOGUE, benchmark_named
from foretell.evaluation.run import LONGEST_REASON, grade
from foretell.policies.stop.schedules import Staged
from tests.evaluation.levels import BEST_LEVEL

CODE = "def twice(x):\n    return 2 * x"
SUDOKU = [
    {"input": "1003\n0300\n3210\n4132", "output": "1423\n2341\n3214\n4132"},
    {"input": "0000\n0000\n0000\n0000", "output": "1234\n3412\n2143\n4321"},
]
ROWS: dict[str, list[dict[str, Any]]] = {
    "mmlu": [
        {"question": "One and one?", "subject": "sums", "choices": ["0", "1", "2", "3"], "answer": 2},
        {"question": "One and two?", "subject": "sums", "choices": ["0", "1", "2", "3"], "answer": 3},
        {"question": "One and one?", "subject": "sums", "choices": ["0", "1", "2", "3"], "answer": 2},
    ],
    "arc_challenge": [
        {"id": "a", "question": "Hot?", "choices": {"text": ["ice", "fire"], "label": ["1", "2"]}, "answerKey": "2"},
        {"id": "b", "question": "Wet?", "choices": {"text": ["sea", "sun"], "label": ["A", "B"]}, "answerKey": "A"},
    ],
    "hellaswag": [
        {"ind": 0, "query": "Roof: A man. he", "gold": 3, "choices": ["a", "b", "c", "d"]},
        {
            "ind": 4,
            "activity_label": "Roof",
            "ctx": "A man. [title] he",
            "endings": ["[step] a", "b", "c", "d"],
            "label": "0",
        },
    ],
    "truthfulqa": [
        {"question": f"Q{n}?", "mc1_targets": {"choices": ["true", "x", "y", "z"], "labels": [1, 0, 0, 0]}}
        for n in range(20)
    ],
    "winogrande": [{"qID": "q", "sentence": "The _ is.", "option1": "cat", "option2": "dog", "answer": "2"}],
    "piqa": [{"goal": "Cool it", "sol1": "ice", "sol2": "fire", "label": 0}],
    "gsm8k": [
        {"question": "Eggs?", "answer": "9 * 2 = <<9*2=18>>18\n#### 18"},
        {"question": "Debt?", "answer": "so\n#### -1,450,000"},
    ],
    "gpqa": [
        {
            "Question": "Force?",
            "Correct Answer": "photon",
            **{f"Incorrect Answer {n}": f"wrong {n}" for n in (1, 2, 3)},
        }
    ],
    "humaneval": [
        {
            "task_id": "HumanEval/0",
            "prompt": 'import math\n\n\ndef twice(x):\n    """Double it."""\n',
            "entry_point": "twice",
            "canonical_solution": "    assert math.pi\n    return 2 * x\n",
            "test": "def check(candidate):\n    assert candidate(2) == 4\n",
        }
    ],
    "mbpp": [
        {
            "text": "Write a function to double.",
            "code": CODE.replace("\n", "\r\n"),
            "task_id": 11,
            "test_setup_code": "four = twice(2)",
            "test_list": ["assert four == 4", "assert twice(3) == 6"],
            "challenge_test_list": [],
        }
    ],
    "countdown": [{"input": "86,28,13,31,96", "output": "86+28=114,31-13=18,114-18=96"}] * 10,
    "countdown_cd3": [{"input": "15,44,79,50", "output": "44-15=29,79-29=50"}] * 9,
    "countdown_cd5": [{"input": "1,2,3,4,5,15", "output": "1+2=3,3+3=6,4+5=9,6+9=15"}] * 9,
    "sudoku4x4": [SUDOKU[0]] * 8 + [SUDOKU[1]],
}
ROWS["gsm8k_128"] = ROWS["gsm8k"]


def write(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return file


def said(text: str, answer: str | None = None) -> Completion:
    return Completion(text, answer, (), 1, 1, 1, 1, 1, "complete", 0.0)


def parse_prompts(name: str, example: Example) -> Completion:
    """Return the gold answer as a model might write it."""
    if name in {"humaneval", "mbpp"}:
        return said(f"```python\n{example.gold}\n```<|endoftext|>")
    if name.startswith(("countdown", "sudoku")):
        return said(f"{example.gold}<|endoftext|>", example.gold)
    return said(f"Let us see.\nThe answer is {example.gold}.<|eot_id|>", f" {example.gold}")


def test_every_benchmark_has_rows_here() -> None:
    assert set(ROWS) == set(BENCHMARKS)
    assert all(name == benchmark.name for name, benchmark in BENCHMARKS.items())


@pytest.mark.parametrize("name", ROWS)
def test_the_gold_answer_is_right_and_nothing_is_wrong(name: str, tmp_path: Path) -> None:
    benchmark = find(name, allow_execution=True, sandbox=BEST_LEVEL)
    examples = benchmark.examples(write(tmp_path / "rows.jsonl", ROWS[name]), None, 0)
    skipped = 8 if name.startswith(("countdown", "sudoku")) else 0
    assert len({example.id for example in examples}) == len(examples) == len(ROWS[name]) - skipped
    for example in examples:
        answer = benchmark.extract(parse_prompts(name, example))
        assert answer is not None
        assert benchmark.grade(example, answer)
        assert not benchmark.grade(example, benchmark.extract(said("", "")))
        assert not benchmark.grade(example, benchmark.extract(said("```\nno\n```", "no")))


@pytest.mark.parametrize("name", ROWS)
def test_options_are_what_the_engine_takes(name: str) -> None:
    options = Options.of(BENCHMARKS[name].options)
    window, start, length = options.max_new_tokens, options.answer_start, options.answer_length
    assert window is not None
    assert start is not None
    assert length is not None
    assert options.steps == window
    assert options.block_length is not None
    assert window % options.block_length == 0
    assert start + length <= window
    json.dumps(dict(BENCHMARKS[name].options))


def test_budgets_and_thresholds_are_the_papers() -> None:
    short, plan = (64, 64, 16), Staged(7.5, 5.0, 2.5)
    paper = {
        **dict.fromkeys(["mmlu", "arc_challenge", "hellaswag", "truthfulqa", "winogrande", "piqa"], (short, plan)),
        **dict.fromkeys(["gsm8k", "gpqa"], ((256, 256, 32), Staged(8.0, 5.0, 3.5))),
        **dict.fromkeys(["humaneval", "mbpp"], ((512, 512, 32), Staged(7.5, 5.0, 4.5))),
        **dict.fromkeys(["countdown", "countdown_cd3"], ((32, 32, 32), plan)),
        "sudoku4x4": ((24, 24, 24), plan),
    }
    for name, (budget, thresholds) in paper.items():
        options = BENCHMARKS[name].options
        assert tuple(options[key] for key in ("max_new_tokens", "steps", "block_length")) == budget
        assert BENCHMARKS[name].thresholds == thresholds


def test_the_number_of_gsm8k_stands_where_the_paper_has_it() -> None:
    asked = GSM8K().options
    assert (asked["pins"], asked["answer_start"], asked["answer_length"]) == ({200: " The answer is"}, 204, 5)
    half = GSM8K(window=128).options
    assert (half["pins"], half["answer_start"], half["answer_length"]) == ({100: " The answer is"}, 104, 5)
    with pytest.raises(RequestError, match="window"):
        _ = GSM8K(window=8).options


def test_without_the_suffix_the_model_places_its_answer() -> None:
    free = benchmark_named("gsm8k-free")
    assert free.options == {"max_new_tokens": 256, "steps": 256, "block_length": 32}
    assert free.thresholds == GSM8K().thresholds
    assert free.extract(said("So 3.\nThe answer is 18.")) == "18"
    assert {f"{name}-free" for name in BENCHMARKS} & set(CATALOGUE) == {
        f"{name}-free"
        for name in BENCHMARKS
        if name not in {"humaneval", "mbpp", "sudoku4x4"} and not name.startswith("countdown")
    }


def test_options_are_shuffled_by_seed_and_example(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS["truthfulqa"])
    golds = [[e.gold for e in find("truthfulqa").examples(file, None, seed)] for seed in (0, 0, 1)]
    assert golds[0] == golds[1] != golds[2]
    assert set(golds[0]) == set("ABCD")
    # What one example's order is does not depend on the others.
    turned = find("truthfulqa").examples(write(tmp_path / "turned.jsonl", ROWS["truthfulqa"][::-1]), None, 0)
    assert [e.gold for e in turned] == golds[0][::-1]


def test_a_limit_is_a_seeded_choice(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS["truthfulqa"])
    few = [[e.id for e in find("truthfulqa").examples(file, 5, seed)] for seed in (0, 0, 1)]
    assert few[0] == few[1] != few[2]
    assert len(set(few[0])) == 5
    assert [e.id for e in find("truthfulqa").examples(file, 12, 0)][:5] == few[0]
    assert len(find("truthfulqa").examples(file, 500, 0)) == 20
    with pytest.raises(RequestError, match="limit"):
        find("truthfulqa").examples(file, 0, 0)


def test_the_region_has_the_first_word_for_a_letter() -> None:
    mmlu = find("mmlu")
    assert mmlu.extract(said("The answer is B. The answer is C", " B")) == "B"
    assert mmlu.extract(said("The answer is C", " the")) == "C"
    assert mmlu.extract(said("no idea", None)) is None


def test_a_number_longer_than_the_region_is_read_whole() -> None:
    assert find("gsm8k").extract(said("The answer is 1,450,000.", "1,450")) == "1450000"
    assert find("gsm8k").extract(said("It is 4", "5")) == "5"


@pytest.mark.parametrize(
    "answer",
    [
        "86+28=114,31-13=18,114-18=97",  # false
        "86+28=114,114-18=96",  # 18 is no number of ours
        "86+28=114,31-13=18",  # not the target
        "86+28=114,86+13=99,114-18=96",  # used twice
        "96+0=96",
    ],
)
def test_countdown_refuses(answer: str) -> None:
    example = Example("x", "", "", {"puzzle": "86,28,13,31,96"})
    assert not find("countdown").grade(example, answer)


@pytest.mark.parametrize(("puzzle", "answer", "right"), [("7,2,3", "7/2=3", False), ("6,2,3", "6/2=3", True)])
def test_division_has_to_be_exact(puzzle: str, answer: str, right: bool) -> None:
    numbers, target = puzzle.rsplit(",", 1)
    example = Example("x", "", "", {"puzzle": f"{numbers},5,{int(target) + 5}"})
    assert find("countdown_cd3").grade(example, f"{answer},{target}+5={int(target) + 5}") is right


def test_any_valid_grid_will_do_but_the_givens_stay() -> None:
    sudoku = find("sudoku4x4")
    free, fixed = (Example("x", "", "", {"puzzle": row["input"]}) for row in reversed(SUDOKU))
    assert sudoku.grade(free, SUDOKU[0]["output"])
    assert sudoku.grade(free, SUDOKU[1]["output"])
    assert not sudoku.grade(fixed, SUDOKU[1]["output"])
    assert not sudoku.grade(free, "1234\n1234\n1234\n1234")
    assert not sudoku.grade(free, "1234\n2341\n3412\n4123")  # the boxes repeat


def test_code_runs_only_when_it_may(tmp_path: Path) -> None:
    for name in ("humaneval", "mbpp"):
        example = find(name).examples(write(tmp_path / "rows.jsonl", ROWS[name]), None, 0)[0]
        with pytest.raises(RequestError, match="allow_execution"):
            find(name).grade(example, example.gold)


@pytest.mark.parametrize(
    "answer",
    [
        "    return 2 * x",
        "return 2 * x",
        "y = 2 * x\nif y:\n    return y\nreturn 0",
        CODE,
        "    def twice(x):\n        return math.floor(2 * x)",
        "import math\n\ndef help(x):\n    return x\n\ndef twice(x):\n    return 2 * help(x)\n\nprint(twice(4))",
    ],
)
def test_a_function_or_its_body_will_do(answer: str) -> None:
    scope: dict[str, Any] = {}
    exec(build_program(ROWS["humaneval"][0]["prompt"], "twice", answer), scope)
    assert scope["twice"](21) == 42


def test_an_answer_cannot_replace_the_helpers_of_its_tests(tmp_path: Path) -> None:
    """The tests use the prompt's helper; a task's function may have the name of a built-in one."""
    row = {
        "task_id": "HumanEval/32",
        "prompt": 'def value(x):\n    return x * x - 4\n\n\ndef abs():\n    """Find a root of value."""\n',
        "entry_point": "abs",
        "canonical_solution": "    return 2\n",
        "test": "def check(candidate):\n    assert value(candidate()) == 0 and len('ab') == 2\n",
    }
    benchmark = find("humaneval", allow_execution=True, sandbox=BEST_LEVEL)
    (example,) = benchmark.examples(write(tmp_path / "rows.jsonl", [row]), None, 0)
    assert benchmark.grade(example, "    return 2")
    assert not benchmark.grade(example, "def abs():\n    return 3\n\ndef value(x):\n    return 0")


def test_many_programs_are_judged_in_order(tmp_path: Path) -> None:
    example = MBPP.examples(write(tmp_path / "rows.jsonl", ROWS["mbpp"]), None, 0)[0]
    allowed = replace(MBPP, allow_execution=True, sandbox=BEST_LEVEL)
    verdicts = allowed.verdicts([example] * 3, [CODE, None, "def twice(x): return 4"], jobs=3)
    assert [verdict.passed for verdict in verdicts] == [True, False, False]
    assert "no code" in verdicts[1].reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"```\n{CODE}\n```", None),
        ("```\ndef twice(x): return 4\n```", "failed: AssertionError: assert twice(3) == 6"),
        ("```\ndef twice(x): return 2 * y\n```", "failed: NameError: name 'y' is not defined"),
        ("```\ndef twice(x) return 4\n```", "failed: SyntaxError: expected ':' (<candidate>, line 1)"),
        ("```\nimport os\nos._exit(3)\n```", "failed: exited with code 3 before the tests were done"),
        ("```\n```", "failed: LookupError: no code was found"),
    ],
)
def test_the_reason_of_a_failure_is_kept(text: str, reason: str | None, tmp_path: Path) -> None:
    example = MBPP.examples(write(tmp_path / "rows.jsonl", ROWS["mbpp"]), None, 0)[0]
    found = grade(find("mbpp", allow_execution=True, sandbox=BEST_LEVEL), example, said(text))
    assert (found["correct"], found["reason"], found["sandbox"]) == (reason is None, reason, BEST_LEVEL)


def test_a_reason_is_short(tmp_path: Path) -> None:
    example = MBPP.examples(write(tmp_path / "rows.jsonl", ROWS["mbpp"]), None, 0)[0]
    found = grade(
        find("mbpp", allow_execution=True, sandbox=BEST_LEVEL), example, said("```\nraise ValueError('x' * 9999)\n```")
    )
    assert found["reason"].startswith("failed: ValueError: xxx")
    assert len(found["reason"]) == LONGEST_REASON


@pytest.mark.parametrize(
    ("name", "stated", "found"),
    [
        ("gsm8k", "The answer is 18.", "So 18"),
        ("gsm8k-free", "The answer is 18.", "So 18"),
        ("mmlu", "The answer is B", "So B"),
        ("mbpp", f"```\n{CODE}\n```", CODE),
        ("sudoku", "1423 2341 3214 4132", None),
        ("countdown_cd3", "44-15=29,79-29=50", None),
    ],
)
def test_a_strict_benchmark_reads_what_is_stated(name: str, stated: str, found: str | None) -> None:
    loose = benchmark_named(name)
    answer = loose.extract(said(stated))
    assert answer is not None
    assert make_strict(loose).extract(said(stated)) == answer
    if found is not None:
        assert loose.extract(said(found)) == answer
        assert make_strict(loose).extract(said(found)) is None


def test_a_fallback_is_recorded() -> None:
    """An answer in the answer region is not a fallback."""
    example, loose = Example("x", "", "18"), find("gsm8k")
    told = [
        grade(loose, example, one) for one in (said("The answer is 18"), said("So 18"), said("So 5", " 18"), said(""))
    ]
    assert [(one["answer"], one["correct"], one["fallback"]) for one in told] == [
        ("18", True, False),
        ("18", True, True),
        ("18", True, False),
        (None, False, False),
    ]
    assert grade(make_strict(loose), example, said("So 18")) == {"answer": None, "correct": False, "fallback": False}


def test_a_question_in_millions_has_an_answer_in_millions() -> None:
    gsm8k = find("gsm8k")
    plain, millions = Example("x", "How many?", "4"), Example("x", "Of 32 million, how many million?", "4")
    assert [gsm8k.grade(millions, answer) for answer in ("4", "4000000", "4000", None)] == [True, True, False, False]
    assert not gsm8k.grade(plain, "4000000")


def test_files_of_every_kind(tmp_path: Path) -> None:
    rows = ROWS["gpqa"]
    listed = tmp_path / "rows.json"
    listed.write_text(json.dumps(rows))
    table = tmp_path / "rows.csv"
    with table.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(write(tmp_path / "rows.jsonl", rows).read_bytes()))
    found = [find("gpqa").examples(path, None, 0) for path in (listed, table, packed, tmp_path / "rows.jsonl")]
    assert all(one == found[0] for one in found)


def test_a_folder_or_the_variable_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "piqa"
    folder.mkdir()
    write(folder / "hf_validation.jsonl", ROWS["piqa"])
    monkeypatch.delenv("FORETELL_DATA", raising=False)
    found = [find("piqa").examples(path, None, 0) for path in (tmp_path, folder)]
    monkeypatch.setenv("FORETELL_DATA", str(tmp_path))
    assert found == [find("piqa").examples(None, None, 0)] * 2


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORETELL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RequestError, match=r"hf_test\.jsonl.*FORETELL_DATA.*cais/mmlu.*not installed"):
        find("mmlu").examples(None, None, 0)
    with pytest.raises(RequestError, match=r"looked for .*mmlu.*hf_test\.jsonl"):
        find("mmlu").examples(tmp_path, None, 0)
    with pytest.raises(RequestError, match="your own copy"):
        find("gpqa").examples(None, None, 0)


def test_the_hub_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(path: str, config: str | None, **more: Any) -> list[dict[str, Any]]:
        asked.append((path, config, more["split"]))
        return ROWS["mmlu"]

    monkeypatch.delenv("FORETELL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert len(find("mmlu").examples(None, None, 0)) == 3
    assert asked == [("cais/mmlu", "all", "test")]


@pytest.mark.parametrize(
    ("name", "row", "problem"),
    [
        ("mmlu", {"answer": 4}, "'answer' must be a whole number from 0 to 3"),
        ("mmlu", {"answer": True}, "'answer' must be"),
        ("mmlu", {"choices": "abcd"}, "list of texts"),
        ("mmlu", {"choices": ["a"]}, "2 to 4 options"),
        ("mmlu", {"choices": ["a", "b"], "answer": 2}, "number 3 of 2"),
        ("mmlu", {"question": " "}, "not empty"),
        ("arc_challenge", {"answerKey": "Z"}, "not one of the labels"),
        ("arc_challenge", {"choices": []}, "object"),
        ("truthfulqa", {"mc1_targets": {"choices": ["a", "b"], "labels": [1, 1]}}, "one label"),
        ("winogrande", {"sentence": "no gap"}, "gap"),
        ("gsm8k", {"answer": "18"}, "####"),
        ("humaneval", {"entry_point": "other"}, "entry point"),
        ("sudoku4x4", {"output": "1111\n1111\n1111\n1111"}, "does not solve"),
        ("countdown", {"output": "__import__('os')"}, "does not solve"),
    ],
)
def test_a_bad_row_is_named_by_its_line(name: str, row: dict[str, Any], problem: str, tmp_path: Path) -> None:
    rows = [*ROWS[name], ROWS[name][0] | row]
    with pytest.raises(RequestError, match=rf"rows\.jsonl, line {len(rows)}\b.*{problem}"):
        find(name).examples(write(tmp_path / "rows.jsonl", rows), None, 0)


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for line, problem in (
        ("{", " is not valid JSON"),
        ("[" * 100_000, " is not valid JSON: it is nested too deeply"),
        ("3", ": expected an object"),
        ("{}", ": 'goal' is missing"),
    ):
        file.write_text(json.dumps(ROWS["piqa"][0]) + "\n\n" + line)
        with pytest.raises(RequestError, match=rf"rows\.jsonl, line 3{problem}"):
            find("piqa").examples(file, None, 0)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="is not UTF-8 text"):
        find("piqa").examples(file, None, 0)
    with pytest.raises(RequestError, match="8 rows to show"):
        find("countdown").examples(write(file, ROWS["countdown"][:8]), None, 0)


def test_a_damaged_or_huge_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LARGEST_FILE", 1_000_000)
    rows = "".join(json.dumps(row) + "\n" for row in ROWS["piqa"]).encode()
    packed = gzip.compress(rows)
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(packed)
    assert len(find("piqa").examples(file, None, 0)) == len(ROWS["piqa"])
    for content, problem in (
        (gzip.compress(b" " * 30_000_000), "unpacks to more than 1,000,000 bytes"),
        (packed[:-20], "Compressed file ended"),
        (packed[:20] + b"\xff" * 20 + packed[40:], "cannot read the data file"),
        (gzip.compress(b"\xff"), "invalid start byte"),
        (b"rows", "Not a gzipped file"),
    ):
        file.write_bytes(content)
        tracemalloc.start()
        try:
            with pytest.raises(RequestError, match=problem):
                find("piqa").examples(file, None, 0)
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


def test_a_csv_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gpqa.csv").write_text('a,b\n1,2\n"' + "x" * 200_000 + '",3\n')
    with pytest.raises(RequestError, match=r"gpqa\.csv, line \d: not valid CSV: field larger"):
        find("gpqa").examples(tmp_path / "gpqa.csv", None, 0)


def test_a_name_that_is_too_long_is_no_file() -> None:
    with pytest.raises(RequestError, match="no data for piqa"):
        find("piqa").examples(Path("x" * 300), None, 0)


def test_an_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(RequestError, match="did you mean 'humaneval'"):
        find("human_eval")
    assert find("mbpp") == MBPP
    assert find("mbpp", allow_execution=True, sandbox="x") == replace(MBPP, allow_execution=True, sandbox="x")
