"""`foretell bench`: compare how fast a queue of prompts is decoded, by recipe and by kind of batching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from foretell.cli.model import Compile, Device, Dtype, Model, Packed, Quantize, Revision, Threads, at_revision
from foretell.cli.usage import MACHINE, WINDOW
from foretell.errors import RequestError, whole

if TYPE_CHECKING:
    from rich.table import Table

    from foretell.bench.queues import QueueResult
    from foretell.bench.timing import Timings
    from foretell.engine.engine import Engine, Prompt

RECIPES = (
    "full",
    "full stop=prophet(reduce=min)",
    "threshold cache=dual stop=prophet(reduce=min,clock=tokens) stop_at_eos=true",
)
SEED = 0


def bench(
    model: Model,
    file: Annotated[str | None, Option(help="File of prompts: JSON lines or .txt (default: word problems).")] = None,
    requests: Annotated[int, Option(help="Number of word problems, if no file is given.")] = 16,
    recipe: Annotated[
        list[str] | None, Option("--recipe", "-r", help="Recipe to time; the first is the baseline. Repeatable.")
    ] = None,
    batch_size: Annotated[int, Option(help="Number of prompts decoded together.", rich_help_panel=MACHINE)] = 8,
    rounds: Annotated[int, Option(help="Number of timed runs, after one warm-up run.")] = 3,
    max_new_tokens: Annotated[
        int | None, Option(help="Length of the response window in tokens.", rich_help_panel=WINDOW)
    ] = None,
    steps: Annotated[
        int | None, Option(help="Maximum number of steps (default: one per position).", rich_help_panel=WINDOW)
    ] = None,
    block_length: Annotated[int | None, Option(help="Length of a block in tokens.", rich_help_panel=WINDOW)] = None,
    suffix: Annotated[
        str | None,
        Option(help='Text that is fixed before the answer, e.g. "The answer is".', rich_help_panel=WINDOW),
    ] = None,
    answer_length: Annotated[int | None, Option(help="Length of the answer in tokens.", rich_help_panel=WINDOW)] = None,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    compile_: Compile = False,
    quantize: Quantize = None,
    packed: Packed = None,
) -> None:
    """Compare the speed of recipes on this machine.

    Prompts are decoded one by one, in synchronous batches (which end when all their rows are done) and in continuous
    batches (whose rows leave when they are done). The table shows ratios of median times, relative to the first recipe
    one by one. All runs take turns in one process.

    foretell bench tiny --requests 32
    """
    from foretell.bench.queues import serving_modes  # noqa: PLC0415
    from foretell.bench.timing import time_in_turns  # noqa: PLC0415
    from foretell.cli.console import note, out, say  # noqa: PLC0415
    from foretell.cli.model import introduce, open_engine  # noqa: PLC0415

    given = dict(locals())
    options = {name: given[name] for name in _OPTIONS if given[name] is not None}
    for name in ("requests", "batch_size", "rounds"):
        whole(f"--{name.replace('_', '-')}", given[name], 1, error=RequestError)
    prompts = _read_prompts(file, requests)
    engine = open_engine(
        at_revision(model, revision), device, dtype, threads, compile=compile_, quantize=quantize, packed=packed
    )
    texts = tuple(dict.fromkeys(recipe or RECIPES))
    templates = {text: engine.template(recipe=text, **_with_layout(engine, options)) for text in texts}
    note(remark for template in templates.values() for remark in template.notes)
    introduce(engine)
    every = {
        (text, service): way
        for text, template in templates.items()
        for service, way in serving_modes(engine, [(prompt, template) for prompt in prompts], batch_size).items()
    }
    named = {f"{service}, {text}": way for (text, service), way in every.items()}
    found = time_in_turns(
        named, rounds, lambda name, turn, took: say(f"{turn}/{rounds}  {took:7.2f} s  {name}", style="dim")
    )
    console = out(None if out().is_terminal else 120)
    console.print(_table(dict(zip(every, found.values(), strict=True))))


_OPTIONS = ("max_new_tokens", "steps", "block_length", "suffix", "answer_length")


def _read_prompts(file: str | None, count: int) -> list[Prompt]:
    from foretell.cli.prompts import gather  # noqa: PLC0415
    from foretell.evaluation.benchmarks.bundled import BUNDLED  # noqa: PLC0415

    if file is not None:
        return [one.prompt for one in gather(None, file)]
    return [one.prompt for one in BUNDLED["word"].examples(None, count, SEED)]


def _with_layout(engine: Engine, given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options; a model without layouts also gets the layout of the word problems."""
    from foretell.evaluation.benchmarks.bundled import BUNDLED  # noqa: PLC0415

    return given if engine.layouts else dict(BUNDLED["word"].options) | given


def _table(found: dict[tuple[str, str], Timings[QueueResult]]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    from foretell.cli.wording import ratio  # noqa: PLC0415

    made = Table("recipe", "served", box=None)
    for heading in ("clock", "same tokens", "columns", "waste"):
        made.add_column(heading, justify="right")
    base = next(iter(found.values()))
    last = None
    for (recipe, service), one in found.items():
        result, alone = one.result, found[recipe, "one by one"].result
        same = sum(a == b for a, b in zip(result.tokens, alone.tokens, strict=True))
        made.add_row(
            "" if recipe == last else recipe,
            service,
            f"{base.median / one.median:.2f}x",
            f"{same}/{len(result.tokens)}",
            ratio(base.result.usage.columns_needed, result.usage.columns_needed),
            f"{result.usage.padding:.1%}",
        )
        last = recipe
    return made
