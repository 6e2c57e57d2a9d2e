"""Traces in one compact file: a zip of arrays and a JSON header, never a pickle."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from foretell.engine.trace import STATISTICS, Trace
from foretell.errors import ForetellError, TraceError
from foretell.layout import Layout, Request
from foretell.presets import recipe

VERSION = 1
_ARRAYS = ("tokens", *STATISTICS, "filled_at")


def save_traces(path: str | Path, traces: Sequence[Trace]) -> None:
    """Write `traces`; a reader sees the old file or the whole new one, even if this is interrupted."""
    arrays: dict[str, Any] = {
        "header": np.array(json.dumps({"version": VERSION, "traces": [_header(t) for t in traces]}))
    }
    for index, trace in enumerate(traces):
        for name in _ARRAYS:
            value = getattr(trace, name).numpy()
            arrays[f"{index}/{name}"] = value.astype(np.int32) if value.dtype == np.int64 else value
    with replacing(Path(path)) as file:
        np.savez_compressed(file, **arrays)


def load_traces(path: str | Path) -> list[Trace]:
    """The traces of a file that `save_traces` wrote."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            header = json.loads(str(arrays["header"]))
            if header["version"] != VERSION:
                raise TraceError(f"{path} has trace format {header['version']}; this release reads {VERSION}")
            return [_trace(one, {n: arrays[f"{i}/{n}"] for n in _ARRAYS}) for i, one in enumerate(header["traces"])]
    except FileNotFoundError:
        raise TraceError(f"there is no file {path}") from None
    except (ValueError, KeyError, EOFError, OSError, TypeError, zipfile.BadZipFile) as error:
        if isinstance(error, ForetellError):
            raise
        raise TraceError(f"{path} is not a whole trace file: {error}") from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes `path`'s place only when everything was written."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _header(trace: Trace) -> dict[str, Any]:
    request = trace.request
    return {
        "prompt": request.prompt,
        "layout": asdict(request.layout),
        "recipe": str(request.recipe),
        "seed": request.seed,
        "mask_id": trace.mask_id,
        "end_ids": trace.end_ids,
        "settled": trace.settled,
        "words": trace.words,
    }


def _trace(header: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]]) -> Trace:
    layout = header["layout"]
    request = Request(
        prompt=tuple(header["prompt"]),
        layout=Layout(
            layout["length"],
            tuple((offset, token) for offset, token in layout["pins"]),
            tuple(layout["answer"]) if layout["answer"] else None,
        ),
        recipe=recipe(header["recipe"]),
        seed=header["seed"],
    )
    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
    tensors |= {name: tensors[name].long() for name in ("tokens", "filled_at")}
    return Trace(
        request=request,
        mask_id=header["mask_id"],
        end_ids=tuple(header["end_ids"]),
        settled=header["settled"],
        words={int(token): word for token, word in header["words"].items()},
        **tensors,
    )
