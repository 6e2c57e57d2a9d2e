"""`foretell judge`: train a stopping rule on full decodings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from foretell.cli.evaluate import decoding_options, window_options, with_options
from foretell.cli.model import Model, at_revision, introduce
from foretell.cli.usage import EXAMPLES


@with_options(decoding_options, window_options)
def judge(
    settings: dict[str, Any],
    model: Model,
    out: Annotated[Path, Option(help="File for the trained judge.")] = Path("judge.json"),
    task: Annotated[
        str | None, Option("--task", "-t", help="Task to decode (see `foretell tasks`).", rich_help_panel=EXAMPLES)
    ] = None,
    prompts: Annotated[
        Path | None, Option(help="File of prompts, instead of a task.", rich_help_panel=EXAMPLES)
    ] = None,
    recipe: Annotated[
        str, Option("--recipe", "-r", help="Recipe that the judge will stop; its own stopping rule is ignored.")
    ] = "full",
    look: Annotated[
        str, Option(help="What the judge sees: answer, or text (also the masks around the answer).")
    ] = "text",
    hidden: Annotated[int, Option(help="Number of hidden units; 0 for logistic regression.")] = 16,
    penalty: Annotated[float, Option(help="L2 penalty on the weights.")] = 1e-3,
    work: Annotated[Path | None, Option(help="Folder for intermediate results (default: next to the judge).")] = None,
) -> None:
    """Train a stopping rule on full decodings.

    The rule predicts whether committing now gives the final answer. Safe to interrupt: run the same command again to
    resume.

    foretell judge tiny --task choice --limit 500 --seed 1 --out judge.json

    foretell calibrate tiny --task choice --limit 2000 --risk 0.01 \\
        --judge judge.json --out rule.json
    """
    from foretell.certify.decodings import evaluation_for  # noqa: PLC0415
    from foretell.certify.train_judge import JudgeConfig, JudgeTraining  # noqa: PLC0415
    from foretell.cli.console import out as console  # noqa: PLC0415
    from foretell.cli.console import say  # noqa: PLC0415
    from foretell.cli.evaluate import show_progress  # noqa: PLC0415
    from foretell.cli.progress import Meter  # noqa: PLC0415
    from foretell.evaluation.records import read_records  # noqa: PLC0415

    config = JudgeConfig(look, hidden, penalty, settings["seed"])
    options = settings.pop("options")
    model = at_revision(model, settings.pop("revision"))
    what = evaluation_for(model, task, prompts, recipe, out, work, options, **settings)
    with Meter("loading") as meter:
        plan = JudgeTraining.prepare(what, config, meter.load)
    introduce(plan.bench.engine)
    with show_progress(plan.bench.total, read_records(plan.bench.evaluation.out), graded=plan.bench.graded) as tally:
        made = plan.run(tally.add)
    made.save(out)
    console().print(
        f"{made.steps} steps of {len(plan.bench.examples)} examples, {made.share:.1%} of them with the final answer: "
        f"log loss {made.loss:.3f}, {made.before:.3f} for always predicting that share.",
        soft_wrap=True,
    )
    say(f"wrote {out}; choose its threshold with: foretell calibrate ... --judge {out}", style="dim")
