"""Trace files: damaged headers, arrays and archives. Rules are replayed on what can be read."""

from __future__ import annotations

import io
import json
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import foretell
from foretell.cli.replay import replay_trace
from foretell.errors import ForetellError
from tests.fuzz import world
from tests.fuzz.mutate import damage_file, mutate_bytes, mutate_value, write_json
from tests.fuzz.recipes import good_recipe

DTYPES = ("int8", "uint8", "int64", "uint64", "float16", "float32", "bool", "complex128", "U3", "S2", "datetime64[s]")
SHAPES = ((), (0,), (1,), (3, 4), (4, 0), (2, 2, 2))


@cache
def _arrays() -> dict[str, Any]:
    with np.load(world.trace_file()) as stored:
        return dict(stored)


def _damage_arrays(rng: Random) -> bytes:
    """Return an archive with valid checksums around other arrays."""
    arrays = dict(_arrays())
    if rng.random() < 0.7:
        header = mutate_value(rng, json.loads(str(arrays["header"])))
        arrays["header"] = np.array(write_json(rng, header).decode("utf8", "surrogatepass"))
    for name in rng.sample(sorted(arrays), rng.choice((0, 1, 1, 2))):
        arrays[name] = _damage_array(rng, arrays[name])
    if rng.random() < 0.05:
        del arrays[rng.choice(sorted(arrays))]
    file, whole = io.BytesIO(), io.BytesIO()
    np.savez(file, **arrays)
    damaged = rng.choice(sorted(arrays)) if rng.random() < 0.2 else ""
    with zipfile.ZipFile(file) as before, zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            data = before.read(name)
            after.writestr(name, _damage_member(rng, data) if name == f"{damaged}.npy" else data)
    return whole.getvalue()


def _damage_array(rng: Random, array: Any) -> Any:
    kind = rng.randrange(4)
    if kind == 0 or array.dtype != np.uint8:
        return np.zeros(rng.choice(SHAPES), rng.choice(DTYPES))
    if kind == 1:
        return array[..., : rng.randrange(9)]
    if kind == 2:
        return np.frombuffer(rng.randbytes(array.size), np.uint8).reshape(array.shape)
    return np.concatenate([array] * 2, axis=-1).astype(rng.choice(DTYPES))


def _damage_member(rng: Random, data: bytes) -> bytes:
    """Change the head of an array's file; sometimes it announces far more than there is."""
    if rng.random() < 0.3:
        return data.replace(b"'shape': (4, ", b"'shape': (4" + b"0" * 10 + b", ").replace(b" " * 10 + b"\n", b"\n")
    return mutate_bytes(rng, data[:128]) + data[128:]


def run(rng: Random) -> None:
    with world.scratch() as folder:
        path = folder / "traces.npz"
        path.write_bytes(_damage_arrays(rng) if rng.random() < 0.7 else world.trace_file().read_bytes())
        if rng.random() < 0.3:
            damage_file(rng, path)
        for trace in foretell.load_traces(path):
            _use(rng, trace, folder / "again.npz")


def _use(rng: Random, trace: foretell.Trace, path: Path) -> None:
    stop, region = trace.request.recipe.stop, None
    if rng.random() < 0.3:
        other = good_recipe(rng)
        stop, region = other.stop, other.region
    try:
        fired = trace.replay(stop, region)
        assert fired is None or 0 <= fired < len(trace)
        replay_trace(trace, stop, region)
        assert 0 <= trace.last_change() < len(trace)
        trace.first_match()
    except ForetellError:
        if rng.random() < 0.5:
            raise
    foretell.save_traces(path, [trace])
    (again,) = foretell.load_traces(path)
    assert again.request == trace.request
