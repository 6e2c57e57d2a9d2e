"""Trace files: a zip of arrays and a JSON header, never a pickle."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from foretell.engine.request import Layout, Request
from foretell.engine.trace import STATISTICS, Trace
from foretell.errors import ForetellError, TraceError
from foretell.loop.spelling import looks_spaced
from foretell.recipes.presets import parse
from foretell.recipes.text import untrusted
from foretell.storage import replace_file
from foretell.version import __version__

VERSION = 1
FOREIGN = "is not a trace file that `foretell generate --trace` or save_traces wrote"
ZIP = b"PK"  # the first bytes of every zip
_ARRAYS = {"tokens": "<i4", "filled_at": "<i4"} | dict.fromkeys(STATISTICS, "<f4")
Array = np.ndarray[Any, Any]


def save_traces(path: str | Path, traces: Sequence[Trace]) -> None:
    """Write `traces` atomically: readers see the old file or the whole new one."""
    header = {"version": VERSION, "traces": [_header(trace) for trace in traces]}
    arrays: dict[str, Any] = {"header": np.array(json.dumps(header))}
    for name, dtype in _ARRAYS.items():
        flat = [getattr(trace, name).numpy().astype(dtype).ravel() for trace in traces]
        arrays[name] = _planes(np.concatenate(flat) if flat else np.empty(0, dtype))
    with replace_file(Path(path)) as part, part.open("wb") as file:  # opened here, or numpy would add .npz
        np.savez_compressed(file, **arrays)


def load_traces(path: str | Path) -> list[Trace]:
    """Load a file that `save_traces` wrote. Raises TraceError if it is missing or damaged."""
    try:
        with Path(path).open("rb") as file:
            # numpy treats any other file as a pickle, and its message says how to run it.
            if file.read(len(ZIP)) != ZIP:
                raise TraceError(f"{path} {FOREIGN}")
            file.seek(0)
            return _read(file, path)
    except FileNotFoundError:
        raise TraceError(f"there is no file {path}") from None
    except ForetellError:
        raise
    except (ValueError, KeyError, EOFError, OSError, TypeError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path} is not a complete trace file: {error}") from error


def _read(file: BinaryIO, path: str | Path) -> list[Trace]:
    with np.load(file, allow_pickle=False) as arrays:
        if "header" not in arrays:
            raise TraceError(f"{path} {FOREIGN}")
        header = json.loads(str(arrays["header"]))
        if header["version"] != VERSION:
            found = f"{path} has trace format {header['version']}"
            raise TraceError(f"{found}; foretell {__version__} reads format {VERSION}")
        flat = {name: _join_planes(arrays[name], dtype) for name, dtype in _ARRAYS.items()}
    return list(_traces(header["traces"], flat))


def _planes(values: Array) -> Array:
    """Reorder into all first bytes, all second bytes, and so on, which compresses better. [size, n]"""
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)


def _join_planes(planes: Array, dtype: str) -> Array:
    """Undo `_planes`. [n]"""
    return np.ascontiguousarray(planes.T).view(dtype).ravel()


def _header(trace: Trace) -> dict[str, Any]:
    request = trace.request
    return {
        "steps": len(trace),
        "prompt": request.prompt,
        "layout": asdict(request.layout),
        "recipe": str(request.recipe),
        "seed": request.seed,
        "mask_id": trace.mask_id,
        "end_ids": trace.end_ids,
        "settled": trace.settled,
        "words": trace.words,
        "spaced": trace.spaced,
    }


def _traces(headers: list[dict[str, Any]], flat: dict[str, Array]) -> Iterator[Trace]:
    start = dict.fromkeys(_ARRAYS, 0)
    for header in headers:
        steps, length = header["steps"], header["layout"]["length"]
        tensors = {}
        for name, values in flat.items():
            shape = (length,) if name == "filled_at" else (steps, length)
            end = start[name] + math.prod(shape)
            tensors[name] = torch.from_numpy(values[start[name] : end].reshape(shape))
            start[name] = end
        yield _trace(header, tensors)


def _trace(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Trace:
    layout = header["layout"]
    with untrusted():
        recipe = parse(header["recipe"])
    request = Request(
        prompt=tuple(header["prompt"]),
        layout=Layout(
            layout["length"],
            tuple((offset, token) for offset, token in layout["pins"]),
            tuple(layout["answer"]) if layout["answer"] else None,
        ),
        recipe=recipe,
        seed=header["seed"],
    )
    whole = {name: tensors[name].long() for name in ("tokens", "filled_at")}
    return Trace(
        request=request,
        mask_id=header["mask_id"],
        end_ids=tuple(header["end_ids"]),
        settled=header["settled"],
        words={int(token): word for token, word in header["words"].items()},
        spaced=header.get("spaced", looks_spaced(header["words"].values())),
        **(tensors | whole),
    )
