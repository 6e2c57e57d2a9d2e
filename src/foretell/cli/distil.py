"""`foretell distil`: train a student that needs half the steps, resume an interrupted run, export the student."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def distil(
    config: Annotated[Path, Argument(help="Configuration in TOML, e.g. runs/distil_tiny.toml (the bundled student).")],
    export: Annotated[Path | None, Option(help="Write the student to this folder at the end.")] = None,
    fresh: Annotated[bool, Option("--fresh", help="Delete existing checkpoints and start over.")] = False,
) -> None:
    """Distil a model so that it needs half the steps.

    This is SDTT, self-distillation through time, for models in LLaDA's format. Safe to interrupt: run the same command
    again to resume from the last checkpoint. A configuration (paths are relative to its file):

      model = "tiny"               # or a checkpoint folder
      out = "work"                 # checkpoints and the log
      rounds = [[1, 800], [2, 800]]
      mix = { mine = 1.0 }         # shares; also word, choice, sudoku, countdown
      rows = { mine = 16 }         # rows per batch
      [[pairs]]                    # lines of {"prompt": ..., "response": ...}
      file = "mine.jsonl"
      name = "mine"
      window = 256
      block = 32

    A round is [tokens, steps]: `steps` training steps with a teacher that fills `tokens` tokens per decoding step.
    With 1 token, the teacher takes 256 steps for a window of 256, and the student learns to take 128. This student is
    the teacher of the next round. Responses are masked as in training ([masking]); prompts are never masked. Held-out
    accuracy is measured with the student at half of its teacher's steps.

    Other settings and their defaults:

      direction = "reverse"        # KL(student || teacher), or "forward"
      rate = 3e-4
      clip = 1.0
      weight_decay = 0.0
      second_beta = 0.999
      pace = [[0, 0.01], [0.02, 1], [1, 1]]  # [share of a round, factor on rate]
      ema = 0.999                  # decay
      average_every = 10           # steps between updates of the average
      processes = 2
      seed = 0
      eos_weight = 1.0
      log_every = 50
      save_every = 500
      test_every = 1000
      test_rows = 16
    """
    from foretell.cli.console import problem  # noqa: PLC0415
    from foretell.train.config import DistilRecipe  # noqa: PLC0415
    from foretell.train.distil import Distillation, check_export  # noqa: PLC0415
    from foretell.train.distil import distil as run  # noqa: PLC0415
    from foretell.train.run import clear_run, write_model  # noqa: PLC0415

    recipe = DistilRecipe.read(config)
    if export is not None:
        check_export(recipe, export)
    if fresh:
        clear_run(recipe)
    run(recipe)
    if export is not None:
        write_model(Distillation.start(recipe, rank=0), export)
        problem(f"wrote {export}", style="green")
