"""Copies of an engine on other machines, and the requests that they decode."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from foretell.engine.completion import Completion, Failure
from foretell.engine.engine import BUNDLED, Engine, load
from foretell.engine.options import RequestTemplate
from foretell.engine.prompt_kinds import Prompt
from foretell.errors import ModelError
from foretell.models.hub import repo_of
from foretell.storage import is_folder
from foretell.version import __version__
from foretell.workers import Needs, Pool, chunk_size


@dataclass(frozen=True, slots=True)
class EngineCopy:
    """Opens the same engine on another machine. Raises ModelError if it would decode other tokens there."""

    model: str  # the checkpoint folder, if the other machine has it at the same place
    name: str  # otherwise: a bundled model's name or a hub id with its commit
    sha256: str
    device: str  # its type
    dtype: str
    quantize: str | None
    compile: bool
    packed: bool | None
    versions: tuple[str, str]  # of foretell and torch
    needs: Needs

    @classmethod
    def of(cls, engine: Engine, packed: bool | None = None) -> EngineCopy:
        """Return how to open `engine` elsewhere; `packed` is that of `load`."""
        folder = engine.codec.folder.absolute()
        repo = repo_of(folder)
        name = folder.name if folder.parent == BUNDLED else str(folder)
        dtype, _, quantize = (engine.dtype or "auto").partition("+")
        on_gpu = engine.device.type == "cuda"
        threads = 1 if on_gpu else engine.threads or torch.get_num_threads()
        return cls(
            model=str(folder),
            name=name if repo is None else f"{repo}@{folder.name}",
            sha256=engine.fingerprint,
            device=engine.device.type,
            dtype=dtype,
            quantize=quantize or None,
            compile=engine.compiled,
            packed=packed,
            versions=_versions(),
            needs=Needs(threads, int(on_gpu)),
        )

    def __call__(self) -> Engine:
        if _versions() != self.versions:
            raise ModelError(
                f"this machine has foretell {__version__} and torch {torch.__version__}, the machine that "
                f"started the command has {self.versions[0]} and {self.versions[1]}; install the same versions on both"
            )
        where = self.model if is_folder(self.model) else self.name
        engine = load(where, self.device, self.dtype, compile=self.compile, quantize=self.quantize, packed=self.packed)
        if engine.fingerprint != self.sha256:
            raise ModelError(
                f"the checkpoint in {engine.codec.folder} differs from that of the machine that started the command: "
                f"its sha256 is {engine.fingerprint[:12]}, not {self.sha256[:12]}"
            )
        if self.device == "cpu":
            engine.use_threads(self.needs.cpus)
        return engine


@dataclass(frozen=True, slots=True)
class Decoding:
    """Prompts to decode on a copy of an engine: returns (index, completion, seconds since the previous completion)."""

    pairs: Sequence[tuple[Prompt, RequestTemplate]]
    batch_size: int
    trace: bool = False
    errors: Literal["raise", "return"] = "raise"

    def __call__(self, engine: Engine) -> list[tuple[int, Completion | Failure, float]]:
        found: list[tuple[int, Completion | Failure, float]] = []
        started = time.perf_counter()
        done: Completion | Failure
        results = engine.generate_iter(self.pairs, trace=self.trace, batch_size=self.batch_size, errors=self.errors)
        for index, done in results:
            found.append((index, done, time.perf_counter() - started))
            started = time.perf_counter()
        return found


def decode_on(
    pool: Pool, opener: EngineCopy, pairs: Sequence[tuple[Prompt, RequestTemplate]], batch_size: int, *, trace: bool
) -> Iterator[tuple[int, Completion | Failure]]:
    """Decode prompts on a pool as `Engine.generate_iter` does with errors="return"."""
    size = chunk_size(len(pairs), batch_size, pool.size(opener.needs))
    starts = range(0, len(pairs), size)

    def task(number: int) -> Decoding:
        start = starts[number]
        return Decoding(pairs[start : start + size], batch_size, trace, "return")

    for number, found in pool.run(opener, len(starts), task):
        for index, done, _ in found:
            yield starts[number] + index, done


def _versions() -> tuple[str, str]:
    return __version__, str(torch.__version__)
