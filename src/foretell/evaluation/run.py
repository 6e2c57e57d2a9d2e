"""Evaluation: every example of a benchmark under every recipe, written down as it comes, resumable at any point."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from foretell.engine.certificate import Certificate, stop_of
from foretell.engine.engine import Completion, Engine, load
from foretell.engine.folder import folder_of, layouts_of
from foretell.engine.options import Options, model_defaults
from foretell.engine.trace_files import save_traces
from foretell.errors import ForetellError, PermissionNeededError, RequestError, VocabularyError, within
from foretell.evaluation.benchmark import Benchmark, Example, strict
from foretell.evaluation.benchmarks.bundled import BUNDLED
from foretell.evaluation.benchmarks.code import Code
from foretell.evaluation.benchmarks.prompts import LABELLED, Prompts
from foretell.evaluation.catalogue import FREE, PUBLIC, benchmark_named
from foretell.evaluation.manifest import FILE, examples_hash, resized, settle, settled, versions
from foretell.evaluation.records import Record, alone, appending, part, read_records
from foretell.evaluation.task_recipe import TaskRecipe

BATCHES = 8  # the most batches in a chunk, after which the next recipe has its turn
LONGEST_REASON = 200  # characters
TURNS = 4  # chunks that every worker has at least, as far as there are batches for it

Watch = Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What to evaluate. Two equal ones give equal results, times aside."""

    model: str  # a checkpoint folder, or a bundled model by its name
    task: str
    recipes: tuple[str, ...]  # the first one is what the others are compared with
    out: Path
    limit: int | None = None
    seed: int = 0
    batch_size: int = 8
    source: Path | None = None  # where the benchmark's data are
    trace: bool = False
    workers: int = 1  # processes, of one thread each if there is more than one
    threads: int | None = None  # of torch; by default one for a small model
    device: str = "cpu"
    dtype: str | None = None
    compile: bool = False
    quantize: str | None = None  # "int8"
    allow_code_execution: bool = False
    strict: bool = False  # no answer where the text states none
    options: Mapping[str, Any] = field(default_factory=dict)  # of `generate`, over the benchmark's own

    def __post_init__(self) -> None:
        within("batch_size", self.batch_size, 1, error=RequestError)
        within("workers", self.workers, 1, error=RequestError)
        if self.limit is not None:
            within("limit", self.limit, 1, error=RequestError)
        if not self.recipes:
            raise RequestError("an evaluation needs at least one recipe")
        if len(set(self.recipes)) < len(self.recipes):
            raise RequestError(f"each recipe can be given once, got {', '.join(self.recipes)}")


@dataclass(frozen=True, slots=True)
class PreparedEvaluation:
    """An evaluation made ready: its model, its examples, its ways to decode them."""

    what: Evaluation
    engine: Engine
    benchmark: Benchmark
    examples: Sequence[Example]
    ways: tuple[TaskRecipe, ...]

    @classmethod
    def prepare(cls, what: Evaluation, engine: Engine | None = None) -> PreparedEvaluation:
        """Everything that can be wrong is found here, but for what the folder holds: `check` looks at that.

        `engine` is the model, if it is loaded already.
        """
        benchmark = benchmark_named(what.task, what.allow_code_execution)
        what = _with_layout(what)
        benchmark = strict(benchmark) if what.strict else benchmark
        ways = tuple(TaskRecipe.of(text, benchmark, what.options) for text in what.recipes)
        if "stop" in what.options and not any("stop" in way.options for way in ways):
            raise RequestError(f"none of {', '.join(what.recipes)} stops early, so there is no rule to replace")
        examples = benchmark.examples(what.source, what.limit, what.seed)
        if not examples:
            raise RequestError(f"{what.task} has no examples")
        if len({one.id for one in examples}) < len(examples):
            raise RequestError(f"{what.task}: two examples have the same id")
        try:
            benchmark.grade(examples[0], None)
        except PermissionNeededError:
            raise PermissionNeededError("allow_code_execution=True") from None
        bench = cls(what, engine or _loaded(what), benchmark, examples, ways)
        try:
            for way in ways:
                bench.engine.request(examples[0].prompt, way.template(bench.engine, examples[0], what.seed))
        except VocabularyError as error:
            if what.task in PUBLIC or what.task in FREE:
                raise _unreadable(what, bench.engine) from error
            raise
        return bench

    @property
    def total(self) -> int:
        return len(self.examples) * len(self.ways)

    @property
    def unlabelled(self) -> int:
        """The number of examples without a right answer."""
        return sum(not one.data.get(LABELLED, True) for one in self.examples)

    @property
    def graded(self) -> bool:
        """Whether any example has a right answer."""
        return self.unlabelled < len(self.examples)

    def notes(self) -> list[str]:
        """Remarks on how the recipes are going to be read."""
        orders = (way.template(self.engine, self.examples[0], 0) for way in self.ways)
        remarks = [note for order in orders for note in order.notes]
        if self.unlabelled:
            remarks.append(
                f'{self.unlabelled} of {len(self.examples)} prompts have no "answer" and count as wrong; "agree" says '
                "how often recipes give the same one"
            )
        rule = stop_of(self.what.options["stop"]) if "stop" in self.what.options else None
        if isinstance(rule, Certificate) and rule.task != self.what.task:
            remarks.append(
                f"this stopping rule was certified on {rule.task or 'a set of prompts'}, not {self.what.task}"
            )
        return list(dict.fromkeys(remarks))

    def check(self) -> None:
        """Raise an error if the folder holds another evaluation or an example cannot be decoded.

        A run looks at the folder again, under its lock.
        """
        for example in self.examples:
            try:
                self.engine.request(example.prompt, self.ways[0].template(self.engine, example, self.what.seed))
            except ForetellError as error:
                raise RequestError(f"{self.what.task}, example {example.id}: {error}") from error
        if (self.what.out / FILE).exists():  # our own holds the model's hash, for which all of it is read
            settled(self.what.out, self.manifest(), self.extends)

    def extends(self, kept: Mapping[str, Any]) -> bool:
        """Whether a folder's manifest is of this evaluation, with these examples or some of them.

        Some are the first of these. Where there is no limit now, they are in another order, and are drawn again.
        """
        if not resized(kept, self.manifest()) or kept["examples"] > len(self.examples):
            return False
        there: str = kept["examples_sha256"]
        if examples_hash(self.examples[: kept["examples"]]) == there:
            return True
        return examples_hash(self.benchmark.examples(self.what.source, kept["limit"], self.what.seed)) == there

    def manifest(self) -> dict[str, Any]:
        """What is decoded, as it is read back from a file."""
        what, first = self.what, self.examples[0]
        recipes = {
            way.name: {
                "recipe": str(way.template(self.engine, first, 0).recipe),  # with the stopping rule in it
                "options": {name: value for name, value in way.options.items() if name != "stop"},
            }
            for way in self.ways
        }
        said = {
            "model": what.model,
            "model_sha256": self.engine.fingerprint,
            "task": what.task,
            "recipes": recipes,
            "order": list(recipes),
            "seed": what.seed,
            "limit": what.limit,
            "examples": len(self.examples),
            "examples_sha256": examples_hash(self.examples),
            "batch_size": what.batch_size,
            "trace": what.trace,
            "device": what.device,
            "dtype": what.dtype,
            "compile": what.compile or None,  # as if unsaid, for folders from before there was a choice
            "strict": what.strict or None,
            "quantize": what.quantize,
            "workers": what.workers,
            "versions": versions(),
        }
        read_back: dict[str, Any] = json.loads(json.dumps(said))
        return read_back


def _with_layout(what: Evaluation) -> Evaluation:
    """Replace a layout's name by what the model's folder says of it; prompts take the default layout if none is named.

    Options that were given by themselves override those of the layout.
    """
    options = dict(what.options)
    name = options.pop("layout", None)
    if name is None and what.task != Prompts.name:
        return what
    described = model_defaults(Options(layout=name), layouts_of(folder_of(what.model)))
    return replace(what, options={**described, **options})


def _unreadable(what: Evaluation, engine: Engine) -> VocabularyError:
    """The error for a benchmark whose words the model's vocabulary lacks, with the tasks that it can read."""
    known = [name for name, task in BUNDLED.items() if _is_readable(task, engine)]
    size = engine.codec.tokenizer.get_vocab_size()
    return VocabularyError(
        f"{what.model} cannot read {what.task}: its vocabulary of {size} tokens lacks words of this benchmark; tasks "
        f"that it can do: {', '.join([*known, Prompts.name])}"
    )


def _is_readable(benchmark: Benchmark, engine: Engine) -> bool:
    (example,) = benchmark.examples(None, 1, 0)
    try:
        engine.request(example.prompt, engine.template(**benchmark.options))
    except RequestError:
        return False
    return True


def _loaded(what: Evaluation) -> Engine:
    engine = load(what.model, what.device, what.dtype, compile=what.compile, quantize=what.quantize)
    engine.use_threads(1 if what.workers > 1 else what.threads)
    engine.layouts = {}  # a benchmark lays its windows out
    return engine


def evaluate(what: Evaluation, watch: Watch | None = None) -> list[Record]:
    """Run what is not there yet, and return everything; `watch` sees each new result."""
    return run(PreparedEvaluation.prepare(what), watch)


def run(bench: PreparedEvaluation, watch: Watch | None = None) -> list[Record]:
    from foretell.evaluation.workers import share_out  # noqa: PLC0415  it imports this module

    what, seen = bench.what, watch or (lambda _: None)
    what.out.mkdir(parents=True, exist_ok=True)
    with alone(what.out):
        settle(what.out, bench.manifest(), bench.extends)
        if len(read_records(what.out)) < bench.total:  # processes take seconds to start
            if what.workers > 1 and len(bench.examples) > what.batch_size:
                share_out(what, seen)
            else:
                work(replace(bench, what=replace(what, workers=1)), 0, seen)
    return read_records(what.out)


def work(bench: PreparedEvaluation, worker: int, watch: Watch) -> None:
    """Do a worker's share: every chunk whose turn it is, each under every recipe in turn.

    Recipes take turns, so that a machine that gets slower or a run that is cut short treats them alike.
    """
    what = bench.what
    done = {record.key for record in read_records(what.out)}
    size = chunk_size(len(bench.examples), what.batch_size, what.workers)
    with appending(part(what.out, worker)) as writer:
        for chunk, start in enumerate(range(0, len(bench.examples), size)):
            if chunk % what.workers != worker:
                continue
            for index, way in enumerate(bench.ways):
                span = range(start, min(start + size, len(bench.examples)))
                pending = [i for i in span if (way.name, bench.examples[i].id) not in done]
                for records in _chunk(bench, index, pending):
                    writer.add(records)
                    for record in records:
                        watch(record)


def chunk_size(examples: int, batch_size: int, workers: int) -> int:
    """Whole batches, and few enough of them that no worker waits long for the others at the end."""
    batches = -(-examples // batch_size)
    return batch_size * min(BATCHES, -(-batches // (workers * TURNS)))


def _chunk(bench: PreparedEvaluation, index: int, pending: Sequence[int]) -> Iterator[list[Record]]:
    """The results of some examples under one recipe, one by one; with traces all together, once these are saved."""
    if not pending:
        return
    what, way = bench.what, bench.ways[index]
    # Rows of a batch are padded to the longest, so prompts of like length go together.
    examples = sorted((bench.examples[i] for i in pending), key=lambda one: len(str(one.prompt)))
    results = _results(bench, way, examples)
    if not what.trace:
        yield from ([record] for _, record, _ in results)
        return
    ordered = sorted(results, key=lambda result: result[0])
    # Named after the first that is written down: once any result names this file, none of a later run is named so.
    file = Path("traces") / f"{index:02d}-{blake2b(ordered[0][1].id.encode(), digest_size=8).hexdigest()}.npz"
    (what.out / file.parent).mkdir(exist_ok=True)
    save_traces(what.out / file, [done.trace for _, _, done in ordered if done.trace])
    yield [replace(record, trace=str(file), trace_index=i) for i, (_, record, _) in enumerate(ordered)]


def _results(
    bench: PreparedEvaluation, way: TaskRecipe, examples: Sequence[Example]
) -> Iterator[tuple[int, Record, Completion]]:
    asked = [(one.prompt, way.template(bench.engine, one, bench.what.seed)) for one in examples]
    started = time.perf_counter()
    for place, done in bench.engine.generate_iter(asked, trace=bench.what.trace, batch_size=bench.what.batch_size):
        wall = time.perf_counter() - started
        yield place, _record(bench.benchmark, way, examples[place], done, wall), done
        started = time.perf_counter()  # grading is not decoding


def _record(benchmark: Benchmark, way: TaskRecipe, example: Example, completion: Completion, wall: float) -> Record:
    return Record(
        recipe=way.name,
        id=example.id,
        text=completion.text,
        gold=example.gold,
        steps=completion.steps,
        budget=completion.budget,
        forwards=completion.forwards,
        response_tokens=completion.response_tokens,
        columns_needed=completion.columns_needed,
        exit=completion.exit,
        value=completion.value,
        measure=completion.measure,
        finish=completion.finish,
        seconds=round(completion.seconds, 6),
        wall=round(wall, 6),
        columns_computed=completion.columns_computed,
        **grade(benchmark, example, completion),
    )


def grade(benchmark: Benchmark, example: Example, completion: Completion) -> dict[str, Any]:
    """The fields of a record on the answer: what it is, whether it is right, whether a fallback, why it failed."""
    answer = benchmark.extract(completion)
    fallback = answer != strict(benchmark).extract(completion)
    if not isinstance(benchmark, Code):
        return {"answer": answer, "correct": bool(benchmark.grade(example, answer)), "fallback": fallback}
    (verdict,) = benchmark.verdicts([example], [answer])
    reason = None if verdict.passed else f"{verdict.status}: {verdict.reason}"[:LONGEST_REASON]
    return {"answer": answer, "correct": verdict.passed, "fallback": fallback, "reason": reason}
