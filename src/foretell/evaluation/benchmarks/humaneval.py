r"""HumanEval: 164 functions to write from their signature and docstring, checked by unit tests.

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
    helpers = _find_definition(start, name)
    if helpers is None:
        raise row.error(f"'prompt' does not define the entry point {name!r}")
    prompt = (
        "Write the body of the last function below. Answer with one block of Python code and nothing else.\n\n"
        f"```python\n{start.strip()}\n```"
    )
    # Some tests use a helper from the prompt. They get the prompt's own: the answer could define another one.
    tests = f"{start[:helpers]}\n{row.text('test')}\ncheck({name})\n"
    data = {"start": start, "entry_point": name, "tests": tests, "names": [name]}
    return Example(row.text("task_id"), prompt, answers.find_code(row.text("canonical_solution")) or "", data)


def build_program(start: str, name: str, answer: str) -> str:
    """Return a whole program from an answer that is either the function or only its body, indented or not."""
    if _find_definition(answer, name) is not None:
        # The imports and helpers before the function in the prompt are part of the program too.
        return start[: _find_definition(start, name)] + "\n" + textwrap.dedent(answer) + "\n"
    first = next((line for line in answer.splitlines() if line.strip()), "")
    body = answer if first[:1].isspace() else textwrap.indent(answer, "    ")
    return f"{start.rstrip()}\n{body}\n"


def _find_definition(code: str, name: str) -> int | None:
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
    program=lambda example, answer: build_program(example.data["start"], example.data["entry_point"], answer),
)
