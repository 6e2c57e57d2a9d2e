r"""MBPP: 500 short Python tasks, each with three tests.

{"text": "Write a python function to remove first and last occurrence of a given character from the string.",
 "code": "def remove_Occ(s,ch): ...", "task_id": 11, "test_setup_code": "",
 "test_list": ["assert remove_Occ(\"hello\",\"l\") == \"heo\"", "assert remove_Occ(\"abcda\",\"a\") == \"bcd\"",
               "assert remove_Occ(\"PHP\",\"P\") == \"H\""], "challenge_test_list": []}
"""

from __future__ import annotations

import re

from foretell.evaluation import answers
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.code import Code
from foretell.evaluation.benchmarks.source import DataRow, Hub, Source


def example(row: DataRow) -> Example:
    tests = "\n".join(row.texts("test_list"))
    prompt = (
        f"{row.text('text').strip()} It has to pass these tests:\n\n```python\n{tests}\n```\n\n"
        "Answer with the function in one block of Python code and nothing else."
    )
    gold = answers.find_code(row.text("code")) or ""
    # The set-up runs after the code: in one task it refers to a class that the code defines.
    setup = row.text("test_setup_code", empty=True).replace("\r\n", "\n")
    names = re.findall(r"^(?:def|class)[ \t]+(\w+)", gold, re.MULTILINE)  # one task asks for a function `sum`
    data = {"tests": f"{setup}\n{tests}\n", "names": names}
    return Example(f"mbpp/{row.whole('task_id', 1, 974)}", prompt, gold, data)


MBPP = Code(
    name="mbpp",
    source=Source("mbpp", ("hf_test.jsonl", "test.jsonl"), Hub("google-research-datasets/mbpp", "full", "test")),
    example=example,
    program=lambda _, answer: answer,
)
