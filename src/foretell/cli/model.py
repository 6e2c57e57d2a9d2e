"""Load a model for a command, and say what runs where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from foretell.cli.usage import MACHINE
from foretell.errors import RequestError

if TYPE_CHECKING:
    from foretell.engine.engine import Engine
    from foretell.workers import Pool

MODEL = "Checkpoint folder, bundled model (tiny) or Hugging Face model (owner/name)."
Model = Annotated[str, Argument(help=MODEL)]
DEVICE = "Device to run on: auto, cpu, cuda, cuda:1, mps."
Revision = Annotated[str | None, Option(help="Branch, tag or commit of a Hugging Face model.", rich_help_panel=MACHINE)]
Device = Annotated[str, Option(help=DEVICE, rich_help_panel=MACHINE)]
Dtype = Annotated[
    str, Option(help="Data type: auto, float32, bfloat16 (bf16) or float16 (fp16).", rich_help_panel=MACHINE)
]
Threads = Annotated[
    int | None, Option(help="Number of torch threads (default: 1 for small models).", rich_help_panel=MACHINE)
]
Compile = Annotated[bool, Option("--compile", help="Compile the model with torch.compile.", rich_help_panel=MACHINE)]
Quantize = Annotated[str | None, Option(help="Quantize the weights: int8.", rich_help_panel=MACHINE)]
Packed = Annotated[
    bool | None,
    Option(
        "--packed/--no-packed",
        help="Rearrange weight matrices for faster products on a CPU (default: if a trial is faster).",
        rich_help_panel=MACHINE,
    ),
]
Ray = Annotated[
    str | None,
    Option(help="Decode on a Ray cluster: auto, local or an address (see docs/scale.md).", rich_help_panel=MACHINE),
]
Actors = Annotated[
    int | None,
    Option(help="Number of copies of the model on the Ray cluster (default: as many as fit).", rich_help_panel=MACHINE),
]


def open_pool(ray: str | None, actors: int | None) -> Pool | None:
    """Return the pool that --ray and --actors ask for. It connects to the cluster when there is something to decode."""
    if ray is None:
        if actors is not None:
            raise RequestError(f"--actors {actors} is the number of models on a Ray cluster: give --ray with it")
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
