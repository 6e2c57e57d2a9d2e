"""Opening a model for a command: its folder or bundled name, its device, and how many threads it deserves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretell.engine.engine import Engine


def open_engine(
    model: str,
    device: str = "cpu",
    dtype: str | None = None,
    threads: int | None = None,
    *,
    compile: bool = False,  # noqa: A002  the word that torch has for it
    quantize: str | None = None,
) -> Engine:
    from foretell.engine.engine import load  # noqa: PLC0415

    engine = load(model, device, dtype, compile=compile, quantize=quantize)
    engine.use_threads(threads)
    return engine
