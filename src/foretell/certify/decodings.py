"""Decodings that run to their end, with traces, on a task or on prompts: what calibration and the judge learn from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from foretell.engine.options import NO_REGION, Options, RequestTemplate, can_stop
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.prompts import Given, Prompts, listed
from foretell.evaluation.run import Evaluation, PreparedEvaluation
from foretell.evaluation.task_recipe import TaskRecipe
from foretell.loop.protocols import Region, Stop
from foretell.policies.cache.off import Off
from foretell.policies.region.fixed import Fixed
from foretell.policies.stop.combined import All
from foretell.policies.stop.never import Never
from foretell.recipes.text import format_value
from foretell.storage import write_file


def without_stopping(
    what: Evaluation, rule: Stop, region: Region | None = None
) -> tuple[PreparedEvaluation, list[RequestTemplate]]:
    """Made ready to decode without stopping what `rule` is to stop, and the order of each example.

    `what` has one recipe, whose own stopping rule is left out. `region` is where the rule looks, if the recipe has
    none of its own. Everything that can be wrong is found here.
    """
    (text,) = what.recipes
    bold = PreparedEvaluation.prepare(replace(what, recipes=(f"{text} stop={format_value(rule)}",), trace=True))
    (way,) = bold.ways
    if region is not None and way.recipe.region == Fixed():
        way = replace(way, recipe=replace(way.recipe, region=region))
    order = way.template(bold.engine, bold.examples[0], what.seed)
    if not can_stop(order.recipe, order.layout):
        raise RequestError(f"{what.task}: {NO_REGION.format(rule='a stopping rule')}")
    chosen = way.recipe.region
    plain = TaskRecipe.of(text, bold.benchmark, bold.what.options).recipe
    elsewhere = f" region={format_value(chosen)}" if chosen != plain.region else ""
    # A cache keeps what nobody asks for as it was, so the rule has to look on where it is not to decide.
    silent: Stop = Never() if plain.cache == Off() else All((rule, Never()))
    full = text + elsewhere + (f" stop={format_value(silent)}" if plain.stop != silent else "")
    way = TaskRecipe.of(full, bold.benchmark, bold.what.options)
    bench = replace(bold, what=replace(bold.what, recipes=(full,)), ways=(way,))
    bench.check()
    return bench, [way.template(bench.engine, example, what.seed) for example in bench.examples]


def example_key(example: Example) -> str:
    """A few digits that stand for what is asked, by which an example is known again."""
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
    **evaluation: Any,
) -> Evaluation:
    """The evaluation that decodes a task or prompts in full, for what is written to `out`."""
    if (task is None) == (prompts is None):
        raise RequestError("give a task or prompts" + ("" if task is None else ", not both"))
    if Options.of(options).stop_strings:
        raise RequestError(
            "stop_strings cut finished texts, and rules are replayed on texts that are not; leave them out"
        )
    folder = work_folder(out, work)
    if prompts is None:
        return Evaluation(model, str(task), (recipe,), folder, options=options, **evaluation)
    if evaluation.pop("source", None) is not None:
        raise RequestError("prompts are their own data; a data folder is for benchmarks")
    source = Path(prompts) if isinstance(prompts, str | Path) else _written(prompts, folder)
    return Evaluation(model, Prompts.name, (recipe,), folder, source=source, options=options, **evaluation)


def work_folder(out: str | Path | None, work: str | Path | None) -> Path:
    """The folder of the decodings: beside `out`, unless another one is named."""
    if out is not None and Path(out).suffix != ".json":
        raise RequestError(f"a rule or a judge is written to a .json file, got {out}")
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise RequestError(f"cannot write {out}: there is no folder {Path(out).parent}")
    if work is not None:
        return Path(work)
    if out is None:
        raise RequestError("say where to write the result (out), or at least where to keep the decodings (work)")
    return Path(out).with_suffix(".work")


def _written(prompts: Sequence[Given], folder: Path) -> Path:
    """Prompts as a file, which workers read; named by what it says, so that it never takes the place of others."""
    said = listed(prompts)
    path = folder / f"prompts-{blake2b(said.encode(), digest_size=5).hexdigest()}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, said)
    return path
