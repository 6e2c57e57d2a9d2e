"""`foretell reproduce`: run the paper's experiments with a checkpoint, and compare the results with the paper's."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from foretell.cli.model import MODEL, Actors, Dtype, Ray, introduce, open_pool
from foretell.cli.usage import EXAMPLES, MACHINE
from foretell.cli.wording import count
from foretell.extras import require_extra

if TYPE_CHECKING:
    from foretell.evaluation.records import Record
    from foretell.evaluation.run import PreparedEvaluation, Watch
    from foretell.reproduce.plan import Cost, Decoding, Plan

NAMED = "main,steps,remasking,blocks,schedules,fast-dllm,sdtt"


def reproduce(
    model: Annotated[str, Option(help=MODEL)],
    out: Annotated[
        Path, Option(help="Folder for results and tables. Run the command again to resume, also with a larger --limit.")
    ],
    tables: Annotated[
        str, Option(help=f"Tables, separated by commas (default: {NAMED.replace(',', ', ')}).", show_default=False)
    ] = NAMED,
    tasks: Annotated[str, Option(help="Tasks, separated by commas (default: all).")] = "",
    student: Annotated[str | None, Option(help="Distilled checkpoint for the table sdtt.")] = None,
    limit: Annotated[
        int | None,
        Option(help="Number of problems per task, chosen by the seed (default: all).", rich_help_panel=EXAMPLES),
    ] = None,
    seed: Annotated[int, Option(help="Random seed, also for the choice of problems.", rich_help_panel=EXAMPLES)] = 0,
    batch_size: Annotated[int, Option(help="Number of problems decoded together.", rich_help_panel=MACHINE)] = 8,
    data: Annotated[
        Path | None, Option(help="Folder of the benchmarks' data (default: FORETELL_DATA).", rich_help_panel=EXAMPLES)
    ] = None,
    device: Annotated[
        str,
        Option(help="Devices to run on: all (every CUDA device), auto, cpu or cuda:0,cuda:1.", rich_help_panel=MACHINE),
    ] = "all",
    dtype: Dtype = "auto",
    workers: Annotated[
        int, Option(help="Number of worker processes (at least one per device).", rich_help_panel=MACHINE)
    ] = 1,
    allow_code_execution: Annotated[
        bool,
        Option(
            "--allow-code-execution",
            help="Allow HumanEval and MBPP to run programs that the model wrote.",
            rich_help_panel=EXAMPLES,
        ),
    ] = False,
    sandbox: Annotated[
        str | None, Option(help="Isolation of these programs (see `foretell eval --help`).", rich_help_panel=EXAMPLES)
    ] = None,
    ray: Ray = None,
    actors: Actors = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the plan and its number of forward passes. Nothing is decoded.")
    ] = False,
) -> None:
    """Run the paper's experiments and compare the tables.

    Writes the paper's numbers and yours side by side. Safe to interrupt: run the same command again to resume.

    foretell reproduce --model tiny --out results/paper --limit 20
    """
    from foretell.cli.console import note, say  # noqa: PLC0415
    from foretell.reproduce.plan import Subject, make_plan  # noqa: PLC0415
    from foretell.reproduce.run import Reproduction, run_plan  # noqa: PLC0415
    from foretell.reproduce.tables import save_tables  # noqa: PLC0415

    require_extra("lab")
    pool = open_pool(ray, actors)
    chosen = _split(tasks)
    code: dict[str, Any] = {"allow_code_execution": allow_code_execution, "sandbox": sandbox}
    subject = Subject.of(model, student, chosen)
    plan = make_plan(subject, _split(tables), chosen, data=data, limit=limit, seed=seed, **code)
    note(f"{task} is left out: {one.reason}" for task, one in plan.skipped.items())
    if dry_run:
        print(describe(plan))
        return
    if pool is not None and device == "all":  # each worker of a pool has one
        device = "auto"
    settings = {"limit": limit, "seed": seed, "batch_size": batch_size, "device": device, "dtype": dtype}
    what = Reproduction(model, out, student, data, {**settings, "workers": workers, "pool": pool, **code})
    total = len(plan.decodings)

    @contextmanager
    def show(decoding: Decoding, prepared: PreparedEvaluation, there: list[Record]) -> Iterator[Watch]:
        from foretell.cli.evaluate import show_progress  # noqa: PLC0415

        place = plan.decodings.index(decoding) + 1
        say(f"{place} of {total}: {decoding.task}, {decoding.recipe}{', student' * decoding.student}", style="bold")
        introduce(prepared.engine)
        note(prepared.notes())
        with show_progress(prepared.total, there) as tally:
            yield tally.add

    run_plan(what, plan, show, lambda: save_tables(what, plan))
    print((out / "tables.md").read_text(encoding="utf8"), end="")
    say(f"wrote {out / 'tables.md'} and tables.json", style="dim")


def _split(named: str) -> list[str]:
    return [one.strip() for one in named.split(",") if one.strip()]


def describe(plan: Plan) -> str:
    """Return one line per decoding and the sum of all."""
    costs = {one: plan.cost(one) for one in plan.decodings}
    lines = []
    for one, cost in costs.items():
        users = ", ".join(table.name for table in plan.tables if one in table.decodings)
        who = " (student)" if one.student else ""
        passes = f"{cost.most:,} passes at most, {cost.expected:,} as in the paper"
        said = f"{count(cost.problems, 'problem')}, {passes}; {users}"
        lines += [
            f"{one.task}: {one.recipe}{who}",
            textwrap.fill(said, 78, initial_indent="  ", subsequent_indent="    "),
        ]
    lines += ["", f"{'passes':12} {'at most':>13} {'if the speedups hold':>21}"]
    for table in plan.tables:
        most, expected = _sum([costs[one] for one in plan.runnable(table.decodings)])
        lines.append(f"{table.name:12} {most:13,} {expected:21,}")
    most, expected = _sum(list(costs.values()))
    lines.append(f"{'together':12} {most:13,} {expected:21,}  (tables share decodings)")
    lines.append("A pass is counted per problem. Hours: passes x seconds per pass / 3600 /")
    lines.append("devices; docs/reproduce.md says how to measure the seconds.")
    return "\n".join(lines)


def _sum(costs: list[Cost]) -> tuple[int, int]:
    return sum(cost.most for cost in costs), sum(cost.expected for cost in costs)
