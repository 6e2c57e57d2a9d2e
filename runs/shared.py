"""What the scripts of the study share: their command line, where decodings are kept, and how results are written."""

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

from foretell.certify.replay import Study, gather
from foretell.cli.evaluate import following
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
from results_page import RESULTS

ROOT = Path(__file__).parents[1]
SEED = 2026  # of the problems; nothing was chosen by looking at them
BUNDLED_MODEL = "tiny"
TASKS = ("word", "choice", "sudoku", "countdown")
TAUGHT_PER_PROBLEM = 10  # at most, so that a small --limit is quick and there is still something to learn
SIDE = 500  # problems where the main table does not need them all
PUBLIC = (
    "mmlu", "arc_challenge", "hellaswag", "truthfulqa", "winogrande", "piqa", "gsm8k", "gpqa", "humaneval", "mbpp",
    "countdown_cd4", "sudoku4x4",
)  # fmt: skip
COUNTERPARTS = {"word": "gsm8k", "choice": "mmlu", "sudoku": "sudoku4x4", "countdown": "countdown_cd4"}
PAPER_NAMES = {
    "mmlu": "MMLU", "arc_challenge": "ARC-C", "hellaswag": "HellaSwag", "truthfulqa": "TruthfulQA",
    "winogrande": "WinoGrande", "piqa": "PIQA", "gsm8k": "GSM8K", "gpqa": "GPQA", "humaneval": "HumanEval",
    "mbpp": "MBPP", "countdown_cd4": "Countdown", "sudoku4x4": "Sudoku",
}  # fmt: skip


def parser_of(
    doc: str | None, limit: int = 1000, bundled: Sequence[str] = TASKS, public: Sequence[str] = PUBLIC
) -> argparse.ArgumentParser:
    """The command line that every script of the study has; some add to it."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=BUNDLED_MODEL, help="a checkpoint folder, or a bundled model by its name")
    told = f"default: {' '.join(bundled)}; for any other model than the bundled one: {' '.join(public)}"
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help=told)
    parser.add_argument("--limit", type=int, default=limit, help=f"problems a task (default: {limit})")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, help="processes (default: 2 for the bundled model, else 1)")
    parser.add_argument("--work", type=Path, default=ROOT / "work" / "study", help="where decodings are kept")
    parser.add_argument("--out", type=Path, help="default: docs/results, for another model a folder of its name there")
    parser.add_argument("--data", type=Path, help="the public benchmarks' folder; default: FORETELL_DATA")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--allow-code-execution", action="store_true", help="HumanEval and MBPP run what is written")
    parser.set_defaults(bundled=tuple(bundled), public=tuple(public), standard=limit, quantize=None)
    return parser


def go(main: Callable[[], None]) -> None:
    """Run a script; what a user can mend ends it in one line."""
    try:
        main()
    except PermissionNeededError:
        sys.exit(f"error: {PermissionNeededError('--allow-code-execution')}")
    except ForetellError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on where it was")


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line with every default filled in, its tasks' data found and the folder for results made."""
    options = parser.parse_args()
    require_extra("lab")
    if "lessons" in options and options.taught is None:
        options.taught = min(options.lessons, TAUGHT_PER_PROBLEM * options.limit)
    folder = folder_of(options.model)
    options.own = options.model == BUNDLED_MODEL
    options.tasks = tuple(options.tasks or (options.bundled if options.own else options.public))
    options.workers = options.workers or (2 if options.own else 1)
    options.out = options.out or (RESULTS if options.own else RESULTS / folder.name)
    options.decodings = options.work / f"{folder.name}-{model_hash(folder)[:8]}"
    for task in options.tasks:  # what is missing or not allowed is said before anything is decoded
        asked = benchmark(task, options)
        asked.grade(asked.examples(data_of(task, options), 1, SEED)[0], None)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.own:
        torch.set_num_threads(1)
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "foretell"  # the same picture is the same file
    return options


def benchmark(task: str, options: argparse.Namespace) -> Benchmark:
    return benchmark_named(task, options.allow_code_execution)


def data_of(task: str, options: argparse.Namespace) -> Path | None:
    """Where a public benchmark's file is; the bundled tasks draw their problems."""
    folder: Path | None = options.data
    return None if task in BUNDLED else folder


def paper_model(options: argparse.Namespace) -> str:
    """The one of the paper's two models whose numbers stand beside."""
    kind = Settings.read(folder_of(options.model)).values.get("model_type")
    return "Dream-7B" if str(kind).lower() == "dream" else "LLaDA-8B"


def counterpart(task: str) -> str | None:
    """The paper's benchmark that a task is, or is a small likeness of."""
    named = COUNTERPARTS.get(task, task)
    return named if named in PAPER_NAMES else None


def evaluation(
    kind: str, task: str, recipes: Sequence[str], options: argparse.Namespace, limit: int | None = None, **changes: Any
) -> Evaluation:
    """An evaluation in a folder of its own, the same one for every script that asks for the same.

    A smaller limit takes the first examples of a larger one, so a finished run of more problems is used instead.
    """
    wanted = options.limit if limit is None else limit
    parent = options.decodings / kind / task / "+".join(recipes).replace(" ", "_").replace("/", "_")
    there = [int(folder.name) for folder in parent.glob("[1-9]*") if int(folder.name) >= wanted and finished(folder)]
    count = min(there, default=wanted)
    return Evaluation(
        model=options.model,
        task=task,
        recipes=tuple(recipes),
        out=parent / str(count),
        limit=count,
        seed=SEED,
        source=data_of(task, options),
        batch_size=options.batch_size,
        device=options.device,
        dtype=options.dtype,
        quantize=options.quantize,
        allow_code_execution=options.allow_code_execution,
        **({"workers": options.workers} | changes),
    )


def finished(folder: Path) -> bool:
    kept = read_manifest(folder)
    return len(read_records(folder)) == int(kept["examples"]) * len(kept["order"])


def carried_out(what: Evaluation) -> tuple[PreparedEvaluation, list[Record]]:
    """Decode what is missing, and show how far it is."""
    bench = PreparedEvaluation.prepare(what)
    grow(bench)
    there = read_records(what.out)
    if len(there) == bench.total:
        return bench, there
    print(f"{what.task}, {', '.join(what.recipes)}: {bench.total - len(there)} to decode", flush=True)
    with following(bench.total, there) as tally:
        return bench, run(bench, tally.add)


def grow(bench: PreparedEvaluation) -> None:
    """Let a folder that is not there yet begin with what the largest finished run of fewer problems decoded."""
    out = bench.what.out
    if out.exists():
        return
    fewer = sorted(int(one.name) for one in out.parent.glob("[1-9]*") if int(one.name) < int(out.name))
    for folder in (out.parent / str(count) for count in reversed(fewer)):
        if finished(folder) and bench.extends(read_manifest(folder)):
            part = out.with_name(f".{out.name}.part")  # a folder is whole or not there
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(folder, part, ignore=shutil.ignore_patterns("*.lock", "report.*"))
            settle(part, bench.manifest(), bench.extends)
            part.rename(out)
            return


def studied(task: str, options: argparse.Namespace, recipe: str = "full", limit: int | None = None) -> Study:
    """A task decoded under one recipe, with traces; what is there already is not decoded again."""
    what = evaluation("traced", task, (recipe,), options, limit, trace=True)
    return gather(*carried_out(what), options.limit if limit is None else limit)


def decoded(task: str, recipe: str, options: argparse.Namespace) -> list[Record]:
    """The same without traces: results alone."""
    bench, records = carried_out(evaluation("plain", task, (recipe,), options))
    by_id = {record.id: record for record in records}
    return [by_id[example.id] for example in bench.examples[: options.limit]]


def renamed(records: Sequence[Record], name: str) -> list[Record]:
    return [replace(record, recipe=name) for record in records]
