"""Trace files: a zip of arrays and a JSON header, never a pickle."""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
import torch
from msgspec import Meta

from foretell.engine.request import Layout, Request
from foretell.engine.trace import STATISTICS, Trace
from foretell.errors import ForetellError, TraceError
from foretell.loop.slots import Slot, TokenAutomaton
from foretell.loop.spelling import looks_spaced
from foretell.recipes.presets import parse
from foretell.recipes.text import untrusted
from foretell.storage import check_format, convert, open_file, parse_json, replace_file
from foretell.version import __version__

VERSION = 1
FOREIGN = "is not a trace file that `foretell generate --trace` or save_traces wrote"
ZIP = b"PK"  # the first bytes of every zip
ALWAYS_UNPACKED = 1 << 26  # bytes that a file of any size may unpack to
LARGEST_RATIO = 100  # a larger file may unpack to this many times its size; traces have ratios of 2 to 10
_ARRAYS = {"tokens": "<i4", "filled_at": "<i4"} | dict.fromkeys(STATISTICS, "<f4")
_NPY = re.compile(
    rb"\x93NUMPY\x01\0..{'descr': '[^']+', 'fortran_order': False, 'shape': \(([0-9, ]*)\), } *\n", re.DOTALL
)
Array = np.ndarray[Any, Any]
Id = Annotated[int, Meta(ge=0, lt=2**31)]


class LayoutHeader(msgspec.Struct, forbid_unknown_fields=True):
    """A layout in the header; `Layout` checks that it fits."""

    length: Annotated[int, Meta(ge=1, lt=2**31)]
    pins: tuple[tuple[int, Id], ...]
    answer: tuple[int, int] | None
    padding: int = 0  # missing in files of version 0.1.0
    slots: tuple[tuple[int, int], ...] = ()  # offset and length; what else a slot allowed is not stored


class TraceHeader(msgspec.Struct, forbid_unknown_fields=True):
    """All of a trace except its arrays."""

    steps: Annotated[int, Meta(ge=1, lt=2**31)]
    prompt: tuple[Id, ...]
    layout: LayoutHeader
    recipe: str
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    mask_id: Id
    end_ids: tuple[Id, ...]
    settled: bool
    words: dict[Annotated[str, Meta(pattern="^[0-9]{1,10}$")], str]
    spaced: bool | None = None  # version 0.1.0 did not write it


class FileHeader(msgspec.Struct, forbid_unknown_fields=True):
    """The header of a file."""

    version: int
    traces: list[TraceHeader]


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
    """Load a file that `save_traces` wrote. Raises TraceError if it is missing or damaged.

    A file that unpacks to more than 64 MiB and to more than 100 times its size is refused before it is unpacked.
    """
    with open_file(path, "trace file", TraceError) as file:
        if file.read(len(ZIP)) != ZIP:
            raise TraceError(f"{path} {FOREIGN}")
        try:
            members = _unpack(file)
        except TraceError:
            raise
        except Exception as error:  # damaged zips raise more than ten types of errors, MemoryError among them
            raise TraceError(f"{path} is not a complete trace file: {error}") from error
    if "header" not in members:
        raise TraceError(f"{path} {FOREIGN}")
    try:
        header = parse_json(_read_values(members, "header", ""), "its header", TraceError)
        check_format(header, "version", VERSION)
        return list(_traces(convert(header, FileHeader, TraceError).traces, members))
    except ForetellError as error:
        raise TraceError(f"{path} is not a trace file that foretell {__version__} can read: {error}") from error


def _unpack(file: BinaryIO) -> dict[str, bytes]:
    """Return the members of a zip by name. The checksum of each covers all of its bytes."""
    limit = max(ALWAYS_UNPACKED, LARGEST_RATIO * os.fstat(file.fileno()).st_size)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        size = sum(each.file_size for each in members)
        if size > limit:
            raise TraceError(
                f"{file.name} unpacks to {size:,} bytes; of a file of its size, at most {limit:,} are read"
            )
        if any(each.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for each in members):
            raise TraceError(f"{file.name} {FOREIGN}")  # other methods may unpack to more than is asked for
        return {each.filename.removesuffix(".npy"): _unpack_member(archive, each) for each in members}


def _unpack_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as member:
        return member.read(info.file_size + 1)  # without a number, it would unpack more than the stated size


def _read_values(members: dict[str, bytes], name: str, shape: str) -> bytes:
    """Return the bytes of an array in numpy's format. Raises TraceError if it has another shape."""
    found = _NPY.match(members.get(name, b""))
    if found is None or found[1].decode() != shape:
        raise TraceError(f"{name!r} must be an array of shape ({shape})")
    return members[name][found.end() :]


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
        "layout": _layout(request.layout),
        "recipe": str(request.recipe),
        "seed": request.seed,
        "mask_id": trace.mask_id,
        "end_ids": trace.end_ids,
        "settled": trace.settled,
        "words": trace.words,
        "spaced": trace.spaced,
    }


def _layout(layout: Layout) -> dict[str, Any]:
    parts = asdict(replace(layout, slots=()))
    slots = [(slot.offset, slot.length) for slot in layout.slots]
    return parts | {"slots": slots} if slots else {name: value for name, value in parts.items() if name != "slots"}


def _read_layout(header: LayoutHeader, tokens: torch.Tensor) -> Layout:
    """Return the layout of a trace with these tokens [T, N]. Its slots allow what they held in the end."""
    slots = []
    for offset, length in header.slots:
        held = tokens[-1, max(0, offset) : max(0, offset + length)].tolist()
        edges = [(at, token, at + 1) for at, token in enumerate(held)]
        slots.append(Slot(offset, length, TokenAutomaton(edges, [len(held)], max(held, default=0) + 1)))
    return Layout(header.length, header.pins, header.answer, header.padding, tuple(slots))


def _traces(headers: list[TraceHeader], members: dict[str, bytes]) -> Iterator[Trace]:
    """Yield the traces of a file. Its arrays must have exactly the sizes that the headers say."""
    count = {"filled_at": sum(each.layout.length for each in headers)}
    cells = sum(each.layout.length * each.steps for each in headers)
    flat = {name: _read_array(members, name, count.get(name, cells)) for name in _ARRAYS}
    start = dict.fromkeys(_ARRAYS, 0)
    for header in headers:
        tensors = {}
        for name, values in flat.items():
            shape = (header.layout.length,) if name == "filled_at" else (header.steps, header.layout.length)
            end = start[name] + math.prod(shape)
            tensors[name] = torch.from_numpy(values[start[name] : end].reshape(shape))
            start[name] = end
        yield _trace(header, tensors)


def _read_array(members: dict[str, bytes], name: str, count: int) -> Array:
    """Return the `count` numbers of a member."""
    planes = _read_values(members, name, f"4, {count}")
    if len(planes) != 4 * count:
        raise TraceError(f"{name!r} must have {4 * count} bytes, got {len(planes)}")
    return _join_planes(np.frombuffer(planes, np.uint8).reshape(4, count), _ARRAYS[name])


def _trace(header: TraceHeader, tensors: dict[str, torch.Tensor]) -> Trace:
    with untrusted():
        recipe = parse(header.recipe)
    request = Request(
        prompt=header.prompt,
        layout=_read_layout(header.layout, tensors["tokens"]),
        recipe=recipe,
        seed=header.seed,
    )
    tokens, filled_at = (tensors.pop(name).long() for name in ("tokens", "filled_at"))
    pinned = torch.zeros(len(filled_at), dtype=torch.bool)
    pinned[[offset for offset, _ in request.layout.pins]] = True
    if (tokens < 0).any() or (filled_at > header.steps).any() or not torch.equal(filled_at < 0, pinned):
        raise TraceError("a token or the step at which it was filled is out of range")
    return Trace(
        request=request,
        mask_id=header.mask_id,
        end_ids=header.end_ids,
        tokens=tokens,
        filled_at=filled_at,
        settled=header.settled,
        words={int(token): word for token, word in header.words.items()},
        spaced=looks_spaced(header.words.values()) if header.spaced is None else header.spaced,
        **tensors,
    )
