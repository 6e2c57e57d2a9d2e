"""lm-evaluation-harness runs offline through its command line, with tasks of these tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.lm_eval,
    pytest.mark.timeout(600),  # importing the harness alone takes a busy machine a minute
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed; run make test-lm-eval"),
]

GENERATION = """
task: counted
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
training_split: null
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: [" apples"], max_gen_toks: 16, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
CHOICE = """
task: chosen
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
training_split: null
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["7", "8 apples"]
doc_to_target: 0
metric_list: [{{metric: acc}}]
"""


def harness(folder: Path, *words: str | Path, code: int = 0) -> str:
    command = [
        sys.executable,
        "-m",
        "foretell.evaluation.harness.lm_eval",
        "run",
        "--model",
        "foretell",
        *map(str, words),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | offline)
    assert done.returncode == code, done.stderr[-3000:]
    return done.stdout + done.stderr


def results(folder: Path) -> dict[str, Any]:
    (file,) = folder.rglob("results_*.json")
    found: dict[str, Any] = json.loads(file.read_text())["results"]
    return found


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = tmp_path / "data.jsonl"
    rows = ({"question": f"Tom has {n} apples. How many apples are left?", "answer": str(n)} for n in (3, 4, 5))
    data.write_text("\n".join(map(json.dumps, rows)))
    (folder / "counted.yaml").write_text(GENERATION.format(data=data))
    (folder / "chosen.yaml").write_text(CHOICE.format(data=data))
    return folder


def test_generation_and_likelihood_offline(checkpoint: Path, tasks: Path, tmp_path: Path) -> None:
    asked = f"pretrained={checkpoint},recipe=prophet stop.reduce=min,steps=8,block_length=8,samples=8"
    shared = ("--include_path", tasks, "--model_args", asked, "--apply_chat_template")
    harness(tmp_path, "--tasks", "counted,chosen", "--log_samples", "--output_path", tmp_path / "out", *shared)
    found = results(tmp_path / "out")
    assert 0 <= found["counted"]["exact_match,none"] <= 1
    assert 0 <= found["chosen"]["acc,none"] <= 1
    (samples,) = (tmp_path / "out").rglob("samples_counted_*.jsonl")
    texts = [json.loads(line)["resps"][0][0] for line in samples.read_text().splitlines()]
    assert len(texts) == 3
    assert all(text and " apples" not in text for text in texts)
    (likelihoods,) = (tmp_path / "out").rglob("samples_chosen_*.jsonl")
    for line in likelihoods.read_text().splitlines():
        assert all(float(response[0][0]) < 0 for response in json.loads(line)["resps"])


@pytest.mark.parametrize(
    ("argument", "says"),
    [("recipe=prohpet", "did you mean 'prophet'?"), ("chat=False", "chat is set by the harness")],
)
def test_a_wrong_argument_is_an_error(checkpoint: Path, tasks: Path, tmp_path: Path, argument: str, says: str) -> None:
    asked = ("--include_path", tasks, "--tasks", "counted", "--model_args", f"pretrained={checkpoint},{argument}")
    assert says in harness(tmp_path, *asked, code=1)
