"""A queue of requests served in three ways: one by one, in batches that finish together, and continuously."""

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

Orders = Sequence[tuple[Prompt, RequestTemplate]]


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a queue, in the order in which it was asked."""

    tokens: tuple[tuple[int, ...], ...]
    usage: Usage
    completions: tuple[Completion, ...] = ()  # where there are any


@dataclass(slots=True)
class Rectangle:
    """A denoiser whose passes all have as many rows as the batch had: a row that is done is computed until all are.

    That is what a batch costs whose rows wait for the last of them; our own loop leaves them out.
    """

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
        raise RequestError(f"batches that finish together are for recipes without a cache, got {batch} x {length}")


def one_by_one(engine: Engine, orders: Orders) -> Served:
    return continuous(engine, orders, 1)


def continuous(engine: Engine, orders: Orders, batch_size: int) -> Served:
    done = dict(engine.generate_iter(orders, batch_size=batch_size))
    ordered = tuple(done[index] for index in range(len(orders)))
    usage = sum((Usage(one.columns_needed, one.columns_computed) for one in ordered), Usage())
    return Served(tuple(one.tokens for one in ordered), usage, ordered)


def synchronous(engine: Engine, orders: Orders, batch_size: int) -> Served:
    """Batches in the order of arrival, each of which ends when its last row does; of one recipe, without a cache."""
    requests = [engine.request(prompt, order) for prompt, order in orders]
    if len({request.kind for request in requests}) > 1:
        raise RequestError("batches that finish together need requests of one kind")
    tokens: list[tuple[int, ...]] = []
    usage = Usage()
    for start in range(0, len(requests), batch_size):
        batch = requests[start : start + batch_size]
        state = lay_out(batch, engine.model.mask_id, engine.codec.end_ids, engine.device, engine.spelling)
        model = Rectangle(engine.model, len(batch))
        for step in decode(model, state, batch[0].recipe):
            state = step.after
        tokens += [tuple(row) for row in state.window.tolist()]
        usage += Usage(int(state.meters.needed.sum()), model.columns)
    return Served(tuple(tokens), usage)


def ways(engine: Engine, orders: Orders, batch_size: int) -> dict[str, Callable[[], Served]]:
    """The ways to serve a queue; with a cache there is none that finishes together."""
    found: dict[str, Callable[[], Served]] = {
        "one by one": lambda: one_by_one(engine, orders),
        "synchronous": lambda: synchronous(engine, orders, batch_size),
        "continuous": lambda: continuous(engine, orders, batch_size),
    }
    if any(order.recipe.cache.stores for _, order in orders):
        del found["synchronous"]
    return found
