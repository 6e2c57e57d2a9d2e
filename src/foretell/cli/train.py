"""`foretell train`: train a model, resume an interrupted run, export the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def train(
    config: Annotated[Path, Argument(help="Configuration in TOML, e.g. runs/train_tiny.toml (the bundled model).")],
    export: Annotated[Path | None, Option(help="Write the trained model to this folder at the end.")] = None,
    fresh: Annotated[bool, Option("--fresh", help="Delete existing checkpoints and start over.")] = False,
) -> None:
    """Train a masked diffusion model in LLaDA's format.

    Safe to interrupt: run the same command again to resume from the last checkpoint.
    """
    from foretell.cli.console import problem  # noqa: PLC0415
    from foretell.train.config import TrainRecipe  # noqa: PLC0415
    from foretell.train.run import clear_run, write_model  # noqa: PLC0415
    from foretell.train.train import Training  # noqa: PLC0415
    from foretell.train.train import train as run  # noqa: PLC0415

    recipe = TrainRecipe.read(config)
    if fresh:
        clear_run(recipe)
    run(recipe)
    if export is not None:
        write_model(Training.start(recipe, rank=0), export)
        problem(f"wrote {export}", style="green")
