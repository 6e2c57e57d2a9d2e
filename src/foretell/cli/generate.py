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
from foretell.cli.model import (
    Actors,
    Compile,
    Device,
    Dtype,
    Model,
    Packed,
    Quantize,
    Ray,
    Revision,
    Threads,
    at_revision,
    open_pool,
)
from foretell.cli.usage import MACHINE, OUTPUT, RISK, SAMPLING, WINDOW
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

ON_MISMATCH = "If a certificate is for another model, recipe or window: warn (default), full (decode in full) or fail."
CLIMB = "Allowed risk. Starts with full decoding, and uses faster recipes once requests show that they keep the risk."
LONGEST_PAUSE = 3600.0  # seconds
CHAT = "Use the chat template or the raw text (default: the template, if the model has one)."


def _option(text: str, *names: str, panel: str | None = None) -> Any:
    return Option(*names, help=text, rich_help_panel=panel)


def generate(
    model: Model,
    prompt: Annotated[str | None, Argument(help="Prompt to decode; - reads it from standard input.")] = None,
    file: Annotated[
        str | None,
        Option(help="File of inputs: JSON lines, .parquet, or .txt with one per line; - reads standard input."),
    ] = None,
    recipe: Annotated[
        str, _option("Preset, recipe text or certified .json file (see `foretell recipes`).", "--recipe", "-r")
    ] = "full",
    set_: Annotated[
        list[str] | None,
        _option("Change one parameter of the recipe, e.g. stop.tau.high=8. Repeatable.", "--set", "-s"),
    ] = None,
    layout: Annotated[str | None, _option("Name of one of the model's layouts.", panel=WINDOW)] = None,
    max_new_tokens: Annotated[int | None, _option("Length of the response window in tokens.", panel=WINDOW)] = None,
    steps: Annotated[int | None, _option("Maximum number of steps (default: one per position).", panel=WINDOW)] = None,
    block_length: Annotated[int | None, _option("Length of a block in tokens.", panel=WINDOW)] = None,
    remasking: Annotated[
        str | None, _option("Order in which masks are filled, e.g. low_confidence or random.", panel=SAMPLING)
    ] = None,
    suffix: Annotated[
        str | None, _option('Text that is fixed before the answer, e.g. "The answer is".', panel=WINDOW)
    ] = None,
    answer_length: Annotated[int | None, _option("Length of the answer in tokens.", panel=WINDOW)] = None,
    answer_start: Annotated[
        int | None, _option("Position of the answer in the window (default: at its end).", panel=WINDOW)
    ] = None,
    temperature: Annotated[float | None, _option("Sampling temperature (default: greedy).", panel=SAMPLING)] = None,
    top_p: Annotated[
        float | None,
        _option("Sample from the most probable tokens, up to this total probability.", panel=SAMPLING),
    ] = None,
    top_k: Annotated[
        int | None, _option("Sample from this number of the most probable tokens.", panel=SAMPLING)
    ] = None,
    cfg_scale: Annotated[float | None, _option("Scale of classifier-free guidance.", panel=SAMPLING)] = None,
    stop_at_eos: Annotated[
        bool | None, _option("Do not compute positions after the end of the text.", panel=WINDOW)
    ] = None,
    stop: Annotated[
        str | None, _option("Stopping rule, or a certified rule's .json file, instead of the recipe's.", panel=RISK)
    ] = None,
    on_mismatch: Annotated[str | None, _option(ON_MISMATCH, panel=RISK)] = None,
    stop_string: Annotated[
        list[str] | None, _option("Cut the finished text before this string. Repeatable.", panel=WINDOW)
    ] = None,
    chat: Annotated[bool | None, _option(CHAT, "--chat/--raw", panel=WINDOW)] = None,
    special_tokens: Annotated[
        bool,
        _option(
            "Treat special tokens in a chat message as tokens (default: as plain text).",
            "--special-tokens",
            panel=WINDOW,
        ),
    ] = False,
    seed: Annotated[int, _option("Random seed.", panel=SAMPLING)] = 0,
    batch_size: Annotated[int, _option("Number of prompts decoded together.", panel=MACHINE)] = 8,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    compile_: Compile = False,
    quantize: Quantize = None,
    packed: Packed = None,
    json: Annotated[bool, _option("Print one JSON object per line.", "--json", panel=OUTPUT)] = False,
    trace: Annotated[Path | None, _option("Save every step to this file, for `foretell trace`.", panel=OUTPUT)] = None,
    out: Annotated[
        Path | None,
        _option("Write JSON lines, or a .parquet table, to this file. Run the command again to resume.", panel=OUTPUT),
    ] = None,
    ray: Ray = None,
    actors: Actors = None,
    audit: Annotated[
        float | None,
        _option("Share of requests that are also decoded in full, to check the promised risk.", panel=RISK),
    ] = None,
    audit_log: Annotated[Path | None, _option("Log of the audits (default: OUT.audit.jsonl).", panel=RISK)] = None,
    on_drift: Annotated[
        str | None,
        _option("If audits show that the risk is too high: warn (default) or full (decode in full).", panel=RISK),
    ] = None,
    risk: Annotated[float | None, _option(CLIMB, panel=RISK)] = None,
    confidence: Annotated[
        float | None, _option("Probability with which --risk holds (default: 0.95).", panel=RISK)
    ] = None,
    loss: Annotated[
        str | None,
        _option("Loss for --risk: answer (default), text, tokens, success or mine.py:function.", panel=RISK),
    ] = None,
    explore: Annotated[
        float | None, _option("Share of requests on which --risk tests recipes (default: 0.2).", panel=RISK)
    ] = None,
    pilot: Annotated[
        int | None,
        _option("Number of requests before --risk chooses the recipes to test (default: 100).", panel=RISK),
    ] = None,
    ahead: Annotated[
        int | None, _option("Number of recipes that --risk tests at the same time (default: all).", panel=RISK)
    ] = None,
    state: Annotated[
        Path | None, _option("File in which --risk keeps its results (default: OUT.climb.jsonl).", panel=RISK)
    ] = None,
    watch: Annotated[bool, _option("Show every step while decoding.", "--watch", "-w", panel=OUTPUT)] = False,
    delay: Annotated[float, _option("With --watch: pause after each step, in seconds.", panel=OUTPUT)] = 0.0,
) -> None:
    """Decode a prompt or a file of prompts.

    foretell generate tiny --recipe swift --watch \\
        "Tom has 7 apples. He eats 5. How many apples are left?"
    """
    start(dict(locals()))


def fill(**given: Any) -> None:
    """Fill the masks in a text, or in every text of a file.

    A mask is written as [MASK] or as the tokenizer's own mask token; [MASK*8] is a run of eight. The rest of the text
    does not change.

    foretell fill tiny --recipe swift \\
        "Tom has 3 [MASK] with 4 apples each. He eats [MASK]."
    """
    start(given | {"prompt": given["text"]}, fills=True)


_NOT_FOR_FILLS = (
    *("layout", "max_new_tokens", "suffix", "answer_length", "answer_start", "stop_string"),
    *("chat", "special_tokens"),
)
_TEXT = Annotated[str | None, Argument(help="Text with masks; - reads it from standard input.")]


def _fill_signature() -> Signature:
    """Return the options of `generate`, without those for a window after a prompt."""
    parameters = dict(signature(generate, eval_str=True).parameters)
    parameters["prompt"] = parameters["prompt"].replace(name="text", annotation=_TEXT)
    return Signature([one for name, one in parameters.items() if name not in _NOT_FOR_FILLS])


setattr(fill, "__signature__", _fill_signature())  # noqa: B010 - what typer reads


def start(given: dict[str, Any], *, fills: bool = False) -> None:
    """Run the command with the options `given` on the command line."""
    options = read_options(given)
    supervision = read_supervision(given)
    pool = open_pool(given["ray"], given["actors"])
    if pool is not None and (given["file"] is None or supervision is not None or given["watch"]):
        raise RequestError("--ray decodes a --file of prompts, and cannot be combined with --watch, --audit or --risk")
    output = Output(as_json=given["json"], pool=pool, **{name: given[name] for name in _OUTPUT})
    names = ("device", "dtype", "threads", "quantize", "packed")
    machine = {name: given[name] for name in names} | {"compile": given["compile_"]}
    model = at_revision(given["model"], given["revision"])
    run(output, options, model, given["prompt"], given["file"], machine, supervision, fills=fills)


def read_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a request, by the keywords of `Engine.generate`."""
    options = {name: given[name] for name in _OPTIONS if given.get(name) is not None}
    if given.get("stop_string"):
        options["stop_strings"] = given["stop_string"]
    settings = given["set_"] or []
    if given["recipe"].endswith(".json"):
        return options | {"recipe": given["recipe"], "settings": " ".join(settings)}
    return options | {"recipe": " ".join([given["recipe"], *settings])}


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
            raise RequestError(f"--out and --trace both write to {self.trace}; give each its own file")
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
            say(f"resuming: {count(len(ledger.lines), 'result')} of an interrupted run found", style="dim")
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
