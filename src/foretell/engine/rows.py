"""A completion as one flat row: a JSON object, or a row of an Arrow table with fixed types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell.engine.completion import Completion, Failure
from foretell.extras import require_extra
from foretell.storage import replace_file

if TYPE_CHECKING:
    import pyarrow as pa

TYPES = {
    "text": "string",
    "answer": "string",
    "response_tokens": "int64",
    "steps": "int64",
    "budget": "int64",
    "saved": "int64",
    "given": "int64",
    "forwards": "int64",
    "tokens_per_forward": "float64",
    "seconds": "float64",
    "finish": "string",
    "exit": "int64",
    "measure": "string",
    "value": "float64",
    "stop_string": "string",
    "notes": "list",
    "fills": "list",  # empty unless masks in a text were filled
    "error": "string",  # why a prompt could not be decoded; everything else is null then
}  # column -> its Arrow type; "list" is a list of strings


def row_of(done: Completion | Failure) -> dict[str, Any]:
    """Return a completion, or the error of a failure, as one JSON object."""
    if isinstance(done, Failure):
        return {"error": str(done)}
    return {
        "text": done.text,
        "answer": done.answer,
        "response_tokens": done.response_tokens,
        "steps": done.steps,
        "budget": done.budget,
        "saved": done.saved,
        "given": done.given,
        "forwards": done.forwards,
        "tokens_per_forward": round(done.tokens_per_forward, 4),
        "seconds": round(done.seconds, 4),
        "finish": done.finish,
        "exit": done.exit,
        "measure": done.measure,
        "value": None if done.value is None else round(done.value, 4),
        "stop_string": done.stop_string,
        "notes": list(done.notes),
    } | ({"fills": list(done.fills)} if done.fills else {})


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
    """Return the rows of `row_of` as columns. Their types do not depend on the rows, so that tables can be joined."""
    import pyarrow as pa  # noqa: PLC0415  slow to import

    types = {name: pa.list_(pa.string()) if kind == "list" else getattr(pa, kind)() for name, kind in TYPES.items()}
    return {name: pa.array([row.get(name) for row in rows], kind) for name, kind in types.items()}


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with their ids to a Parquet file, atomically. Ids are whole numbers if all of them are."""
    require_extra("parquet")
    import pyarrow as pa  # noqa: PLC0415  slow to import
    from pyarrow import parquet  # noqa: PLC0415

    ids = [row["id"] for row in rows]
    names = pa.array(ids if all(isinstance(one, int) for one in ids) else [str(one) for one in ids])
    with replace_file(path) as part:
        parquet.write_table(pa.table({"id": names, **columns_of(rows)}), part)
