r"""HumanEval: 164 functions to write from signature and docstring, checked by unit tests.

{"task_id": "HumanEval/23", "entry_point": "strlen",
 "prompt": "\n\ndef strlen(string: str) -> int:\n    \"\"\" Return length of given string\n    >>> strlen('') ...",
 "canonical_solution": "    return len(string)\n", "test": "def check(candidate):\n    assert candidate('') == 0 ..."}
"""

from __future__ import annotations

import re
import textwrap

from foretell.evaluation import answers
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.code import Code
from foretell.evaluation.benchmarks.source import DataRow, Hub, Source


def example(row: DataRow) -> Example:
    start, name = row.text("prompt"), row.text("entry_point")
    if _definition(start, name) is None:
        raise row.error(f"'prompt' does not define the entry point {name!r}")
    prompt = (
        "Write the body of the last function below. Answer with one block of Python code and nothing else.\n\n"
        f"```python\n{start.strip()}\n```"
    )
    tests = f"{row.text('test')}\ncheck({name})\n"
    data = {"start": start, "entry_point": name, "tests": tests}
    return Example(row.text("task_id"), prompt, answers.code(row.text("canonical_solution")) or "", data)


def program(start: str, name: str, answer: str) -> str:
    """A whole program from an answer that is the function itself or its body alone, indented or not."""
    if _definition(answer, name) is not None:
        # What stands before the function in the prompt, imports and helpers, belongs to the answer too.
        return start[: _definition(start, name)] + "\n" + textwrap.dedent(answer) + "\n"
    first = next((line for line in answer.splitlines() if line.strip()), "")
    body = answer if first[:1].isspace() else textwrap.indent(answer, "    ")
    return f"{start.rstrip()}\n{body}\n"


def _definition(code: str, name: str) -> int | None:
    found = re.search(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b", code, re.MULTILINE)
    return None if found is None else found.start()


HUMANEVAL = Code(
    name="humaneval",
    source=Source(
        "humaneval",
        ("HumanEval.jsonl", "HumanEval.jsonl.gz", "hf_test.jsonl"),
        Hub("openai/openai_humaneval", "openai_humaneval", "test"),
    ),
    example=example,
    program=lambda example, answer: program(example.data["start"], example.data["entry_point"], answer),
)
