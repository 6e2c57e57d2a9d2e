"""`foretell train`: run a training recipe, go on with one that was interrupted, write its model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from foretell.errors import RecipeError


def train(
    config: Annotated[Path, Argument(help="A recipe in TOML; runs/train_tiny.toml is the bundled model's.")],
    export: Annotated[Path | None, Option(help="When done, write the model to this folder.")] = None,
    fresh: Annotated[bool, Option("--fresh", help="Start over, even if there are checkpoints to go on from.")] = False,
) -> None:
    """Train a masked diffusion model of LLaDA's format; a run that was killed goes on from its last checkpoint."""
    from foretell.cli.console import problem  # noqa: PLC0415
    from foretell.train.config import TrainRecipe  # noqa: PLC0415
    from foretell.train.run import clear_run, write_model  # noqa: PLC0415
    from foretell.train.train import Training  # noqa: PLC0415
    from foretell.train.train import train as run  # noqa: PLC0415

    if not config.is_file():
        raise RecipeError(f"there is no recipe {config}")
    recipe = TrainRecipe.read(config)
    if fresh:
        clear_run(recipe)
    run(recipe)
    if export is not None:
        write_model(Training.start(recipe, rank=0), export)
        problem(f"wrote {export}", style="green")
