"""The plan of the paper's tables: which task is decoded with which recipe for each row, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from foretell.errors import PermissionNeededError, RequestError, unknown
from foretell.evaluation.benchmarks import BENCHMARKS
from foretell.evaluation.benchmarks.bundled import BUNDLED
from foretell.evaluation.catalogue import PUBLIC, benchmark_named
from foretell.evaluation.task_recipe import TaskRecipe
from foretell.models.family import Settings
from foretell.models.load import BUNDLED as CHECKPOINTS
from foretell.reproduce import paper
from foretell.reproduce.paper import DREAM, LLADA, Result

ONE_MODEL = "The paper has this table for LLaDA-8B only."
CONFIGURATIONS = (
    "Windows, budgets, blocks and thresholds are those of the paper's table of configurations. For general tasks its "
    "text says 128 positions and that table says 64."
)
UNSTATED = (
    "The paper does not state its prompts, the place of the suffix in general tasks or the split of Countdown (here: "
    "four numbers). Full decoding has the same pinned suffix as Prophet."
)
WINDOW_128 = "The paper does not name the window; its baseline equals that of a window of 128, which is used here."
TIMES = "Speedups are of wall-clock time per problem, so they depend on the device and the batch size."
FAST_DLLM = (
    "The paper does not state Fast-dLLM's parameters; here: confidence 0.9 and the dual cache. Prophet's progress then "
    "counts filled tokens."
)
HALF = "The teacher with half the steps is in the paper's table of step budgets."
ABOUT_THE_PAPER = (CONFIGURATIONS, UNSTATED, WINDOW_128)  # notes that mean nothing for counterparts
NO_STUDENT = "SDTT was left out: it needs a distilled checkpoint (`foretell distil`), given as --student."


@dataclass(frozen=True, slots=True)
class Decoding:
    """One task decoded with one recipe; every table that needs it uses the same results."""

    task: str
    recipe: str
    student: bool = False  # whether the distilled model decodes


@dataclass(frozen=True, slots=True)
class Row:
    setting: str
    decoder: str
    decoding: Decoding
    base: Decoding  # accuracy and speed are compared with this
    paper: Result | None = None  # None: not in the paper


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    clock: bool = False  # whether speedup means time; otherwise it means steps

    @property
    def decodings(self) -> list[Decoding]:
        return list(dict.fromkeys(one for row in self.rows for one in (row.base, row.decoding)))


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that takes the place of the paper's."""

    name: str  # of the paper's model whose results are shown beside
    counterparts: bool = False  # decode the bundled tasks that resemble the paper's benchmarks
    student: bool = False  # whether there is a distilled model

    @classmethod
    def of(cls, model: str, student: str | None = None, tasks: Sequence[str] = ()) -> Subject:
        """Describe a model without loading it; one that is not on this machine is known only by its name."""
        bundled = (CHECKPOINTS / model / "config.json").is_file() and not Path(model).exists()
        bundled = bundled or any(task in paper.COUNTERPARTS for task in tasks)
        kind = model
        if (Path(model) / "config.json").is_file():
            kind = str(Settings.read(Path(model)).values.get("model_type"))
        return cls(DREAM if "dream" in kind.lower() else LLADA, bundled, student is not None)

    def task(self, benchmark: str) -> str | None:
        """Return the task to decode for a benchmark of the paper; None if there is no counterpart."""
        own = {theirs: ours for ours, theirs in paper.COUNTERPARTS.items()}
        return own.get(benchmark) if self.counterparts else benchmark

    def name_of(self, task: str, benchmark: str) -> str:
        named = paper.NAMES[benchmark]
        return f"{task} (paper: {named})" if self.counterparts else named

    @property
    def gsm8k(self) -> str:
        """The name of GSM8K in titles of tables."""
        return "counterparts of GSM8K" if self.counterparts else "GSM8K"

    def ablation(self, window: int) -> tuple[str, Callable[[int], int]]:
        """Return the task for GSM8K in this window, and a function that scales lengths to the task's own window."""
        task = self.task("gsm8k" if window == 256 else "gsm8k_128") or ""
        own = benchmark_named(task).options["max_new_tokens"]
        return task, lambda length: max(1, length * own // window)

    def beside(self, found: Result) -> Result | None:
        """Return a result of the paper for LLaDA-8B on GSM8K, unless this model is another one of the paper's."""
        return found if self.name == LLADA else None


def plan_main(subject: Subject) -> Table:
    rows: list[Row] = []
    for benchmark in paper.NAMES:
        theirs, task = paper.MAIN[subject.name][benchmark], subject.task(benchmark)
        if task is not None:
            setting, full = subject.name_of(task, benchmark), Decoding(task, "full")
            rows.append(Row(setting, "full", full, full, Result(theirs.full, 1.0)))
            found = Result(theirs.prophet, theirs.speedup)
            rows.append(Row(setting, "Prophet", Decoding(task, "prophet"), full, found))
    return Table("main", "Main results", tuple(rows), (CONFIGURATIONS, UNSTATED))


def plan_steps(subject: Subject) -> Table:
    rows: list[Row] = []
    for window, budgets in paper.BUDGETS.items():
        task, scale = subject.ablation(window)
        full, setting = Decoding(task, "full"), f"window {scale(window)}"
        for steps, accuracy in budgets.items():
            decoding = full if steps == window else Decoding(task, f"full steps={scale(steps)}")
            name = "full" if steps == window else f"{scale(steps)} steps"
            rows.append(Row(setting, name, decoding, full, subject.beside(Result(accuracy, steps=steps))))
        prophet = Decoding(task, "prophet")
        rows.append(Row(setting, "Prophet", prophet, full, subject.beside(paper.PROPHET[window])))
    return Table("steps", f"Step budgets, {subject.gsm8k}", tuple(rows))


def plan_remasking(subject: Subject) -> Table:
    task, _ = subject.ablation(128)
    scores = {"random": " score=random", "low-confidence": "", "top-k margin": " score=margin"}
    rows = [
        row for name, pair in paper.REMASKING.items() for row in _plan_pair(subject, name, task, scores[name], pair)
    ]
    return Table("remasking", f"Remasking strategies, {subject.gsm8k}", tuple(rows), (WINDOW_128,))


def plan_blocks(subject: Subject) -> Table:
    task, scale = subject.ablation(128)
    own = benchmark_named(task).options["block_length"]
    rows = [
        row
        for length, pair in paper.BLOCKS.items()
        for row in _plan_pair(
            subject,
            f"block {scale(length)}",
            task,
            "" if scale(length) == own else f" block_length={scale(length)}",
            pair,
        )
    ]
    return Table("blocks", f"Block lengths, {subject.gsm8k}", tuple(rows), (WINDOW_128,))


def _plan_pair(subject: Subject, setting: str, task: str, settings: str, pair: paper.Pair) -> list[Row]:
    full, prophet = Decoding(task, f"full{settings}"), Decoding(task, f"prophet{settings}")
    return [
        Row(setting, "baseline", full, full, subject.beside(Result(pair.baseline))),
        Row(setting, "Prophet", prophet, full, subject.beside(Result(pair.prophet))),
    ]


def plan_schedules(subject: Subject) -> Table:
    task, _ = subject.ablation(256)
    full = Decoding(task, "full")
    rows = [Row(task, "full", full, full, subject.beside(Result(paper.BUDGETS[256][256])))]
    for name, found in paper.SCHEDULES.items():
        recipe = "prophet" if name == "staged" else f"prophet-{name}"
        rows.append(Row(task, name, Decoding(task, recipe), full, subject.beside(found)))
    return Table("schedules", f"Threshold schedules, {subject.gsm8k}", tuple(rows))


def plan_fast_dllm(subject: Subject) -> Table:
    task, _ = subject.ablation(256)
    tau = benchmark_named(task).thresholds
    own = f" stop.tau.high={tau.high:g} stop.tau.mid={tau.mid:g} stop.tau.low={tau.low:g}"
    recipes = {
        "baseline": "full",
        "parallel transfer alone": "threshold",
        "Fast-dLLM": "fast-dllm",
        "Prophet": "prophet",
        "Fast-dLLM + Prophet": f"fast-dllm-prophet{own}",
    }
    full = Decoding(task, "full")
    rows = tuple(
        Row(task, name, Decoding(task, recipe), full, subject.beside(found) if found else None)
        for name, recipe in recipes.items()
        for found in (paper.FAST_DLLM.get(name),)
    )
    return Table(
        "fast-dllm", f"Prophet and Fast-dLLM, {subject.gsm8k} (speedup of time)", rows, (TIMES, FAST_DLLM), clock=True
    )


def plan_sdtt(subject: Subject) -> Table:
    task, scale = subject.ablation(256)
    full, half = Decoding(task, "full"), f"steps={scale(128)}"
    decodings = {"teacher": full, "teacher, half the steps": Decoding(task, f"full {half}")}
    if subject.student:
        decodings["SDTT"] = Decoding(task, f"full {half}", student=True)
    decodings["Prophet"] = Decoding(task, "prophet")
    if subject.student:
        decodings["SDTT + Prophet"] = Decoding(task, f"prophet {half}", student=True)
    theirs = {**paper.SDTT, "teacher, half the steps": Result(paper.BUDGETS[256][128], 2.0, 128)}
    rows = tuple(Row(task, name, one, full, subject.beside(theirs[name])) for name, one in decodings.items())
    notes = (HALF,) if subject.student else (HALF, NO_STUDENT)
    return Table("sdtt", f"Prophet and SDTT, {subject.gsm8k}", rows, notes)


TABLES: dict[str, Callable[[Subject], Table]] = {
    "main": plan_main,
    "steps": plan_steps,
    "remasking": plan_remasking,
    "blocks": plan_blocks,
    "schedules": plan_schedules,
    "fast-dllm": plan_fast_dllm,
    "sdtt": plan_sdtt,
}


class Cost(NamedTuple):
    """The forward passes of one decoding, counted per problem: a batch of n problems shares its passes."""

    problems: int
    most: int  # if nothing stops early
    expected: int  # if the paper's speedups hold


class Obstacle(NamedTuple):
    label: str  # for the tables
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    subject: Subject
    tables: tuple[Table, ...]
    problems: Mapping[str, int]  # by task
    skipped: Mapping[str, Obstacle]  # tasks that cannot be decoded here

    @property
    def decodings(self) -> list[Decoding]:
        """All that will be decoded, each once."""
        return self.runnable(one for table in self.tables for one in table.decodings)

    def runnable(self, decodings: Iterable[Decoding]) -> list[Decoding]:
        return [one for one in dict.fromkeys(decodings) if one.task not in self.skipped]

    def cost(self, decoding: Decoding) -> Cost:
        benchmark, count = benchmark_named(decoding.task), self.problems[decoding.task]
        window = benchmark.options["max_new_tokens"]
        budget = TaskRecipe.of(decoding.recipe, benchmark).recipe.steps or window
        speedups = [
            row.paper.speedup
            for table in self.tables
            for row in table.rows
            if row.decoding == decoding and row.paper and row.paper.speedup
        ]
        expected = min(budget, window / speedups[0]) if speedups else budget
        return Cost(count, count * budget, round(count * expected))


def make_plan(
    subject: Subject,
    tables: Sequence[str] = tuple(TABLES),
    tasks: Sequence[str] = (),
    *,
    data: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    allow_code_execution: bool = False,
    sandbox: str | None = None,
) -> Plan:
    """Plan the tables (by default all tasks) and read their data. Raises RequestError if nothing can be decoded."""
    if wrong := [name for name in tables if name not in TABLES]:
        raise RequestError(unknown("table", wrong[0], TABLES))
    known = list(dict.fromkeys(_family(row.decoding.task) for make in TABLES.values() for row in make(subject).rows))
    if wrong := [name for name in tasks if name not in known]:
        raise RequestError(unknown("task", wrong[0], known))
    chosen = [_choose_rows(TABLES[name](subject), tasks or known, subject) for name in dict.fromkeys(tables)]
    problems: dict[str, int] = {}
    skipped: dict[str, Obstacle] = {}
    for task in dict.fromkeys(row.decoding.task for table in chosen for row in table.rows):
        benchmark = benchmark_named(task, allow_code_execution, sandbox)
        try:
            examples = benchmark.examples(source_of(task, data), limit, seed)
            benchmark.grade(examples[0], None)
            problems[task] = len(examples)
        except PermissionNeededError:
            skipped[task] = Obstacle("not allowed", str(PermissionNeededError("--allow-code-execution")))
        except RequestError as error:
            if task in BUNDLED or BENCHMARKS[PUBLIC[task]].source.find(data) is not None:
                raise  # there are data, but something else is wrong
            skipped[task] = Obstacle("no data", str(error))
    if not problems:
        reasons = "; ".join(f"{task}: {one.reason}" for task, one in skipped.items())
        raise RequestError(f"there is nothing to decode. {reasons or 'No row of these tables uses these tasks.'}")
    return Plan(subject, tuple(table for table in chosen if table.rows), problems, skipped)


def source_of(task: str, data: Path | None) -> Path | None:
    """Return the data folder of a public benchmark; None for bundled tasks, which generate their problems."""
    return None if task in BUNDLED else data


def _choose_rows(table: Table, tasks: Sequence[str], subject: Subject) -> Table:
    """Return the table with the rows of these tasks and the notes that hold for this model."""
    rows = tuple(row for row in table.rows if _family(row.decoding.task) in tasks)
    notes = [note for note in table.notes if not (subject.counterparts and note in ABOUT_THE_PAPER)]
    if subject.name == DREAM and table.name != "main":
        notes.insert(0, ONE_MODEL)
    return replace(table, rows=rows, notes=tuple(notes))


def _family(task: str) -> str:
    """Return the task in its main window: gsm8k for gsm8k_128."""
    return task.partition("_")[0] if task in {"gsm8k_128", "word_96"} else task
