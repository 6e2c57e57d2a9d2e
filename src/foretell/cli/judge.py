"""`foretell judge`: train a stopping rule on full decodings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from foretell.cli.evaluate import decoding, sharing, window


@sharing(decoding, window)
def judge(
    rest: dict[str, Any],
    model: Annotated[str, Argument(help="A checkpoint folder, or a bundled model by its name.")],
    out: Annotated[Path, Option(help="The judge's file.")] = Path("judge.json"),
    task: Annotated[str | None, Option("--task", "-t", help="What to decode; `foretell tasks` lists them.")] = None,
    prompts: Annotated[Path | None, Option(help="Or a file of prompts.")] = None,
    recipe: Annotated[str, Option("--recipe", "-r", help="What it is to stop; its own rule is left out.")] = "full",
    look: Annotated[str, Option(help="answer: at the answer alone; text: at the masks around it too.")] = "text",
    hidden: Annotated[int, Option(help="Units of the network; 0 is a logistic regression.")] = 16,
    penalty: Annotated[float, Option(help="On squared weights.")] = 1e-3,
    work: Annotated[Path | None, Option(help="Folder for the decodings; default: beside the judge.")] = None,
) -> None:
    """Train a judge: would committing now give the final answer? Killed at any moment, the same command goes on.

    foretell judge tiny --task choice --limit 500 --seed 1 --out judge.json

    foretell calibrate tiny --task choice --limit 2000 --judge judge.json --risk 0.01 --out rule.json
    """
    from foretell.certify.decodings import evaluation_for  # noqa: PLC0415
    from foretell.certify.train_judge import JudgeConfig, JudgeTraining  # noqa: PLC0415
    from foretell.cli.console import out as console  # noqa: PLC0415
    from foretell.cli.console import say  # noqa: PLC0415
    from foretell.cli.evaluate import following  # noqa: PLC0415
    from foretell.evaluation.records import read_records  # noqa: PLC0415

    config = JudgeConfig(look, hidden, penalty, rest["seed"])
    options = rest.pop("options")
    plan = JudgeTraining.prepare(evaluation_for(model, task, prompts, recipe, out, work, options, **rest), config)
    with following(plan.bench.total, read_records(plan.bench.what.out), graded=plan.bench.graded) as tally:
        made = plan.run(tally.add)
    made.save(out)
    console().print(
        f"{made.steps} steps of {len(plan.bench.examples)} examples, {made.share:.1%} of them with the final answer: "
        f"log loss {made.loss:.3f}, {made.before:.3f} without looking.",
        soft_wrap=True,
    )
    say(f"wrote {out}; choose its bar with: foretell calibrate ... --judge {out}", style="dim")
