"""Serve a queue of requests in three modes: one by one, in static batches, and with continuous batching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from foretell.engine.completion import Completion
from foretell.engine.engine import Engine, Prompt
from foretell.engine.options import RequestTemplate
from foretell.engine.outcome import Usage
from foretell.engine.request import lay_out
from foretell.errors import RequestError
from foretell.loop.decode import decode
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Denoiser, Inputs, Readout

Queue = Sequence[tuple[Prompt, RequestTemplate]]


@dataclass(frozen=True, slots=True)
class QueueResult:
    """The results of a queue, in the order of its requests."""

    tokens: tuple[tuple[int, ...], ...]
    usage: Usage
    completions: tuple[Completion, ...] = ()  # empty for static batches


@dataclass(slots=True)
class StaticBatch:
    """A baseline that keeps computing finished rows until the whole batch is done (static batching)."""

    inner: Denoiser
    rows: int
    columns: int = field(default=0, init=False)  # computed by all passes

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        index = torch.arange(self.rows, device=inputs.canvas.device)
        index = torch.where(index < len(inputs.canvas), index, 0)
        self.columns += inputs.columns[:1].numel() * self.rows
        whole = {name: getattr(inputs, name)[index] for name in ("canvas", "positions", "attend", "columns", "wanted")}
        return self.inner(inputs._replace(**whole))

    def new_cache(self, batch: int, length: int) -> KVStore:
        raise RequestError(f"static batches need a recipe without a cache, got a cache of {batch} x {length}")


def serve_one_by_one(engine: Engine, queue: Queue) -> QueueResult:
    return serve_continuously(engine, queue, 1)


def serve_continuously(engine: Engine, queue: Queue, batch_size: int) -> QueueResult:
    done = dict(engine.generate_iter(queue, batch_size=batch_size))
    ordered = tuple(done[index] for index in range(len(queue)))
    usage = sum((Usage(one.columns_needed, one.columns_computed) for one in ordered), Usage())
    return QueueResult(tuple(one.tokens for one in ordered), usage, ordered)


def serve_static_batches(engine: Engine, queue: Queue, batch_size: int) -> QueueResult:
    """Serve batches in order of arrival, each until its last row is done. All share one recipe without a cache."""
    requests = [engine.request(prompt, template) for prompt, template in queue]
    if len({request.kind for request in requests}) > 1:
        raise RequestError("static batches need requests of one kind")
    tokens: list[tuple[int, ...]] = []
    usage = Usage()
    for start in range(0, len(requests), batch_size):
        batch = requests[start : start + batch_size]
        state = lay_out(batch, engine.model.mask_id, engine.codec.end_ids, engine.device, engine.spelling)
        model = StaticBatch(engine.model, len(batch))
        for step in decode(model, state, batch[0].recipe):
            state = step.after
        tokens += [tuple(row) for row in state.window.tolist()]
        usage += Usage(int(state.meters.needed.sum()), model.columns)
    return QueueResult(tuple(tokens), usage)


def serving_modes(engine: Engine, queue: Queue, batch_size: int) -> dict[str, Callable[[], QueueResult]]:
    """Return one function per mode that serves the queue. Static batches ("synchronous") are omitted with a cache."""
    modes: dict[str, Callable[[], QueueResult]] = {
        "one by one": lambda: serve_one_by_one(engine, queue),
        "synchronous": lambda: serve_static_batches(engine, queue, batch_size),
        "continuous": lambda: serve_continuously(engine, queue, batch_size),
    }
    if any(template.recipe.cache.stores for _, template in queue):
        del modes["synchronous"]
    return modes
