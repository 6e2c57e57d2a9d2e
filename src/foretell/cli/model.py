"""Opening a model for a command: its folder or bundled name, its device, and how many threads it deserves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell.errors import ModelError, RequestError, unknown

if TYPE_CHECKING:
    from foretell.engine.engine import Engine

SMALL = 50_000_000  # parameters up to which handing work to other threads costs more than the work


def folder_of(model: str) -> Path:
    """The folder of a checkpoint, given as a path or as the name of a bundled model."""
    from foretell.engine.engine import BUNDLED  # noqa: PLC0415

    folder = Path(model)
    if folder.exists():
        return folder
    bundled = [path.parent.name for path in BUNDLED.glob("*/config.json")]
    if model in bundled:
        return BUNDLED / model
    missing = f"there is no folder {model!r}"
    raise ModelError(f"{missing}; {unknown('bundled model', model, bundled)}" if bundled else missing)


def open_engine(model: str, device: str = "cpu", dtype: str | None = None, threads: int | None = None) -> Engine:
    from foretell.engine.engine import load  # noqa: PLC0415

    if threads is not None and threads < 1:
        raise RequestError(f"--threads must be at least 1, got {threads}")
    engine = load(folder_of(model), device, dtype)
    use_threads(engine.model, threads)
    return engine


def use_threads(model: Any, threads: int | None = None) -> None:
    """As many threads as asked for; by default one for a small model, and torch's own choice for a large one."""
    import torch  # noqa: PLC0415

    while hasattr(model, "inner"):
        model = model.inner
    size = sum(weight.numel() for weight in model.parameters()) if isinstance(model, torch.nn.Module) else 0
    if threads is None and size > SMALL:
        return
    torch.set_num_threads(threads or 1)
