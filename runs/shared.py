"""Shared by the study's scripts: the command line, and evaluations whose decodings are stored and reused."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch

from foretell.certify.replay import Study, gather_cases
from foretell.cli.evaluate import show_progress
from foretell.engine.certificate import model_hash
from foretell.engine.engine import folder_of
from foretell.errors import ForetellError, PermissionNeededError
from foretell.evaluation.benchmark import Benchmark
from foretell.evaluation.benchmarks.bundled import BUNDLED
from foretell.evaluation.catalogue import benchmark_named
from foretell.evaluation.manifest import read_manifest, settle
from foretell.evaluation.records import Record, read_records
from foretell.evaluation.run import Evaluation, PreparedEvaluation, run
from foretell.extras import require_extra
from foretell.models.family import Settings
from foretell.reproduce.paper import COUNTERPARTS, DREAM, LLADA
from foretell.reproduce.paper import NAMES as PAPER_NAMES
from results_page import RESULTS

ROOT = Path(__file__).parents[1]
SEED = 2026  # seed of the problems; nothing was tuned on them
BUNDLED_MODEL = "tiny"
TASKS = ("word", "choice", "sudoku", "countdown")
TAUGHT_PER_PROBLEM = 10  # at most, so that a run with a small --limit is quick
SIDE = 500  # default --limit of the smaller studies


def make_parser(
    doc: str | None, limit: int = 1000, bundled: Sequence[str] = TASKS, public: Sequence[str] = tuple(PAPER_NAMES)
) -> argparse.ArgumentParser:
    """Return the argument parser of the study's scripts; some add options."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=BUNDLED_MODEL, help="a checkpoint folder or the name of a bundled model")
    about = f"default: {' '.join(bundled)}; for other models than the bundled one: {' '.join(public)}"
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help=about)
    parser.add_argument("--limit", type=int, default=limit, help=f"problems per task (default: {limit})")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, help="worker processes (default: 2 for the bundled model, else 1)")
    parser.add_argument("--work", type=Path, default=ROOT / "work" / "study", help="folder for decodings")
    parser.add_argument(
        "--out", type=Path, help="folder for results (default: docs/results, for other models a subfolder)"
    )
    parser.add_argument("--data", type=Path, help="folder of the public benchmarks (default: FORETELL_DATA)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument(
        "--allow-code-execution", action="store_true", help="allow HumanEval and MBPP to run generated code"
    )
    parser.add_argument("--sandbox", help="isolation of generated code: bubblewrap, namespaces or limits")
    parser.set_defaults(bundled=tuple(bundled), public=tuple(public), standard=limit, quantize=None)
    return parser


def run_script(main: Callable[[], None]) -> None:
    """Run a script; errors that a user can fix end it with a one-line message."""
    try:
        main()
    except PermissionNeededError:
        sys.exit(f"error: {PermissionNeededError('--allow-code-execution')}")
    except ForetellError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; run the same command again to resume")


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, fill in defaults, check the tasks' data and create the results folder."""
    options = parser.parse_args()
    require_extra("lab")
    if "default_taught" in options and options.taught is None:
        options.taught = min(options.default_taught, TAUGHT_PER_PROBLEM * options.limit)
    folder = folder_of(options.model)
    options.own = options.model == BUNDLED_MODEL
    options.tasks = tuple(options.tasks or (options.bundled if options.own else options.public))
    options.workers = options.workers or (2 if options.own else 1)
    options.out = options.out or (RESULTS if options.own else RESULTS / folder.name)
    options.decodings = options.work / f"{folder.name}-{model_hash(folder)[:8]}"
    for task in options.tasks:  # report missing data or permissions before decoding
        asked = benchmark(task, options)
        asked.grade(asked.examples(data_folder(task, options), 1, SEED)[0], None)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.own:
        torch.set_num_threads(1)
    mpl.use("Agg")
    return options


def benchmark(task: str, options: argparse.Namespace) -> Benchmark:
    return benchmark_named(task, options.allow_code_execution, options.sandbox)


def data_folder(task: str, options: argparse.Namespace) -> Path | None:
    """Return the folder of a public benchmark; None for bundled tasks, which generate their problems."""
    folder: Path | None = options.data
    return None if task in BUNDLED else folder


def paper_model(options: argparse.Namespace) -> str:
    """Return which of the paper's two models to compare with."""
    kind = Settings.read(folder_of(options.model)).values.get("model_type")
    return DREAM if str(kind).lower() == "dream" else LLADA


def paper_benchmark(task: str) -> str | None:
    """Return the paper's benchmark that a task is or resembles."""
    named = COUNTERPARTS.get(task, task)
    return named if named in PAPER_NAMES else None


def evaluation(
    kind: str, task: str, recipes: Sequence[str], options: argparse.Namespace, limit: int | None = None, **changes: Any
) -> Evaluation:
    """Return an evaluation whose folder is the same for every script with the same settings.

    A finished run with a larger limit is reused, because it starts with the same examples.
    """
    wanted = options.limit if limit is None else limit
    parent = options.decodings / kind / task / "+".join(recipes).replace(" ", "_").replace("/", "_")
    there = [int(folder.name) for folder in parent.glob("[1-9]*") if int(folder.name) >= wanted and is_finished(folder)]
    count = min(there, default=wanted)
    return Evaluation(
        model=options.model,
        task=task,
        recipes=tuple(recipes),
        out=parent / str(count),
        limit=count,
        seed=SEED,
        source=data_folder(task, options),
        batch_size=options.batch_size,
        device=options.device,
        dtype=options.dtype,
        quantize=options.quantize,
        allow_code_execution=options.allow_code_execution,
        sandbox=options.sandbox,
        **({"workers": options.workers} | changes),
    )


def is_finished(folder: Path) -> bool:
    kept = read_manifest(folder)
    return len(read_records(folder)) == int(kept["examples"]) * len(kept["order"])


def run_evaluation(what: Evaluation) -> tuple[PreparedEvaluation, list[Record]]:
    """Decode what is missing, showing progress; return all records."""
    bench = PreparedEvaluation.prepare(what)
    start_from_smaller_run(bench)
    there = read_records(what.out)
    if len(there) == bench.total:
        return bench, there
    print(f"{what.task}, {', '.join(what.recipes)}: {bench.total - len(there)} to decode", flush=True)
    with show_progress(bench.total, there) as tally:
        return bench, run(bench, tally.add)


def start_from_smaller_run(bench: PreparedEvaluation) -> None:
    """Create a missing folder as a copy of the largest finished run of fewer problems, if there is one."""
    out = bench.evaluation.out
    if out.exists():
        return
    fewer = sorted(int(one.name) for one in out.parent.glob("[1-9]*") if int(one.name) < int(out.name))
    for folder in (out.parent / str(count) for count in reversed(fewer)):
        if is_finished(folder) and bench.extends(read_manifest(folder)):
            part = out.with_name(f".{out.name}.part")  # renamed when complete
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(folder, part, ignore=shutil.ignore_patterns("*.lock", "report.*"))
            settle(part, bench.manifest(), bench.extends)
            part.rename(out)
            return


def load_study(task: str, options: argparse.Namespace, recipe: str = "full", limit: int | None = None) -> Study:
    """Return a task decoded with one recipe, with traces; decode only what is missing."""
    what = evaluation("traced", task, (recipe,), options, limit, trace=True)
    return gather_cases(*run_evaluation(what), options.limit if limit is None else limit)


def load_records(task: str, recipe: str, options: argparse.Namespace) -> list[Record]:
    """Return the records of a task decoded with one recipe, without traces; decode only what is missing."""
    bench, records = run_evaluation(evaluation("plain", task, (recipe,), options))
    by_id = {record.id: record for record in records}
    return [by_id[example.id] for example in bench.examples[: options.limit]]


def rename(records: Sequence[Record], name: str) -> list[Record]:
    return [replace(record, recipe=name) for record in records]
