"""`--ray`: commands that decode on a pool write what they write without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretell import load_traces
from tests.cli.conftest import WORDS, Run
from tests.scale.fakes import FakeCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """What `--ray` connects to."""
    made = FakeCluster(3)
    monkeypatch.setattr("foretell.scale.pool.require_extra", lambda extra: None)
    monkeypatch.setitem(sys.modules, "foretell.scale.actors", SimpleNamespace(RayCluster=made))
    return made


def write(path: Path, count: int) -> Path:
    lines = [json.dumps({"id": f"p{at}", "prompt": f"{WORDS} He eats {at % 9 + 1} ."}) for at in range(count)]
    path.write_text("".join(f"{line}\n" for line in [*lines, json.dumps({"id": "bad", "prompt": "Zebra ."})]))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) | {"seconds": 0, "value": 0} for line in path.read_text().splitlines()]


def test_generate_on_a_pool_writes_the_same_file(
    run: Run,
    checkpoint: Path,
    tmp_path: Path,
    cluster: FakeCluster,
) -> None:
    """Also a prompt that cannot be decoded; the file has the order of the prompts."""
    prompts = write(tmp_path / "p.jsonl", 16)
    words = ("generate", checkpoint, "--file", prompts, "-r", "prophet", "--batch-size", "2")
    run(*words, "--out", tmp_path / "alone.jsonl", code=1)
    cluster.dies = lambda worker, nth: (worker, nth) == (1, 3)
    shown = run(*words, "--out", tmp_path / "pool.jsonl", "--ray", "auto", code=1)
    assert rows(tmp_path / "pool.jsonl") == rows(tmp_path / "alone.jsonl")
    assert "warning: a worker was lost, and what it was decoding is decoded again: worker 1 was killed" in shown.stderr
    assert (cluster.address, len(cluster.workers)) == ("auto", 4)
    traced = run(*words[:-2], "--ray", "auto", "--actors", "2", "--trace", tmp_path / "t.npz", "--json", code=1)
    assert len(load_traces(tmp_path / "t.npz")) == 16
    assert len(traced.stdout.splitlines()) == 17
    assert len(cluster.workers) == 6


def test_generate_on_a_pool_resumes(
    run: Run,
    checkpoint: Path,
    tmp_path: Path,
    cluster: FakeCluster,
) -> None:
    prompts, out = write(tmp_path / "p.jsonl", 16), tmp_path / "out.jsonl"
    words = ("generate", checkpoint, "--file", prompts, "-r", "prophet", "--batch-size", "2", "--out", out)
    cluster.dies = lambda worker, nth: nth == (3 if worker < 3 else 2)
    shown = run(*words, "--ray", "auto", code=2)
    kept = (tmp_path / "out.jsonl.part").read_text().splitlines()[1:]
    assert 0 < len(kept) < 17
    assert "3 workers of the pool were lost with the same task" in shown.stderr
    assert f"{len(kept)} finished results are kept" in shown.stderr
    run(*words, code=1)  # without the pool
    assert {*kept} <= {*out.read_text().splitlines()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("generate", WORDS, "--ray", "auto"), "--ray decodes a --file of prompts"),
        (("generate", "--file", "p.jsonl", "--ray", "auto", "--watch"), "--ray decodes a --file of prompts"),
        (("generate", "--file", "p.jsonl", "--ray", "auto", "--risk", "0.1", "--out", "o.jsonl"), "--ray decodes a"),
        (("generate", "--file", "p.jsonl", "--actors", "2"), "--actors 2 is the number of models on a Ray cluster"),
        (
            ("eval", "--task", "word", "--out", "o", "--actors", "2"),
            "--actors 2 is the number of models on a Ray cluster",
        ),
        (("generate", "--file", "p.jsonl", "--ray", "auto", "--actors", "0"), "the number of workers must be from 1"),
    ],
)
def test_what_a_pool_cannot_do(
    run: Run,
    tmp_path: Path,
    cluster: FakeCluster,
    words: tuple[str, ...],
    message: str,
) -> None:
    shown = run(words[0], tmp_path, *words[1:], code=2)
    assert shown.stderr.startswith(f"error: {message}")
    assert cluster.workers == []


def test_every_command_that_decodes_takes_a_pool(
    run: Run,
    checkpoint: Path,
    tmp_path: Path,
    cluster: FakeCluster,
) -> None:
    few = ("--limit", "2", "--ray", "auto")
    run("eval", checkpoint, "--task", "word", "-r", "swift", *few, "--out", tmp_path / "e")
    assert len(cluster.workers) == 1
    words = ("--model", checkpoint, "--tables", "main", "--tasks", "word", "--out", tmp_path / "r")
    run("reproduce", *words, *few)
    assert len(cluster.workers) == 2, "and one for all of its decodings"


def test_tables_in_and_out(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    prompts = write(tmp_path / "p.jsonl", 3)
    asked = [json.loads(line) for line in prompts.read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(asked), tmp_path / "p.parquet")
    run("generate", checkpoint, "--file", prompts, "--out", tmp_path / "o.jsonl", code=1)
    run("generate", checkpoint, "--file", tmp_path / "p.parquet", "--out", tmp_path / "o.parquet", code=1)
    found = pq.read_table(tmp_path / "o.parquet").to_pylist()
    for there, here in zip(found, rows(tmp_path / "o.jsonl"), strict=True):
        there |= {"seconds": 0, "value": 0}
        if here.get("error"):
            assert there.pop("error").endswith(here.pop("error"))
        assert {name: value for name, value in there.items() if value is not None or name in here} == here
    assert not (tmp_path / "o.parquet.part").exists()


def test_a_table_needs_its_extra(run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is decoded."""
    prompts = write(tmp_path / "p.jsonl", 3)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("foretell.engine.engine.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    for words in (("--file", prompts, "--out", tmp_path / "o.parquet"), ("--file", tmp_path / "p.parquet")):
        shown = run("generate", checkpoint, *words, code=2)
        assert shown.stderr == (
            "error: a table of prompts or results needs pyarrow, which is not installed: pip install "
            "'foretell[parquet]'\n"
        )
