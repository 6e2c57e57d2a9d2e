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
    from foretell.engine.prompt_files import Asked

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
    wish = Wish(options, batch_size, as_json=json, trace=trace, out=out, watch=watch, delay=delay)
    machine = {name: given[name] for name in ("device", "dtype", "threads", "quantize")} | {"compile": compile_}
    run(wish, model, prompt, file, machine)


_OPTIONS = (
    *("layout", "max_new_tokens", "steps", "block_length", "remasking", "suffix", "answer_length", "answer_start"),
    *("temperature", "top_p", "top_k", "cfg_scale", "stop_at_eos", "stop", "chat", "seed"),
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What to decode with, and what to do with the results."""

    options: dict[str, Any]
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


def run(wish: Wish, model: str, prompt: str | None, file: str | None, machine: dict[str, Any]) -> None:
    """Everything that can be wrong is found before the first step; a prompt of a file fails alone."""
    from foretell.cli.console import note  # noqa: PLC0415
    from foretell.cli.model import open_engine  # noqa: PLC0415
    from foretell.cli.prompts import gather  # noqa: PLC0415
    from foretell.engine.certificate import stop_of  # noqa: PLC0415
    from foretell.recipes.presets import parse  # noqa: PLC0415

    asked = gather(prompt, file)
    parse(wish.options["recipe"])  # a wrong name should not have to wait for the weights
    if "stop" in wish.options:
        wish.options["stop"] = stop_of(wish.options["stop"])
    engine = open_engine(model, **machine)
    note(engine.order(**wish.options).notes)
    failed = deliver(wish, engine, asked)
    if failed:
        raise Exit(code=1)


def deliver(wish: Wish, engine: Engine, asked: list[Asked]) -> int:
    """Decode, and hand every completion to whoever wants it as soon as it is there; returns how many failed."""
    from foretell.cli.console import problem, say  # noqa: PLC0415
    from foretell.cli.results import Ledger, Printer, line_of, totals  # noqa: PLC0415
    from foretell.engine.completion import Failure  # noqa: PLC0415
    from foretell.engine.trace_files import save_traces  # noqa: PLC0415

    printer = Printer([one.id for one in asked], wish.as_json)
    finished: dict[int, Completion] = {}
    started = time.perf_counter()
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(wish.out)) if wish.out else None
        for index, done in _completions(wish, engine, asked, stack):
            if isinstance(done, Failure):
                if not asked[index].where:  # the one prompt of a command
                    raise done.error
                problem(f"error: {asked[index].where}: {done}")
            else:
                finished[index] = done
            if ledger is not None:
                ledger.add(line_of(asked[index].id, done))
            if ledger is None or wish.as_json:
                printer.add(index, done)
        if wish.trace is not None:
            save_traces(wish.trace, [one.trace for _, one in sorted(finished.items()) if one.trace is not None])
    if len(asked) > 1:
        say(totals(list(finished.values()), time.perf_counter() - started), style="dim")
    return len(asked) - len(finished)


def _completions(
    wish: Wish, engine: Engine, asked: list[Asked], stack: ExitStack
) -> Iterator[tuple[int, Completion | Failure]]:
    traced = wish.trace is not None
    if wish.watch:
        yield from _watched(wish, engine, asked)
        return
    prompts = [one.prompt for one in asked]
    tick = _progress(len(prompts), stack)
    results = engine.complete(prompts, trace=traced, batch_size=wish.batch_size, errors="return", **wish.options)
    for index, done in results:
        yield index, done
        tick()


def _watched(wish: Wish, engine: Engine, asked: list[Asked]) -> Iterator[tuple[int, Completion | Failure]]:
    from foretell.cli.canvas import speller  # noqa: PLC0415
    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.cli.watch import watch  # noqa: PLC0415
    from foretell.engine.completion import Failure  # noqa: PLC0415

    spell, traced, order = speller(engine.codec), wish.trace is not None, engine.order(**wish.options)
    for index, one in enumerate(asked):
        try:
            engine.request(one.prompt, order)
        except ForetellError as error:
            yield index, Failure(error)
            continue
        frames = engine.stream(one.prompt, trace=traced, **wish.options)
        title = wish.options["recipe"] if len(asked) == 1 else f"{one.id}: {wish.options['recipe']}"
        yield index, watch(frames, spell, out(), title, wish.delay)


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
