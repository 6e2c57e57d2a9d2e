"""`Generate`, as a pipeline of Ray Data calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import foretell
from foretell.engine.rows import TYPES
from foretell.errors import MissingExtraError, RecipeError, RequestError
from foretell.scale import Generate

PROMPTS = [f"Tom has {number} boxes ." for number in (3, 4, 5)]
OPTIONS: dict[str, Any] = {"recipe": "prophet", "max_new_tokens": 12, "suffix": "The answer is", "answer_length": 2}
CHAT = [[{"role": "user", "content": one}] for one in PROMPTS]


@pytest.mark.parametrize(
    "batch",
    [
        {"prompt": np.array(PROMPTS, dtype=object), "mine": np.array([1, 2, 3])},
        {"prompt": np.array(PROMPTS), "mine": np.array([1, 2, 3])},
        pa.table({"prompt": PROMPTS, "mine": [1, 2, 3]}),
        pa.table({"text": PROMPTS, "mine": [1, 2, 3]}),
        {
            "messages": np.array([np.array(one, dtype=object) for one in CHAT], dtype=object),
            "mine": np.array([1, 2, 3]),
        },
    ],
)
def test_batches_of_any_kind(checkpoint: Path, batch: Any) -> None:
    """The columns of the batch stay."""
    names = batch.column_names if isinstance(batch, pa.Table) else list(batch)
    made = Generate(str(checkpoint), prefix="out_", **OPTIONS)
    found = made(batch)
    assert found.column_names == [*names, *(f"out_{name}" for name in TYPES)]
    expected = foretell.load(checkpoint).generate(CHAT if "messages" in names else PROMPTS, **OPTIONS)
    assert found["mine"].to_pylist() == [1, 2, 3]
    assert found["out_text"].to_pylist() == [one.text for one in expected]
    assert found["out_exit"].to_pylist() == [one.exit for one in expected]
    assert found["out_error"].to_pylist() == [None] * 3


def test_pandas(checkpoint: Path) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"prompt": PROMPTS})
    assert Generate(str(checkpoint), **OPTIONS)(frame).num_rows == 3


def test_fills(checkpoint: Path) -> None:
    made = Generate(str(checkpoint), fills=True, recipe="full")
    found = made({"prompt": np.array(["Tom has [MASK] boxes .", "Tom has 3 boxes ."], dtype=object)})
    first, second = found.to_pylist()
    assert first["fills"] == list(foretell.load(checkpoint).fill("Tom has [MASK] boxes .").fills)
    assert "mask" in second["error"]


def test_a_row_that_cannot_be_decoded(checkpoint: Path) -> None:
    """Places count rows, also behind one that is not a prompt."""
    batch = {"prompt": np.array(["Tom has 3 boxes .", None, "Zebra .", "Tom has 4 boxes ."], dtype=object)}
    rows = Generate(str(checkpoint), **OPTIONS)(batch).to_pylist()
    assert [row["error"] is None for row in rows] == [True, False, False, True]
    assert "row 1 of a batch: has no" in rows[1]["error"]
    assert "Zebra" in rows[2]["error"]
    assert rows[3]["text"] == foretell.load(checkpoint).generate(PROMPTS[1], **OPTIONS).text
    strict = Generate(str(checkpoint), errors="raise", **OPTIONS)
    with pytest.raises(RequestError, match="row 1 of a batch: has no"):
        strict(batch)
    with pytest.raises(RequestError, match=r"row 1 of a batch: .*Zebra"):
        strict({"prompt": batch["prompt"][[0, 2]]})


def test_no_column_is_overwritten(checkpoint: Path) -> None:
    batch = {"prompt": np.array(PROMPTS), "answer": np.array([1, 2, 3])}
    with pytest.raises(RequestError, match='a column "answer" already; choose a prefix for the results'):
        Generate(str(checkpoint), **OPTIONS)(batch)
    found = Generate(str(checkpoint), prefix="model_", **OPTIONS)(batch)
    assert found["answer"].to_pylist() == [1, 2, 3]
    assert found["model_answer"].null_count == 0


def test_an_empty_batch(checkpoint: Path) -> None:
    found = Generate(str(checkpoint), **OPTIONS)(pa.table({"prompt": pa.array([], pa.string())}))
    assert (found.num_rows, found.num_columns) == (0, 1 + len(TYPES))


def test_mistakes_are_found_before_a_batch_comes(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong, error in (
        ({"errors": "hide"}, RequestError),
        ({"batch_size": 0}, RequestError),
        ({"recipe": "x"}, RecipeError),
    ):
        with pytest.raises(error):
            Generate(str(checkpoint), **wrong)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'foretell\[parquet\]'"):
        Generate(str(checkpoint))
