"""Trace files: damaged headers, arrays and archives. Rules are replayed on what can be read."""

from __future__ import annotations

import io
import json
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

DTYPES = ("int8", "uint8", "int64", "float32", "bool", "complex128", "U3", "S2", "datetime64[s]")


@cache
def _arrays() -> dict[str, Any]:
    with np.load(world.trace_file()) as stored:
        return dict(stored)


def _damage_archive(rng: Random) -> bytes:
    arrays = dict(_arrays())
    if rng.random() < 0.7:
        header = mutate_value(rng, json.loads(str(arrays["header"])))
        arrays["header"] = np.array(write_json(rng, header).decode("utf8", "surrogatepass"))
    for name in rng.sample(sorted(arrays), rng.choice((0, 1, 1, 2))):
        arrays[name] = _damage_array(rng, arrays[name])
    if rng.random() < 0.05:
        del arrays[rng.choice(sorted(arrays))]
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return mutate_bytes(rng, file.getvalue()) if rng.random() < 0.1 else file.getvalue()


def _damage_array(rng: Random, array: Any) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        return np.zeros(rng.choice(((), (0,), (1,), (3, 4), (4, 0), (2, 2, 2))), rng.choice(DTYPES))
    if kind == 1:
        return array[..., : rng.randrange(9)] if array.ndim else array
    if kind == 2 and array.dtype == np.uint8:
        return np.frombuffer(rng.randbytes(array.size), np.uint8).reshape(array.shape)
    if kind == 3 and rng.random() < 0.1:
        return np.zeros((4, 1 << 26), np.uint8)  # a few hundred kilobytes that unpack to many
    if kind == 4:
        return np.concatenate([np.atleast_1d(array)] * 2, axis=-1)
    return array.astype(rng.choice(("int16", "uint64", "float16", "S4"))) if array.dtype == np.uint8 else array


def run(rng: Random) -> None:
    with world.scratch() as folder:
        path = folder / "traces.npz"
        if rng.random() < 0.6:
            path.write_bytes(_damage_archive(rng))
        else:
            path.write_bytes(world.trace_file().read_bytes())
            damage_file(rng, path)
        for trace in foretell.load_traces(path):
            _use(rng, trace, folder)


def _use(rng: Random, trace: foretell.Trace, folder: Path) -> None:
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
    foretell.save_traces(folder / "again.npz", [trace])
    (again,) = foretell.load_traces(folder / "again.npz")
    assert again.request == trace.request
