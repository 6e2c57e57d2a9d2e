"""Load a model for a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretell.engine.engine import Engine

PACKED = "Arrange matrices once for oneDNN's products on a CPU (default: where that is faster)."


def open_engine(
    model: str,
    device: str = "cpu",
    dtype: str | None = None,
    threads: int | None = None,
    *,
    compile: bool = False,  # noqa: A002  torch's own word
    quantize: str | None = None,
    packed: bool | None = None,
) -> Engine:
    """Load a model by its folder or bundled name, and set the number of threads."""
    from foretell.engine.engine import load  # noqa: PLC0415

    engine = load(model, device, dtype, compile=compile, quantize=quantize, packed=packed)
    engine.use_threads(threads)
    return engine
