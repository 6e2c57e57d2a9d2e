"""`foretell study` and `foretell sweep`: compare recipes, replaying stopping rules on the traces of one decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from foretell.cli.evaluate import (
    decoding_options,
    evaluation_of,
    evaluation_options,
    run_evaluation,
    show_progress,
    show_report,
    window_options,
    with_options,
)
from foretell.cli.model import introduce
from foretell.cli.usage import OUTPUT
from foretell.extras import require_extra

if TYPE_CHECKING:
    from foretell.certify.replayed import ReplayedEvaluation
    from foretell.evaluation.run import PreparedEvaluation

BASELINE = "full"


@with_options(evaluation_options, decoding_options, window_options)
def study(
    settings: dict[str, Any],
    recipe: Annotated[
        list[str] | None, Option("--recipe", "-r", help="Recipe to compare with full (default: prophet). Repeatable.")
    ] = None,
) -> None:
    """Compare recipes with full decoding, in a table and two figures.

    Each recipe is decoded once without its stopping rule. Stopping rules are replayed on the stored traces, so trying
    another rule takes seconds. Safe to interrupt: run the same command again to resume, also with more recipes.

    In the example, mine.py defines the rule `certain` (see docs/research.md).

    foretell study tiny --task word --limit 200 --import mine.py \\
        --recipe "full stop=certain" --out results/mine
    """
    from foretell.certify.replayed import ReplayedEvaluation  # noqa: PLC0415

    require_extra("lab")
    require_extra("plots")
    bench = _prepare(settings, tuple(dict.fromkeys((BASELINE, *(recipe or ("prophet",))))))
    _run(ReplayedEvaluation.of(bench, trace_all=True))
    from foretell.cli.plot import draw  # noqa: PLC0415

    draw(bench.evaluation.out)


@with_options(evaluation_options, decoding_options, window_options)
def sweep(
    settings: dict[str, Any],
    vary: Annotated[
        list[str], Option("--vary", "-v", help="Parameter and its values, e.g. steps=16,32,64. Repeatable.")
    ],
    base: Annotated[
        list[str] | None, Option("--base", "-b", help="Recipe to vary (default: prophet). Repeatable.")
    ] = None,
    trace: Annotated[
        bool, Option("--trace", help="Save every step of every example. Implies --live.", rich_help_panel=OUTPUT)
    ] = False,
    live: Annotated[
        bool, Option("--live", help="Decode every recipe instead of replaying stopping rules, to measure times.")
    ] = False,
) -> None:
    """Evaluate a recipe with every combination of parameter values.

    Each combination is compared with the unchanged recipe. Recipes that differ only in their stopping rule are decoded
    once without it, and the rules are replayed on the traces. Safe to interrupt: run the same command again to resume.

    foretell sweep tiny --task word --vary stop.reduce=mean,min \\
        --vary stop.tau.high=5,7.5,10 --out results/rules

    foretell sweep tiny --task word --base prophet --vary steps=16,32 \\
        --vary block_length=8,16 --out results/sweep
    """
    from foretell.certify.replayed import ReplayedEvaluation  # noqa: PLC0415
    from foretell.evaluation.sweep import expand_sweep  # noqa: PLC0415

    require_extra("lab")
    bench = _prepare({**settings, "trace": trace}, expand_sweep(base or ["prophet"], vary))
    made = ReplayedEvaluation.of(bench)
    if live or trace or not made.baselines:
        run_evaluation(bench)
    else:
        _run(made)


def _prepare(settings: dict[str, Any], recipes: tuple[str, ...]) -> PreparedEvaluation:
    from foretell.cli.progress import Meter  # noqa: PLC0415
    from foretell.evaluation.run import PreparedEvaluation  # noqa: PLC0415

    with Meter("loading") as meter:
        return PreparedEvaluation.prepare(evaluation_of(settings, recipes), progress=meter.load)


def _run(made: ReplayedEvaluation) -> None:
    from foretell.cli.console import note, say  # noqa: PLC0415

    made.check()
    note(made.bench.notes())
    introduce(made.bench.engine)
    if made.baselines:
        say(f"decoded: {', '.join(made.decoded)}; replayed: {', '.join(made.baselines)}", style="dim")
    with show_progress(made.total, made.finished(), made.bench.graded) as tally:
        made.run(tally.add)
    show_report(made.bench.evaluation.out)
