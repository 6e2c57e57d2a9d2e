"""`foretell generate`: decode one prompt or a file of prompts, and report the cost."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from foretell.cli.audit import AuditOptions, ClimbOptions, decode, read_supervision, summarise
from foretell.cli.model import Actors, Device, Dtype, Model, Packed, Ray, Revision, at_revision, open_pool
from foretell.errors import ForetellError, RequestError, whole, within
from foretell.extras import require_extra
from foretell.storage import check_writable, is_folder

if TYPE_CHECKING:
    from foretell.certify.supervise import Supervisor
    from foretell.cli.results import Ledger
    from foretell.engine.completion import Completion, Failure
    from foretell.engine.engine import Engine
    from foretell.engine.options import RequestTemplate
    from foretell.engine.prompt_files import FilePrompt
    from foretell.engine.prompt_kinds import Prompt
    from foretell.workers import Pool

ON_MISMATCH = "If a certificate is not for this model, recipe or window: warn (default), full (decode in full), fail."
LONGEST_PAUSE = 3600.0  # seconds
CHAT = "Use the chat template, or the raw text (default: the chat template if the model has one)."


def _option(text: str, *names: str) -> Any:
    return Option(*names, help=text)


def generate(
    model: Model,
    prompt: Annotated[str | None, Argument(help="The prompt; - reads it from standard input.")] = None,
    file: Annotated[
        str | None, Option(help="File of prompts: JSON lines, .parquet, or .txt with one per line; - for stdin.")
    ] = None,
    recipe: Annotated[
        str, _option("Preset, full recipe (see `foretell recipes`), or certified .json.", "--recipe", "-r")
    ] = "full",
    set_: Annotated[
        list[str] | None, _option("Change one parameter, e.g. stop.tau.high=8. Repeatable.", "--set", "-s")
    ] = None,
    layout: Annotated[str | None, _option("Name of one of the model's layouts.")] = None,
    max_new_tokens: Annotated[int | None, _option("Length of the response window in tokens.")] = None,
    steps: Annotated[int | None, _option("Maximum number of steps (default: one per position).")] = None,
    block_length: Annotated[int | None, _option("Length of a block in tokens.")] = None,
    remasking: Annotated[
        str | None, _option("Order of filling: low_confidence, random, topk_margin, entropy, ...")
    ] = None,
    suffix: Annotated[str | None, _option('Text pinned before the answer, e.g. "The answer is".')] = None,
    answer_length: Annotated[int | None, _option("Length of the answer in tokens.")] = None,
    answer_start: Annotated[int | None, _option("Offset of the answer in the window (default: at its end).")] = None,
    temperature: Annotated[float | None, _option("Sampling temperature (default: greedy).")] = None,
    top_p: Annotated[
        float | None, _option("Sample from the most probable tokens up to this total probability.")
    ] = None,
    top_k: Annotated[int | None, _option("Sample from this many of the most probable tokens.")] = None,
    cfg_scale: Annotated[float | None, _option("Scale of classifier-free guidance.")] = None,
    stop_at_eos: Annotated[bool | None, _option("Compute nothing after the end of the text.")] = None,
    stop: Annotated[str | None, _option("Stopping rule, or a certified rule's .json, instead of the recipe's.")] = None,
    on_mismatch: Annotated[str | None, _option(ON_MISMATCH)] = None,
    stop_string: Annotated[list[str] | None, _option("Cut the text before this string. Repeatable.")] = None,
    chat: Annotated[bool | None, _option(CHAT, "--chat/--raw")] = None,
    special_tokens: Annotated[
        bool,
        _option("Let chat content that spells a special token become it (default: plain text).", "--special-tokens"),
    ] = False,
    seed: Annotated[int, _option("Random seed.")] = 0,
    batch_size: Annotated[int, _option("Number of prompts decoded together.")] = 8,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Annotated[int | None, _option("Number of torch threads (default: 1 for small models).")] = None,
    compile_: Annotated[bool, _option("Use torch.compile.", "--compile")] = False,
    quantize: Annotated[str | None, _option("Quantize the weights: int8.")] = None,
    packed: Packed = None,
    json: Annotated[bool, _option("Print one JSON object per line.", "--json")] = False,
    trace: Annotated[Path | None, _option("File to save every step to.")] = None,
    out: Annotated[
        Path | None, _option("File to write to instead of stdout: JSON lines, or a table if it is a .parquet.")
    ] = None,
    ray: Ray = None,
    actors: Actors = None,
    audit: Annotated[
        float | None, _option("Share of requests that are also decoded in full, to test the risk of the recipe in use.")
    ] = None,
    audit_log: Annotated[Path | None, _option("File of the audits (default: OUT.audit.jsonl).")] = None,
    on_drift: Annotated[str | None, _option("After an alarm: warn (default), or full (decode in full).")] = None,
    risk: Annotated[
        float | None,
        _option("Start with full decoding, and earn faster recipes with at most this risk from the requests."),
    ] = None,
    confidence: Annotated[float | None, _option("Probability that --risk holds (default: 0.95).")] = None,
    loss: Annotated[
        str | None, _option("What --risk counts: answer (default), text, tokens, success, or mine.py:function.")
    ] = None,
    explore: Annotated[float | None, _option("Share of requests that --risk tests recipes on (default: 0.2).")] = None,
    pilot: Annotated[int | None, _option("Requests from which --risk learns the model's scale (default: 100).")] = None,
    ahead: Annotated[int | None, _option("Recipes that --risk tests at the same time (default: all).")] = None,
    state: Annotated[Path | None, _option("File of what --risk has learned (default: OUT.climb.jsonl).")] = None,
    watch: Annotated[bool, _option("Show every step.", "--watch", "-w")] = False,
    delay: Annotated[float, _option("Pause in seconds between steps with --watch.")] = 0.0,
) -> None:
    """Decode a prompt or a file of prompts.

    foretell generate tiny "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?" -r prophet -w
    """
    start(dict(locals()))


def fill(**given: Any) -> None:
    """Fill the masks of a text in place, or of every text of a file. Safe to interrupt: run it again to resume.

    A mask is written as [MASK] or as the tokenizer's own mask token; [MASK*8] is a run of eight.

    foretell fill tiny "Tom has 3 [MASK] with 4 apples each. He eats [MASK]." -r swift
    """
    start(given | {"prompt": given["text"]}, fills=True)


_NOT_FOR_FILLS = (
    *("layout", "max_new_tokens", "suffix", "answer_length", "answer_start", "stop_string"),
    *("chat", "special_tokens"),
)
_TEXT = Annotated[str | None, Argument(help="The text with its masks; - reads it from standard input.")]


def _fill_signature() -> Signature:
    """Return the options of `generate`, without those for a window after a prompt."""
    parameters = dict(signature(generate, eval_str=True).parameters)
    parameters["prompt"] = parameters["prompt"].replace(name="text", annotation=_TEXT)
    return Signature([one for name, one in parameters.items() if name not in _NOT_FOR_FILLS])


setattr(fill, "__signature__", _fill_signature())  # noqa: B010 - what typer reads


def start(given: dict[str, Any], *, fills: bool = False) -> None:
    """Run the command with the options `given` on the command line."""
    options = {name: given[name] for name in _OPTIONS if given.get(name) is not None}
    if given.get("stop_string"):
        options["stop_strings"] = given["stop_string"]
    settings = given["set_"] or []
    if given["recipe"].endswith(".json"):
        options |= {"recipe": given["recipe"], "settings": " ".join(settings)}
    else:
        options["recipe"] = " ".join([given["recipe"], *settings])
    supervision = read_supervision(given)
    pool = open_pool(given["ray"], given["actors"])
    if pool is not None and (given["file"] is None or supervision is not None or given["watch"]):
        raise RequestError("--ray decodes a --file of prompts, and cannot be combined with --watch, --audit or --risk")
    output = Output(as_json=given["json"], pool=pool, **{name: given[name] for name in _OUTPUT})
    names = ("device", "dtype", "threads", "quantize", "packed")
    machine = {name: given[name] for name in names} | {"compile": given["compile_"]}
    model = at_revision(given["model"], given["revision"])
    run(output, options, model, given["prompt"], given["file"], machine, supervision, fills=fills)


_OUTPUT = ("batch_size", "trace", "out", "watch", "delay")
_OPTIONS = (
    *("layout", "max_new_tokens", "steps", "block_length", "remasking", "suffix", "answer_length", "answer_start"),
    *("temperature", "top_p", "top_k", "cfg_scale", "stop_at_eos", "stop", "on_mismatch"),
    *("chat", "special_tokens", "seed"),
)


@dataclass(frozen=True, slots=True)
class Output:
    """Where and how the results are written."""

    batch_size: int
    as_json: bool = False
    trace: Path | None = None
    out: Path | None = None
    watch: bool = False
    delay: float = 0.0
    pool: Pool | None = None  # decodes instead of this machine

    def __post_init__(self) -> None:
        if self.watch and self.as_json:
            raise RequestError("--watch and --json both write to stdout; use one of them, or --watch with --out")
        whole("--batch-size", self.batch_size, 1, error=RequestError)
        within("--delay", self.delay, 0.0, LONGEST_PAUSE, RequestError)
        if self.out is not None and self.trace is not None and self.out.absolute() == self.trace.absolute():
            raise RequestError(f"--out and --trace both write to {self.trace}; give each a file of its own")
        for path in (self.trace, self.out):
            if path is not None and not is_folder(path.absolute().parent):
                raise RequestError(f"cannot write {path}: there is no folder {path.parent}")
            if path is not None and is_folder(path):
                raise RequestError(f"cannot write {path}: it is a folder")
            if path is not None:
                check_writable(path)
        if self.out is not None and self.out.suffix == ".parquet":
            require_extra("parquet")


def run(
    output: Output,
    options: dict[str, Any],
    model: str,
    prompt: str | None,
    file: str | None,
    machine: dict[str, Any],
    supervision: AuditOptions | ClimbOptions | None,
    *,
    fills: bool,
) -> None:
    """Check everything before the first step, then decode; a bad prompt in a file does not stop the others."""
    from foretell.cli.console import note  # noqa: PLC0415
    from foretell.cli.model import check_rows, introduce, open_engine  # noqa: PLC0415
    from foretell.cli.prompts import gather  # noqa: PLC0415
    from foretell.engine.certificate import recipe_of, stop_of  # noqa: PLC0415
    from foretell.engine.options import Options  # noqa: PLC0415
    from foretell.recipes.presets import parse  # noqa: PLC0415

    asked, title = gather(prompt, file), options["recipe"]
    options["recipe"] = recipe_of(title)
    if isinstance(options["recipe"], str):
        parse(title)  # report a wrong name before the weights are loaded
    if "stop" in options:
        options["stop"] = stop_of(options["stop"])
    engine = open_engine(model, **machine)
    template = engine.fill_template(**options) if fills else engine.template(**options)
    if not asked[0].where:  # the prompt was an argument, not a line of a file
        engine.request(_prompt_of(asked[0], template), template)
    note(template.notes)
    introduce(engine)
    check_rows(engine, 1 if output.watch else min(output.batch_size, len(asked)), template.layout.length)
    with ExitStack() as stack:
        supervisor = None
        if supervision is not None:
            supervisor = stack.enter_context(supervision.open(engine, template, Options.of(options)))
        failed = deliver(output, engine, template, asked, title, supervisor, packed=machine["packed"])
    if failed:
        raise Exit(code=1)


def _prompt_of(one: FilePrompt, template: RequestTemplate) -> Prompt:
    from foretell.engine.masked_text import MaskedText  # noqa: PLC0415

    return MaskedText(one.prompt) if template.fills else one.prompt


def deliver(
    output: Output,
    engine: Engine,
    template: RequestTemplate,
    asked: list[FilePrompt],
    title: str,
    supervisor: Supervisor | None = None,
    *,
    packed: bool | None = None,
) -> int:
    """Decode, and write or print each completion as soon as it is done. Return the number of failed prompts."""
    from foretell.cli.console import problem, say  # noqa: PLC0415
    from foretell.cli.results import Printer, line_of, totals  # noqa: PLC0415
    from foretell.cli.wording import count  # noqa: PLC0415
    from foretell.engine.completion import Failure  # noqa: PLC0415
    from foretell.engine.trace_files import save_traces  # noqa: PLC0415

    finished: dict[int, Completion] = {}
    answered: list[FilePrompt] = []  # by an interrupted run
    failed, started = 0, time.perf_counter()
    with ExitStack() as stack:
        ledger = stack.enter_context(_open_ledger(output, engine, template, asked)) if output.out else None
        if ledger is not None and ledger.lines:
            say(f"{count(len(ledger.lines), 'result')} of an interrupted run kept", style="dim")
            failed = ledger.failed
            answered = [one for one in asked if str(one.id) in ledger.lines]
            asked = [one for one in asked if str(one.id) not in ledger.lines]
        printer = Printer([one.id for one in asked], output.as_json)
        if supervisor is None:
            results = _decode(output, engine, template, asked, title, stack, packed=packed)
        else:
            tick = _start_progress(len(asked), stack)
            results = _supervise(supervisor, asked, answered, output, tick)
        for index, done in results:
            if isinstance(done, Failure):
                failed += 1
                where = f"{asked[index].where}: " if asked[index].where else ""
                problem(f"error: {where}{done}")
            else:
                finished[index] = done
            if ledger is not None:
                ledger.add(asked[index].id, line_of(asked[index].id, done))
            if ledger is None or output.as_json:
                printer.add(index, done)
        if output.trace is not None:
            save_traces(output.trace, [one.trace for _, one in sorted(finished.items()) if one.trace is not None])
    if supervisor is not None and supervisor.state is not None:
        say(summarise(supervisor.state), style="dim")
    if len(asked) > 1:
        say(totals(list(finished.values()), time.perf_counter() - started), style="dim")
    return failed


def _open_ledger(output: Output, engine: Engine, template: RequestTemplate, asked: list[FilePrompt]) -> Ledger:
    """Return the results file, which can be continued by the same prompts, model and options, but not with traces."""
    from foretell.cli.results import Ledger, run_key  # noqa: PLC0415

    assert output.out is not None, "the caller has checked that results go to a file"
    key = run_key(engine, template, asked) if output.trace is None else None
    return Ledger(output.out, [one.id for one in asked], key)


def _decode(
    output: Output,
    engine: Engine,
    template: RequestTemplate,
    asked: list[FilePrompt],
    title: str,
    stack: ExitStack,
    *,
    packed: bool | None,
) -> Iterator[tuple[int, Completion | Failure]]:
    from foretell.cli.progress import Meter  # noqa: PLC0415
    from foretell.engine.copies import EngineCopy, decode_on  # noqa: PLC0415

    traced = output.trace is not None
    if output.watch:
        yield from _watch(output, engine, template, asked, title)
        return
    pairs = [(_prompt_of(one, template), template) for one in asked]
    if output.pool is not None:
        tick = _start_progress(len(pairs), stack)
        with engine.offloaded():
            opener = EngineCopy.of(engine, packed)
            for index, done in decode_on(output.pool, opener, pairs, output.batch_size, trace=traced):
                yield index, done
                tick()
        return
    if len(pairs) == 1:
        with Meter("decoding") as meter:
            if not output.as_json:
                meter.begin()
            results = list(engine.generate_iter(pairs, trace=traced, errors="return", observers=[meter.observe]))
        yield from results
        return
    tick = _start_progress(len(pairs), stack)
    for index, done in engine.generate_iter(pairs, trace=traced, batch_size=output.batch_size, errors="return"):
        yield index, done
        tick()


def _supervise(
    supervisor: Supervisor, asked: list[FilePrompt], answered: list[FilePrompt], output: Output, tick: Any
) -> Iterator[tuple[int, Completion | Failure]]:
    for one in decode(supervisor, asked, answered, output.batch_size, traced=output.trace is not None):
        yield one
        tick()


def _watch(
    output: Output, engine: Engine, template: RequestTemplate, asked: list[FilePrompt], title: str
) -> Iterator[tuple[int, Completion | Failure]]:
    from foretell.cli.canvas import speller  # noqa: PLC0415
    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.cli.watch import watch  # noqa: PLC0415
    from foretell.engine.completion import Failure  # noqa: PLC0415

    spell = speller(engine.codec)
    for index, one in enumerate(asked):
        heading = title if len(asked) == 1 else f"{one.id}: {title}"
        done: Completion | Failure
        try:
            frames = engine.stream_template(_prompt_of(one, template), template, trace=output.trace is not None)
            done = watch(frames, spell, out(), heading, output.delay)
        except ForetellError as error:  # of this prompt, perhaps after some steps
            done = Failure(error)
        yield index, done


def _start_progress(total: int, stack: ExitStack) -> Any:
    """Show a progress bar on stderr if there is a terminal; return the function that moves it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    from foretell.cli.console import err  # noqa: PLC0415

    console = err()
    if not console.is_terminal:
        return lambda: None
    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redirect stdout through the bar only if both use the terminal; a file must get its lines unchanged.
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty())
    stack.enter_context(bar)
    task = bar.add_task("decoding", total=total)
    return lambda: bar.advance(task)
