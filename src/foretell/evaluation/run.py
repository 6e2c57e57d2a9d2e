"""Run an evaluation: decode every example with every recipe, write each result at once, resume after interrupts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

from foretell.engine.certificate import WINDOW_OPTIONS, Certificate, recipe_of, stop_of
from foretell.engine.copies import Decoding, EngineCopy
from foretell.engine.engine import MOST_THREADS, Completion, Engine, load
from foretell.engine.folder import folder_of, layouts_of
from foretell.engine.options import NEEDS_FILE, Options, RequestTemplate, model_defaults
from foretell.engine.prompt_kinds import Prompt
from foretell.engine.trace import Trace
from foretell.engine.trace_files import save_traces
from foretell.errors import ForetellError, PermissionNeededError, RequestError, VocabularyError, whole
from foretell.evaluation.benchmark import Benchmark, Example, make_independent, make_strict
from foretell.evaluation.benchmarks.bundled import BUNDLED
from foretell.evaluation.benchmarks.code import Code
from foretell.evaluation.benchmarks.fill import Fill
from foretell.evaluation.benchmarks.prompts import LABELLED, WHERE, Prompts
from foretell.evaluation.catalogue import FREE, PUBLIC, benchmark_named
from foretell.evaluation.devices import device_of, list_devices
from foretell.evaluation.manifest import Extends, examples_hash, has_manifest, resized, settle, settled, versions
from foretell.evaluation.records import Record, ResultReader, Writer, alone, appending, part, read_records
from foretell.evaluation.task_recipe import TaskRecipe
from foretell.models.load import Progress
from foretell.storage import make_folder
from foretell.workers import Pool, chunk_size, run_workers

LONGEST_REASON = 200  # characters
RULE = ("stop", "on_mismatch")  # options that decide the stopping rule, which is a part of the recipe
MOST_WORKERS = 1024

Watch = Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model, a task, recipes and settings to evaluate. Equal evaluations give equal results, except for times."""

    model: str  # a checkpoint folder, the name of a bundled model, or a hub id (owner/name, owner/name@revision)
    task: str
    recipes: tuple[str, ...]  # the others are compared with the first one
    out: Path
    limit: int | None = None
    seed: int = 0
    batch_size: int = 8
    source: Path | None = None  # file or folder of the benchmark's data
    trace: bool = False
    workers: int = 1  # processes (one torch thread each if more than one); at least one per device
    threads: int | None = None  # torch threads (default: 1 for small models)
    device: str = "auto"  # or several: "cuda:0,cuda:1", or "all"; worker k decodes on the k-th
    dtype: str | None = "auto"
    compile: bool = False
    quantize: str | None = None  # "int8"
    packed: bool | None = None  # matrices packed for the CPU (default: where that is faster); tokens do not change
    allow_code_execution: bool = False
    sandbox: str | None = None  # level at which generated programs run; default: the strongest, but not "limits"
    strict: bool = False  # count only answers that the text states
    independent: bool = False  # draw generated problems independently of each other; then they may repeat
    options: Mapping[str, Any] = field(default_factory=dict)  # options of `generate`; they override the benchmark's
    pool: Pool | None = field(default=None, compare=False)  # workers on other machines, which decode instead

    def __post_init__(self) -> None:
        whole("batch_size", self.batch_size, 1, error=RequestError)
        whole("workers", self.workers, 1, MOST_WORKERS, RequestError)
        whole("seed", self.seed, 0, 2**63 - 1, RequestError)
        if self.limit is not None:
            whole("limit", self.limit, 1, error=RequestError)
        if self.threads is not None:
            whole("threads", self.threads, 1, MOST_THREADS, RequestError)
        if not self.recipes:
            raise RequestError("an evaluation needs at least one recipe")
        if len(set(self.recipes)) < len(self.recipes):
            raise RequestError(f"each recipe can be given once, got {', '.join(self.recipes)}")
        if self.pool is not None and self.workers > 1:
            raise RequestError(f"workers={self.workers} are processes of this machine, and a pool has its own workers")
        if self.pool is not None and len(list_devices(self.device)) > 1:
            raise RequestError(f"each worker of a pool has one device, got {self.device!r}")


@dataclass(frozen=True, slots=True)
class PreparedEvaluation:
    """An evaluation with its model loaded, its examples read and its recipes parsed."""

    evaluation: Evaluation
    engine: Engine
    benchmark: Benchmark
    examples: Sequence[Example]
    recipes: tuple[TaskRecipe, ...]

    @classmethod
    def prepare(
        cls, evaluation: Evaluation, engine: Engine | None = None, progress: Progress | None = None
    ) -> PreparedEvaluation:
        """Load and validate everything except the results folder, which `check` validates.

        Pass `engine` if the model is loaded already; `progress` is that of `load`.
        """
        benchmark = benchmark_named(evaluation.task, evaluation.allow_code_execution, evaluation.sandbox)
        # Other mistakes are found before a model is downloaded.
        known = None if engine is None else engine.codec.folder
        find_folder = cache(lambda: known or folder_of(evaluation.model))
        evaluation = _with_layout(evaluation, find_folder)
        devices = list_devices(evaluation.device)
        evaluation = replace(evaluation, workers=max(evaluation.workers, len(devices)))
        benchmark = make_strict(benchmark) if evaluation.strict else benchmark
        benchmark = make_independent(benchmark) if evaluation.independent else benchmark
        recipes = tuple(TaskRecipe.of(text, benchmark, evaluation.options) for text in evaluation.recipes)
        if "stop" in evaluation.options and not any("stop" in recipe.options for recipe in recipes):
            raise RequestError(f"none of {', '.join(evaluation.recipes)} stops early, so there is no rule to replace")
        asked = evaluation.options.get("on_mismatch", "warn")
        if asked != "warn" and not any("on_mismatch" in recipe.options for recipe in recipes):
            raise RequestError(NEEDS_FILE.format(asked))
        if len({recipe.name for recipe in recipes}) < len(recipes):
            raise RequestError(f"each recipe needs its own name, got {', '.join(recipe.name for recipe in recipes)}")
        examples = benchmark.examples(evaluation.source, evaluation.limit, evaluation.seed)
        if not examples:
            raise RequestError(f"{evaluation.task} has no examples")
        if len({one.id for one in examples}) < len(examples):
            raise RequestError(f"{evaluation.task}: two examples have the same id")
        try:
            benchmark.grade(examples[0], None)
        except PermissionNeededError:
            raise PermissionNeededError("allow_code_execution=True") from None
        engine = engine or _load_engine(evaluation, find_folder(), progress)
        prepared = cls(evaluation, engine, benchmark, examples, recipes)
        try:
            for recipe in recipes:
                template = recipe.template(prepared.engine, examples[0], evaluation.seed)
                with prepared._naming(examples[0]):
                    prepared.engine.request(examples[0].prompt, template)
        except VocabularyError as error:
            if evaluation.task in PUBLIC or evaluation.task in FREE:
                raise _vocabulary_error(evaluation, prepared.engine) from error
            raise
        return prepared

    @property
    def total(self) -> int:
        return len(self.examples) * len(self.recipes)

    @property
    def unlabelled(self) -> int:
        """The number of examples without a reference answer."""
        return sum(not one.data.get(LABELLED, True) for one in self.examples)

    @property
    def graded(self) -> bool:
        """Whether any example has a reference answer."""
        return self.unlabelled < len(self.examples)

    def select(self, wanted: Collection[str] | None) -> PreparedEvaluation:
        """Return the same evaluation of the examples with these ids only (None: of all)."""
        if wanted is None:
            return self
        return replace(self, examples=[one for one in self.examples if one.id in wanted])

    def notes(self) -> list[str]:
        """Return remarks for the user on how the recipes and prompts are interpreted."""
        templates = (recipe.template(self.engine, self.examples[0], 0) for recipe in self.recipes)
        remarks = [note for template in templates for note in template.notes]
        if self.unlabelled:
            remarks.append(
                f'{self.unlabelled} of {len(self.examples)} prompts have no "answer" and count as wrong; "agreement" '
                "is the share of answers that equal the first recipe's"
            )
        rule = stop_of(self.evaluation.options["stop"]) if "stop" in self.evaluation.options else None
        certificates: dict[str, object] = {recipe.name: recipe.certificate for recipe in self.recipes}
        for name, certificate in {"this stopping rule": rule, **certificates}.items():
            if isinstance(certificate, Certificate) and (certificate.task or Prompts.name) != self.evaluation.task:
                where = certificate.task or "a set of prompts"
                remarks.append(f"{name} was certified on {where}, not {self.evaluation.task}")
        return list(dict.fromkeys(remarks))

    def check(self, extends: Extends | None = None) -> None:
        """Raise RequestError if the folder holds another evaluation or an example cannot be decoded.

        A run checks the folder again while it holds the folder's lock. `extends` replaces the method of this name.
        """
        evaluation = self.evaluation
        checked = self.recipes if evaluation.options.get("on_mismatch") == "fail" else self.recipes[:1]
        for example, recipe in product(self.examples, checked):
            with self._naming(example):
                self.engine.request(example.prompt, recipe.template(self.engine, example, evaluation.seed))
        if has_manifest(evaluation.out):  # otherwise skip hashing the whole model for the manifest
            settled(evaluation.out, self.manifest(), extends or self.extends)

    @contextmanager
    def _naming(self, example: Example) -> Iterator[None]:
        """Add the name of the example to errors."""
        try:
            yield
        except ForetellError as error:
            where = example.data.get(WHERE) or self.evaluation.task
            raise type(error)(f"{where}, example {example.id}: {error}") from error

    def extends(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored manifest describes this evaluation with the same examples or a subset of them.

        A subset is either the first of these examples or, if there is no limit now, those that its limit selects.
        """
        if not resized(stored, self.manifest()) or stored["examples"] > len(self.examples):
            return False
        digest: str = stored["examples_sha256"]
        if examples_hash(self.examples[: stored["examples"]]) == digest:
            return True
        selected = self.benchmark.examples(self.evaluation.source, stored["limit"], self.evaluation.seed)
        return examples_hash(selected) == digest

    def manifest(self) -> dict[str, Any]:
        """Return the manifest of this evaluation, as it would be read from its file."""
        evaluation, first = self.evaluation, self.examples[0]
        recipes = {
            recipe.name: {
                "recipe": str(recipe.template(self.engine, first, 0).recipe),  # includes the stopping rule
                "options": {name: value for name, value in recipe.options.items() if name not in RULE},
            }
            for recipe in self.recipes
        }
        manifest = {
            "model": evaluation.model,
            "model_sha256": self.engine.fingerprint,
            "task": evaluation.task,
            "recipes": recipes,
            "order": list(recipes),
            "seed": evaluation.seed,
            "limit": evaluation.limit,
            "examples": len(self.examples),
            "examples_sha256": examples_hash(self.examples),
            "batch_size": evaluation.batch_size,
            "trace": evaluation.trace,
            "device": self.engine.device.type,
            "dtype": self.engine.dtype and self.engine.dtype.partition("+")[0],
            "compile": evaluation.compile or None,  # null if not used, as in folders of older versions
            "strict": evaluation.strict or None,
            "independent": evaluation.independent or None,
            "quantize": evaluation.quantize,
            "workers": evaluation.workers,
            "versions": versions(),
        }
        read_back: dict[str, Any] = json.loads(json.dumps(manifest))
        return read_back


def _with_layout(evaluation: Evaluation, find_folder: Callable[[], Path]) -> Evaluation:
    """Replace the name of a layout by its options from the model's folder; prompts have a default layout.

    Options that were given explicitly override those of the layout. If none describes the window of prompts, it is that
    of the first recipe from a file. A text with masks has no layout, and refuses its name.
    """
    options = dict(evaluation.options)
    if evaluation.task == Fill.name:
        return evaluation
    certified = _certified_window(evaluation)
    name = options.pop("layout", certified.pop("layout", None))
    if name is None and evaluation.task != Prompts.name:
        return evaluation
    described = dict(model_defaults(Options(layout=name), layouts_of(find_folder())))
    if certified:
        described = {key: value for key, value in described.items() if key not in WINDOW_OPTIONS} | certified
    return replace(evaluation, options={**described, **options})


def _certified_window(evaluation: Evaluation) -> dict[str, Any]:
    """Return the window of the first recipe from a file, if prompts are decoded and no option describes theirs."""
    if evaluation.task != Prompts.name or any(name in evaluation.options for name in WINDOW_OPTIONS):
        return {}
    files = (one for one in map(recipe_of, evaluation.recipes) if isinstance(one, Certificate))
    return next((dict(one.options) for one in files), {})


def _vocabulary_error(evaluation: Evaluation, engine: Engine) -> VocabularyError:
    """Return the error for a benchmark whose words the vocabulary lacks; it lists the tasks that the model can read."""
    known = [name for name, task in BUNDLED.items() if _is_readable(task, engine)]
    size = engine.codec.tokenizer.get_vocab_size()
    return VocabularyError(
        f"{evaluation.model} cannot read {evaluation.task}: its vocabulary of {size} tokens lacks words of this "
        f"benchmark; tasks that it can do: {', '.join([*known, Prompts.name])}"
    )


def _is_readable(benchmark: Benchmark, engine: Engine) -> bool:
    (example,) = benchmark.examples(None, 1, 0)
    try:
        engine.request(example.prompt, engine.template(**benchmark.options))
    except RequestError:
        return False
    return True


def _load_engine(evaluation: Evaluation, folder: Path, progress: Progress | None) -> Engine:
    engine = load(
        folder,
        device_of(evaluation.device, 0),
        evaluation.dtype,
        compile=evaluation.compile,
        quantize=evaluation.quantize,
        packed=evaluation.packed,
        progress=progress,
    )
    engine.use_threads(1 if evaluation.workers > 1 else evaluation.threads)
    engine.layouts = {}  # a benchmark has its own layout
    return engine


def evaluate(evaluation: Evaluation, watch: Watch | None = None) -> list[Record]:
    """Decode the examples that have no result yet and return all results; `watch` is called with each new one."""
    prepared = PreparedEvaluation.prepare(evaluation)
    prepared.check()
    return run(prepared, watch)


def run(
    prepared: PreparedEvaluation, watch: Watch | None = None, wanted: Collection[str] | None = None
) -> list[Record]:
    """Run a prepared evaluation as `evaluate` does; `wanted` are the ids of the examples to decode (default: all)."""
    evaluation, watch = prepared.evaluation, watch or (lambda _: None)
    make_folder(evaluation.out)
    with alone(evaluation.out):
        settle(evaluation.out, prepared.manifest(), prepared.extends)
        done = {record.key for record in read_records(evaluation.out)}
        chosen = prepared.select(wanted)
        missing = {one.id for one in chosen.examples for way in chosen.recipes if (way.name, one.id) not in done}
        if missing:  # starting processes takes seconds
            if evaluation.pool is not None:
                _run_on_pool(chosen, evaluation.pool, done, watch)
            elif evaluation.workers > 1 and len(missing) > evaluation.batch_size:
                _run_in_processes(chosen, watch, wanted)
            else:
                work(replace(chosen, evaluation=replace(evaluation, workers=1)), 0, watch)
    return read_records(evaluation.out)


def _run_on_pool(prepared: PreparedEvaluation, pool: Pool, done: Collection[tuple[str, str]], watch: Watch) -> None:
    """Decode on the workers of a pool. Only this process grades and writes, so that no result is written twice."""
    evaluation, engine = prepared.evaluation, prepared.engine
    opener = EngineCopy.of(engine, evaluation.packed)
    size = chunk_size(len(prepared.examples), evaluation.batch_size, pool.size(opener.needs))
    chunks = list(_chunks(prepared, size, done))

    def task(number: int) -> Decoding:
        index, examples = chunks[number]
        return Decoding(_requests(prepared, prepared.recipes[index], examples), evaluation.batch_size, evaluation.trace)

    with engine.offloaded(), appending(part(evaluation.out, 0)) as writer:
        for number, found in pool.run(opener, len(chunks), task):
            index, examples = chunks[number]
            recipe = prepared.recipes[index]
            results = (
                _result(prepared, recipe, examples, place, one, wall)
                for place, one, wall in found
                if isinstance(one, Completion)  # a failure has been raised
            )
            _write(prepared, index, results, writer, watch)


def _run_in_processes(prepared: PreparedEvaluation, watch: Watch, wanted: Collection[str] | None) -> None:
    evaluation, count = prepared.evaluation, len(prepared.examples)
    chunks = -(-count // chunk_size(count, evaluation.batch_size, evaluation.workers))
    reader = ResultReader(evaluation.out, watch)
    reader.skip()
    # All workers use the folder of this process: a hub id could mean another revision by now.
    work = partial(_work_in_process, replace(evaluation, model=str(prepared.engine.codec.folder)), wanted)
    with prepared.engine.offloaded():  # its device belongs to the first worker
        run_workers(work, min(evaluation.workers, chunks), f"results are kept in {evaluation.out}", reader.read_new)


def _work_in_process(evaluation: Evaluation, wanted: Collection[str] | None, worker: int) -> None:
    own = replace(evaluation, device=device_of(evaluation.device, worker))
    work(PreparedEvaluation.prepare(own).select(wanted), worker, lambda _: None)


def work(prepared: PreparedEvaluation, worker: int, watch: Watch) -> None:
    """Decode the chunks of one worker, each with every recipe.

    Recipes take turns, so that a machine that slows down or a run that is interrupted affects all of them equally.
    """
    evaluation = prepared.evaluation
    done = {record.key for record in read_records(evaluation.out)}
    size = chunk_size(len(prepared.examples), evaluation.batch_size, evaluation.workers)
    with appending(part(evaluation.out, worker)) as writer:
        for index, pending in _chunks(prepared, size, done, worker):
            _write(prepared, index, _decode(prepared, prepared.recipes[index], pending), writer, watch)


def _chunks(
    prepared: PreparedEvaluation, size: int, done: Collection[tuple[str, str]], worker: int | None = None
) -> Iterator[tuple[int, list[Example]]]:
    """Yield the index of a recipe and the examples that it has to decode, for one worker (None: for all)."""
    for chunk, start in enumerate(range(0, len(prepared.examples), size)):
        if worker is not None and chunk % prepared.evaluation.workers != worker:
            continue
        for index, recipe in enumerate(prepared.recipes):
            examples = prepared.examples[start : start + size]
            if pending := [one for one in examples if (recipe.name, one.id) not in done]:
                # Rows of a batch are padded to the longest, so prompts of similar length go together.
                yield index, sorted(pending, key=lambda one: len(str(one.prompt)))


@dataclass(frozen=True, slots=True)
class _Result:
    place: int  # among the examples of its chunk
    record: Record
    trace: Trace | None


def _decode(prepared: PreparedEvaluation, recipe: TaskRecipe, examples: Sequence[Example]) -> Iterator[_Result]:
    engine, evaluation = prepared.engine, prepared.evaluation
    requests = _requests(prepared, recipe, examples)
    started = time.perf_counter()
    for place, done in engine.generate_iter(requests, trace=evaluation.trace, batch_size=evaluation.batch_size):
        yield _result(prepared, recipe, examples, place, done, time.perf_counter() - started)
        started = time.perf_counter()  # grading does not count as decoding


def _requests(
    prepared: PreparedEvaluation, recipe: TaskRecipe, examples: Sequence[Example]
) -> list[tuple[Prompt, RequestTemplate]]:
    return [(one.prompt, recipe.template(prepared.engine, one, prepared.evaluation.seed)) for one in examples]


def _result(
    prepared: PreparedEvaluation,
    recipe: TaskRecipe,
    examples: Sequence[Example],
    place: int,
    done: Completion,
    wall: float,
) -> _Result:
    return _Result(place, _record(prepared.benchmark, recipe, examples[place], done, wall), done.trace)


def _write(prepared: PreparedEvaluation, index: int, results: Iterable[_Result], writer: Writer, watch: Watch) -> None:
    """Write the results of a chunk: one at a time, or all together after their traces are saved."""
    evaluation = prepared.evaluation
    if not evaluation.trace:
        for one in results:
            writer.add([one.record])
            watch(one.record)
        return
    ordered = sorted(results, key=lambda one: one.place)
    # Named after the first result that is written: no later run decodes it again, so the name stays unique.
    file = Path("traces") / f"{index:02d}-{blake2b(ordered[0].record.id.encode(), digest_size=8).hexdigest()}.npz"
    make_folder(evaluation.out / file.parent)
    save_traces(evaluation.out / file, [one.trace for one in ordered if one.trace])
    records = [replace(one.record, trace=str(file), trace_index=i) for i, one in enumerate(ordered)]
    writer.add(records)
    for record in records:
        watch(record)


def _record(benchmark: Benchmark, recipe: TaskRecipe, example: Example, completion: Completion, wall: float) -> Record:
    return Record(
        recipe=recipe.name,
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
        tokens=completion.generated,
        **grade(benchmark, example, completion),
    )


def grade(benchmark: Benchmark, example: Example, completion: Completion) -> dict[str, Any]:
    """Return the record fields on the answer: `answer`, `correct`, `fallback` and, for code, `reason` and `sandbox`."""
    answer = benchmark.extract(completion)
    fallback = answer != make_strict(benchmark).extract(completion)
    if not isinstance(benchmark, Code):
        return {"answer": answer, "correct": bool(benchmark.grade(example, answer)), "fallback": fallback}
    (verdict,) = benchmark.verdicts([example], [answer])
    reason = None if verdict.passed else f"{verdict.status}: {verdict.reason}"[:LONGEST_REASON]
    graded = {"answer": answer, "correct": verdict.passed, "fallback": fallback}
    return graded | {"reason": reason, "sandbox": verdict.level}
