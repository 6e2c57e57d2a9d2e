"""`foretell generate`: decode one prompt or a file of them, and say what it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from foretell.errors import ForetellError, RequestError

if TYPE_CHECKING:
    from foretell.engine.completion import Completion, Failure
    from foretell.engine.engine import Engine
    from foretell.engine.options import RequestTemplate
    from foretell.engine.prompt_files import FilePrompt

CHAT = "Put text into the chat template, or take it as it is; default: by the model's own template if it has one."
DECODING, OUTPUT, MACHINE = "Decoding", "Output", "Machine"


def _decoding(text: str, *names: str) -> Any:
    return Option(*names, help=text, rich_help_panel=DECODING)


def generate(
    model: Annotated[str, Argument(help="A checkpoint folder, or a bundled model by its name.")],
    prompt: Annotated[str | None, Argument(help="What to answer; - reads it from standard input.")] = None,
    file: Annotated[str | None, Option(help="Prompts: JSON lines, or a .txt with one a line; - for stdin.")] = None,
    recipe: Annotated[str, _decoding("A preset or a whole recipe; see `foretell recipes`.", "--recipe", "-r")] = "full",
    set_: Annotated[list[str] | None, _decoding("Change one parameter: stop.tau.high=8.", "--set", "-s")] = None,
    layout: Annotated[str | None, _decoding("One of the layouts that the model describes.")] = None,
    max_new_tokens: Annotated[int | None, _decoding("Positions of the window.")] = None,
    steps: Annotated[int | None, _decoding("Most steps to take; default: one for each position.")] = None,
    block_length: Annotated[int | None, _decoding("Positions of a block.")] = None,
    remasking: Annotated[str | None, _decoding("low_confidence, random, topk_margin, entropy, ...")] = None,
    suffix: Annotated[str | None, _decoding('Text pinned before the answer: "The answer is".')] = None,
    answer_length: Annotated[int | None, _decoding("Tokens of the answer.")] = None,
    answer_start: Annotated[int | None, _decoding("Offset of the answer; default: at the window's end.")] = None,
    temperature: Annotated[float | None, _decoding("Sample at this temperature; default: greedy.")] = None,
    top_p: Annotated[float | None, _decoding("Sample from this share of the probability.")] = None,
    top_k: Annotated[int | None, _decoding("Sample from so many tokens.")] = None,
    cfg_scale: Annotated[float | None, _decoding("Scale of classifier-free guidance.")] = None,
    stop_at_eos: Annotated[bool | None, _decoding("Compute nothing behind the text's end.")] = None,
    stop: Annotated[str | None, _decoding("Another stopping rule, or a certified one's .json.")] = None,
    stop_string: Annotated[list[str] | None, _decoding("Cut the text before this; several times for several.")] = None,
    chat: Annotated[bool | None, _decoding(CHAT, "--chat/--raw")] = None,
    seed: Annotated[int, _decoding("Of everything random.")] = 0,
    batch_size: Annotated[int, Option(help="Prompts decoded together.", rich_help_panel=MACHINE)] = 8,
    device: Annotated[str, Option(help="cpu, cuda, cuda:1, ...", rich_help_panel=MACHINE)] = "cpu",
    dtype: Annotated[str | None, Option(help="float32, bfloat16 or float16.", rich_help_panel=MACHINE)] = None,
    threads: Annotated[int | None, Option(help="Of torch; 1 if the model is small.", rich_help_panel=MACHINE)] = None,
    compile_: Annotated[bool, Option("--compile", help="Use torch.compile.", rich_help_panel=MACHINE)] = False,
    quantize: Annotated[str | None, Option(help="int8: round the weights.", rich_help_panel=MACHINE)] = None,
    json: Annotated[bool, Option("--json", help="One JSON object a line.", rich_help_panel=OUTPUT)] = False,
    trace: Annotated[Path | None, Option(help="Save every step to this file.", rich_help_panel=OUTPUT)] = None,
    out: Annotated[Path | None, Option(help="Write JSON lines here, not to stdout.", rich_help_panel=OUTPUT)] = None,
    watch: Annotated[bool, Option("--watch", "-w", help="Show it happen.", rich_help_panel=OUTPUT)] = False,
    delay: Annotated[float, Option(help="Seconds between watched steps.", rich_help_panel=OUTPUT)] = 0.0,
) -> None:
    """Decode a prompt, or a file of them.

    foretell generate tiny "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?" -r prophet -w
    """
    given = dict(locals())
    options = {name: given[name] for name in _OPTIONS if given[name] is not None}
    if stop_string:
        options["stop_strings"] = stop_string
    options["recipe"] = " ".join([recipe, *(set_ or [])])
    output = Output(batch_size, as_json=json, trace=trace, out=out, watch=watch, delay=delay)
    machine = {name: given[name] for name in ("device", "dtype", "threads", "quantize")} | {"compile": compile_}
    run(output, options, model, prompt, file, machine)


_OPTIONS = (
    *("layout", "max_new_tokens", "steps", "block_length", "remasking", "suffix", "answer_length", "answer_start"),
    *("temperature", "top_p", "top_k", "cfg_scale", "stop_at_eos", "stop", "chat", "seed"),
)


@dataclass(frozen=True, slots=True)
class Output:
    """What to do with the results."""

    batch_size: int
    as_json: bool = False
    trace: Path | None = None
    out: Path | None = None
    watch: bool = False
    delay: float = 0.0

    def __post_init__(self) -> None:
        if self.watch and self.as_json:
            raise RequestError("--watch draws on stdout, where --json writes; use one of them, or --watch with --out")
        if self.batch_size < 1:
            raise RequestError(f"--batch-size must be at least 1, got {self.batch_size}")
        for path in (self.trace, self.out):
            if path is not None and not path.absolute().parent.is_dir():
                raise RequestError(f"cannot write {path}: there is no folder {path.parent}")
            if path is not None and path.is_dir():
                raise RequestError(f"cannot write {path}: it is a folder")


def run(
    output: Output,
    options: dict[str, Any],
    model: str,
    prompt: str | None,
    file: str | None,
    machine: dict[str, Any],
) -> None:
    """Find everything that can be wrong before the first step; a prompt of a file fails alone."""
    from foretell.cli.console import note  # noqa: PLC0415
    from foretell.cli.model import open_engine  # noqa: PLC0415
    from foretell.cli.prompts import gather  # noqa: PLC0415
    from foretell.engine.certificate import stop_of  # noqa: PLC0415
    from foretell.recipes.presets import parse  # noqa: PLC0415

    asked = gather(prompt, file)
    parse(options["recipe"])  # a wrong name should not have to wait for the weights
    if "stop" in options:
        options["stop"] = stop_of(options["stop"])
    engine = open_engine(model, **machine)
    template = engine.template(**options)
    note(template.notes)
    failed = deliver(output, engine, template, asked, title=options["recipe"])
    if failed:
        raise Exit(code=1)


def deliver(output: Output, engine: Engine, template: RequestTemplate, asked: list[FilePrompt], title: str) -> int:
    """Decode, and write or print each completion as soon as it exists. Returns how many prompts failed."""
    from foretell.cli.console import problem, say  # noqa: PLC0415
    from foretell.cli.results import Ledger, Printer, line_of, totals  # noqa: PLC0415
    from foretell.engine.completion import Failure  # noqa: PLC0415
    from foretell.engine.trace_files import save_traces  # noqa: PLC0415

    printer = Printer([one.id for one in asked], output.as_json)
    finished: dict[int, Completion] = {}
    started = time.perf_counter()
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(output.out)) if output.out else None
        for index, done in _completions(output, engine, template, asked, title, stack):
            if isinstance(done, Failure):
                if not asked[index].where:  # the one prompt of a command
                    raise done.error
                problem(f"error: {asked[index].where}: {done}")
            else:
                finished[index] = done
            if ledger is not None:
                ledger.add(line_of(asked[index].id, done))
            if ledger is None or output.as_json:
                printer.add(index, done)
        if output.trace is not None:
            save_traces(output.trace, [one.trace for _, one in sorted(finished.items()) if one.trace is not None])
    if len(asked) > 1:
        say(totals(list(finished.values()), time.perf_counter() - started), style="dim")
    return len(asked) - len(finished)


def _completions(
    output: Output, engine: Engine, template: RequestTemplate, asked: list[FilePrompt], title: str, stack: ExitStack
) -> Iterator[tuple[int, Completion | Failure]]:
    traced = output.trace is not None
    if output.watch:
        yield from _watch(output, engine, template, asked, title)
        return
    pairs = [(one.prompt, template) for one in asked]
    tick = _progress(len(pairs), stack)
    for index, done in engine.generate_iter(pairs, trace=traced, batch_size=output.batch_size, errors="return"):
        yield index, done
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
        try:
            frames = engine.stream_template(one.prompt, template, trace=output.trace is not None)
        except ForetellError as error:
            yield index, Failure(error)
            continue
        heading = title if len(asked) == 1 else f"{one.id}: {title}"
        yield index, watch(frames, spell, out(), heading, output.delay)


def _progress(total: int, stack: ExitStack) -> Any:
    """A bar on stderr for many prompts, if someone is there to look at it; the function that moves it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    from foretell.cli.console import err  # noqa: PLC0415

    console = err()
    if total == 1 or not console.is_terminal:
        return lambda: None
    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # A redirected stdout must stay what it is; only on one and the same terminal do both have to share.
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty())
    stack.enter_context(bar)
    task = bar.add_task("decoding", total=total)
    return lambda: bar.advance(task)
