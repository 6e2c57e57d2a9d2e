"""Prepare decodings without early stopping, with traces: the data for calibration and for training a judge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from foretell.decide.wire import parse_questions
from foretell.engine.options import NO_REGION, Options, RequestTemplate, can_stop
from foretell.engine.prompt_files import read_prompts
from foretell.engine.prompt_kinds import WrittenPrompt
from foretell.errors import RequestError, show
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.decisions import Decisions
from foretell.evaluation.benchmarks.fill import Fill
from foretell.evaluation.benchmarks.prompts import Given, Prompts, format_prompts
from foretell.evaluation.run import Evaluation, PreparedEvaluation
from foretell.evaluation.task_recipe import TaskRecipe
from foretell.loop.protocols import Region, Stop
from foretell.models.load import Progress
from foretell.policies.cache.off import Off
from foretell.policies.region.fixed import Fixed
from foretell.policies.stop.combined import All
from foretell.policies.stop.never import Never
from foretell.recipes.text import format_value
from foretell.storage import check_writable, is_folder, load_json, make_folder, write_file


def without_stopping(
    what: Evaluation, rule: Stop, region: Region | None = None, progress: Progress | None = None
) -> tuple[PreparedEvaluation, list[RequestTemplate]]:
    """Prepare decodings that never stop, on which `rule` can be replayed, and return one request template per example.

    `what` has one recipe; its own stopping rule is ignored. `region` is the region that the rule reads if the recipe
    names none, and `progress` that of `load`. All inputs are checked here.
    """
    (text,) = what.recipes
    asked = replace(what, recipes=(f"{text} stop={format_value(rule)}",), trace=True)
    stopping = PreparedEvaluation.prepare(asked, progress=progress)
    (way,) = stopping.recipes
    if region is not None and way.recipe.region == Fixed():
        way = replace(way, recipe=replace(way.recipe, region=region))
    template = way.template(stopping.engine, stopping.examples[0], what.seed)
    if not can_stop(template.recipe, template.layout):
        raise RequestError(f"{what.task}: {NO_REGION.format(rule='a stopping rule')}")
    chosen = way.recipe.region
    plain = TaskRecipe.of(text, stopping.benchmark, stopping.evaluation.options).recipe
    elsewhere = f" region={format_value(chosen)}" if chosen != plain.region else ""
    # A cache recomputes only columns that are read, so the rule must read them even though it may not stop.
    silent: Stop = Never() if plain.cache == Off() else All((rule, Never()))
    full = text + elsewhere + (f" stop={format_value(silent)}" if plain.stop != silent else "")
    way = TaskRecipe.of(full, stopping.benchmark, stopping.evaluation.options)
    bench = replace(stopping, evaluation=replace(stopping.evaluation, recipes=(full,)), recipes=(way,))
    bench.check()
    return bench, [way.template(bench.engine, example, what.seed) for example in bench.examples]


def example_key(example: Example) -> str:
    """Return a short hash of the prompt and its options, which identifies an example."""
    asked = json.dumps([example.prompt, example.options], default=str)
    return blake2b(asked.encode(), digest_size=5).hexdigest()


def evaluation_for(
    model: str,
    task: str | None,
    prompts: str | Path | Sequence[Given] | None,
    recipe: str,
    out: str | Path | None,
    work: str | Path | None,
    options: Mapping[str, Any],
    texts: str | Path | Sequence[Given] | None = None,
    questions: Any = None,
    template: str | None = None,
    **evaluation: Any,
) -> Evaluation:
    """Return the evaluation that decodes a task, prompts or texts with masks, for a result that is written to `out`.

    With `questions`, as JSON or a file of it, the prompts are inputs of typed decisions.
    """
    if sum(one is not None for one in (task, prompts, texts)) != 1:
        raise RequestError("give a task, prompts, or texts with masks: one of them")
    if questions is not None and (prompts is None or options):
        raise RequestError("questions are asked about prompts, without options of a window")
    if template is not None and questions is None:
        raise RequestError(f"a template ({show(template)}) is for typed decisions: give questions too")
    if Options.of(options).stop_strings:
        raise RequestError("stop_strings cut finished texts, but rules are replayed on unfinished ones; leave them out")
    folder = work_folder(out, work)
    given = texts if prompts is None else prompts
    if given is None:
        drawn: dict[str, Any] = {"independent": True} | evaluation  # one population, whatever the limit
        return Evaluation(model, str(task), (recipe,), folder, options=options, **drawn)
    if evaluation.pop("source", None) is not None:
        raise RequestError("a data folder is only for benchmarks, not for prompts or texts")
    source = Path(given) if isinstance(given, str | Path) else _write_prompts(given, folder)
    if questions is not None:
        decisions = _write_decisions(questions, template, source, folder)
        return Evaluation(model, Decisions.name, (recipe,), folder, source=decisions, **evaluation)
    kind = Fill.name if prompts is None else Prompts.name
    return Evaluation(model, kind, (recipe,), folder, source=source, options=options, **evaluation)


def work_folder(out: str | Path | None, work: str | Path | None) -> Path:
    """Return the folder of the decodings: `work` if given, otherwise a folder next to `out`."""
    if out is not None and Path(out).suffix != ".json":
        raise RequestError(f"the result is written to a .json file, got {out}")
    if out is not None and not is_folder(Path(out).absolute().parent):
        raise RequestError(f"cannot write {out}: there is no folder {Path(out).parent}")
    if out is not None:
        check_writable(Path(out))
    if work is not None:
        return Path(work)
    if out is None:
        raise RequestError("say where to write the result (out), or at least where to keep the decodings (work)")
    return Path(out).with_suffix(".work")


def _write_prompts(prompts: Sequence[Given], folder: Path) -> Path:
    """Write prompts to a file for the workers; its name is a hash of its content, so it never overwrites another."""
    content = format_prompts(prompts)
    path = folder / f"prompts-{blake2b(content.encode(), digest_size=5).hexdigest()}.jsonl"
    make_folder(folder)
    write_file(path, content)
    return path


def _write_decisions(questions: Any, template: str | None, inputs: Path, folder: Path) -> Path:
    """Write questions and inputs to one file for the workers, named by a hash of its content."""
    asked = load_json(questions, "file of questions", RequestError) if isinstance(questions, str | Path) else questions
    parse_questions(asked)
    found = read_prompts(inputs)
    lines = [{"id": one.id, "answer": one.answer} | _content(one.prompt) for one in found]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    content = json.dumps({"questions": asked, "template": template, "inputs": text})
    path = folder / f"decisions-{blake2b(content.encode(), digest_size=5).hexdigest()}.json"
    make_folder(folder)
    write_file(path, content)
    return path


def _content(prompt: WrittenPrompt) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"messages": list(prompt)}
