"""`foretell distil`: halve the steps that a model needs, go on with a run that was interrupted, write the student."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from foretell.errors import RecipeError


def distil(
    config: Annotated[Path, Argument(help="A recipe in TOML; runs/distil_tiny.toml is the bundled student's.")],
    export: Annotated[Path | None, Option(help="When done, write the student to this folder.")] = None,
    fresh: Annotated[bool, Option("--fresh", help="Start over, even if there are checkpoints to go on from.")] = False,
) -> None:
    """Distil a model of LLaDA's format, so that it needs half the steps (self-distillation through time).

    A run that was killed goes on from its last checkpoint. A recipe, with paths relative to it:

    \b
      model = "tiny"               # or a checkpoint folder
      out = "work"                 # checkpoints and the log
      rounds = [[1, 800], [2, 800]]
      mix = { mine = 1.0 }         # shares: own files, or word, choice, sudoku, countdown
      rows = { mine = 16 }         # of a batch
      [[pairs]]                    # lines of {"prompt": ..., "response": ...}
      file = "mine.jsonl"
      name = "mine"
      window = 256
      block = 32

    A round is [tokens, steps]: so many steps of training, with a teacher that fills so many tokens in a step. With
    1 it takes 256 steps for a window of 256, and the student learns to take 128; the next round begins with that
    student as the teacher. Responses are masked as in training ([masking]), prompts never. Held-out accuracies are
    the student's, at half of its teacher's steps.

    \b
    What else can be set, and its default:
      direction = "reverse"        # KL(student || teacher); "forward" is KL(teacher || student)
      rate = 3e-4, clip = 1.0, weight_decay = 0.0, second_beta = 0.999
      pace = [[0, 0.01], [0.02, 1], [1, 1]]   # (share of a round, factor of the rate)
      ema = 0.999                  # kept of the running average every average_every = 10 steps
      processes = 2, seed = 0, eos_weight = 1.0
      log_every = 50, save_every = 500, test_every = 1000, test_rows = 16
    """
    from foretell.cli.console import problem  # noqa: PLC0415
    from foretell.train.config import DistilRecipe  # noqa: PLC0415
    from foretell.train.distil import Distillation, check_export  # noqa: PLC0415
    from foretell.train.distil import distil as run  # noqa: PLC0415
    from foretell.train.run import clear_run, write_model  # noqa: PLC0415

    if not config.is_file():
        raise RecipeError(f"there is no recipe {config}")
    recipe = DistilRecipe.read(config)
    if export is not None:
        check_export(recipe, export)
    if fresh:
        clear_run(recipe)
    run(recipe)
    if export is not None:
        write_model(Distillation.start(recipe, rank=0), export)
        problem(f"wrote {export}", style="green")
