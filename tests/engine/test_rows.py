"""Prompts and results as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foretell import Failure, load
from foretell.engine.prompt_files import read_prompts
from foretell.engine.rows import TYPES, columns_of, row_of, write_table
from foretell.errors import RequestError, StorageError

WORDS = "Tom has 3 boxes ."


def table(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_prompts_of_a_table(tmp_path: Path) -> None:
    """Other columns are ignored, as other keys of a line are, and null is missing."""
    file = table(
        tmp_path / "p.parquet",
        {"prompt": ["one", "two", "three"], "id": ["a", None, "c"], "answer": [1, None, 3], "mine": [b"x", b"y", b"z"]},
    )
    found = read_prompts(file)
    assert [(one.id, one.prompt, one.answer) for one in found] == [("a", "one", 1), (2, "two", None), ("c", "three", 3)]
    assert found[2].where == f"{file}, row 3"


def test_messages_of_a_table(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    (found,) = read_prompts(table(tmp_path / "p.parquet", {"messages": [chat], "label": ["x"]}))
    assert (list(found.prompt), found.label) == (chat, "x")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": pa.array([], pa.string())}, "p.parquet has no prompts in it"),
        ({"prompt": [None]}, 'row 1: has no "prompt", "text" or "messages"'),
        ({"prompt": [b"bytes"]}, 'row 1: "prompt" must be a string, got "b'),
        ({"prompt": ["a", "b"], "id": [7, 7]}, "row 2: the id 7 is also that of .*row 1"),
        ({"prompt": ["a"], "id": [b"x"]}, 'row 1: "id" must be a string or a whole number, got "b'),
        ({"messages": [["hi"]]}, "row 1: "),
    ],
)
def test_bad_tables(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_prompts(table(tmp_path / "p.parquet", columns))


def test_damaged_tables(tmp_path: Path) -> None:
    file = table(tmp_path / "p.parquet", {"prompt": ["a"] * 100})
    for content in (b"", b"PAR1", file.read_bytes()[:-9]):
        (tmp_path / "bad.parquet").write_bytes(content)
        with pytest.raises(RequestError, match=r"cannot read the prompt file .*bad.parquet: "):
            read_prompts(tmp_path / "bad.parquet")


def test_types_of_columns_do_not_depend_on_the_rows(checkpoint: Path) -> None:
    """Tables of different batches can be joined, also if a value is missing in all rows of one."""
    engine = load(checkpoint)
    done = engine.generate(WORDS, max_new_tokens=8)
    filled = engine.fill("Tom has [MASK] boxes .")
    tables = [pa.table(columns_of([row_of(one)])) for one in (done, filled, Failure(RequestError("no")))]
    joined = pa.concat_tables(tables)
    assert joined.column_names == list(TYPES)
    rows = joined.to_pylist()
    assert rows[0] == dict.fromkeys(TYPES) | row_of(done)
    assert rows[1]["fills"] == list(filled.fills) != []
    assert {name: value for name, value in rows[2].items() if value is not None} == {"error": "no"}


def test_a_table_of_results(checkpoint: Path, tmp_path: Path) -> None:
    row = row_of(load(checkpoint).generate(WORDS, max_new_tokens=8))
    for ids, kept in (([2, 1], [2, 1]), (["b", 1], ["b", "1"])):
        write_table(tmp_path / "out.parquet", [{"id": name} | row for name in ids])
        found = pq.read_table(tmp_path / "out.parquet").to_pylist()
        assert [one["id"] for one in found] == kept
        assert {name: found[0][name] for name in row} == row
    with pytest.raises(StorageError, match="cannot write"):
        write_table(tmp_path / "no" / "out.parquet", [{"id": 1} | row])
