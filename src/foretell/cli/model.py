"""Load a model for a command, and say what runs where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from foretell.errors import RequestError

if TYPE_CHECKING:
    from foretell.engine.engine import Engine
    from foretell.workers import Pool

MODEL = "A checkpoint folder, a bundled model's name, or a model on the Hugging Face hub (owner/name)."
Model = Annotated[str, Argument(help=MODEL)]
Revision = Annotated[str | None, Option(help="Branch, tag or commit of a model on the hub.")]
Device = Annotated[str, Option(help="Device: auto, cpu, cuda, cuda:1, mps, ...")]
Dtype = Annotated[str, Option(help="Data type: auto, float32, bfloat16 (bf16) or float16 (fp16).")]
Packed = Annotated[
    bool | None,
    Option(
        "--packed/--no-packed",
        help="Arrange matrices once for oneDNN's products on a CPU (default: where that is faster).",
    ),
]

Ray = Annotated[
    str | None,
    Option(help="Decode on a Ray cluster: auto (the one this machine belongs to), local (this machine) or an address."),
]
Actors = Annotated[
    int | None, Option(help="Number of engines on the Ray cluster (default: as many as it has room for).")
]


def open_pool(ray: str | None, actors: int | None) -> Pool | None:
    """Return the pool that --ray and --actors ask for. It connects to the cluster when there is something to decode."""
    if ray is None:
        if actors is not None:
            raise RequestError(f"--actors {actors} is the number of engines on a cluster: give --ray with it")
        return None
    from foretell.cli.console import note  # noqa: PLC0415
    from foretell.scale.pool import Pool  # noqa: PLC0415

    return Pool(ray, actors, note=lambda line: note([line]))


def open_engine(
    model: str,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    *,
    compile: bool = False,  # noqa: A002  torch's own word
    quantize: str | None = None,
    packed: bool | None = None,
) -> Engine:
    """Load a model by its folder, bundled name or hub id, with a progress bar, and set the number of threads."""
    from foretell.cli.progress import Meter  # noqa: PLC0415
    from foretell.engine.engine import load  # noqa: PLC0415

    with Meter("loading") as meter:
        engine = load(model, device, dtype, compile=compile, quantize=quantize, packed=packed, progress=meter.load)
    engine.use_threads(threads)
    return engine


def introduce(engine: Engine) -> None:
    """Print on stderr what runs where; after all checks, so that a mistake is reported in a single line."""
    from foretell.cli.console import say  # noqa: PLC0415

    say(engine.describe(), style="dim")


def check_rows(engine: Engine, rows: int, window: int) -> None:
    """Print a note if a batch of this many rows with this window may not fit into memory."""
    from foretell.cli.console import note  # noqa: PLC0415

    fit = engine.count_rows(window)
    if fit is not None and rows > fit:
        note([f"about {fit} of {rows} rows fit into the free memory at the same time: lower --batch-size"])


def at_revision(model: str, revision: str | None) -> str:
    """Return the hub id with its revision."""
    from foretell.models.hub import is_hub_id  # noqa: PLC0415

    if revision is None:
        return model
    if not is_hub_id(model):
        raise RequestError(f"--revision is for models on the hub, which are owner/name; got {model}")
    return f"{model}@{revision}"
