"""`foretell bench`: how much faster a model decodes a queue of prompts, by recipe and by how the queue is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from foretell.errors import RequestError

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
    model: Annotated[str, Argument(help="A checkpoint folder, or a bundled model by its name.")],
    file: Annotated[str | None, Option(help="Prompts: JSON lines, or a .txt; default: word problems.")] = None,
    requests: Annotated[int, Option(help="Word problems, where there is no file.")] = 16,
    recipe: Annotated[
        list[str] | None, Option("--recipe", "-r", help="The others are compared with the first.")
    ] = None,
    batch_size: Annotated[int, Option(help="Prompts decoded together.")] = 8,
    rounds: Annotated[int, Option(help="Runs of each way, after one to warm up.")] = 3,
    max_new_tokens: Annotated[int | None, Option(help="Positions of the window.")] = None,
    steps: Annotated[int | None, Option(help="Most steps to take.")] = None,
    block_length: Annotated[int | None, Option(help="Positions of a block.")] = None,
    suffix: Annotated[str | None, Option(help='Text pinned before the answer: "The answer is".')] = None,
    answer_length: Annotated[int | None, Option(help="Tokens of the answer.")] = None,
    device: Annotated[str, Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    dtype: Annotated[str | None, Option(help="float32, bfloat16 or float16.")] = None,
    threads: Annotated[int | None, Option(help="Of torch; default: 1 if the model is small.")] = None,
    compile_: Annotated[bool, Option("--compile", help="Use torch.compile.")] = False,
    quantize: Annotated[str | None, Option(help="int8: round the weights.")] = None,
) -> None:
    """Compare recipes, and a queue served one by one, in batches that finish together, and continuously.

    Ratios of medians; all ways take turns in this process. One by one under the first recipe is 1.

    foretell bench tiny --requests 32
    """
    from foretell.bench.queues import serving_modes  # noqa: PLC0415
    from foretell.bench.timing import time_in_turns  # noqa: PLC0415
    from foretell.cli.console import note, out, say  # noqa: PLC0415
    from foretell.cli.model import open_engine  # noqa: PLC0415

    given = dict(locals())
    options = {name: given[name] for name in _OPTIONS if given[name] is not None}
    for name in ("requests", "batch_size", "rounds"):
        if given[name] < 1:
            raise RequestError(f"--{name.replace('_', '-')} must be at least 1, got {given[name]}")
    prompts = _prompts(file, requests)
    engine = open_engine(model, device, dtype, threads, compile=compile_, quantize=quantize)
    texts = tuple(dict.fromkeys(recipe or RECIPES))
    orders = {text: engine.template(recipe=text, **_window(engine, options)) for text in texts}
    note(remark for order in orders.values() for remark in order.notes)
    every = {
        (text, service): way
        for text, order in orders.items()
        for service, way in serving_modes(engine, [(prompt, order) for prompt in prompts], batch_size).items()
    }
    named = {f"{service}, {text}": way for (text, service), way in every.items()}
    found = time_in_turns(
        named, rounds, lambda name, turn, took: say(f"{turn}/{rounds}  {took:7.2f} s  {name}", style="dim")
    )
    console = out(None if out().is_terminal else 120)
    console.print(_table(dict(zip(every, found.values(), strict=True))))


_OPTIONS = ("max_new_tokens", "steps", "block_length", "suffix", "answer_length")


def _prompts(file: str | None, count: int) -> list[Prompt]:
    from foretell.cli.prompts import gather  # noqa: PLC0415
    from foretell.evaluation.benchmarks.bundled import BUNDLED  # noqa: PLC0415

    if file is not None:
        return [one.prompt for one in gather(None, file)]
    return [one.prompt for one in BUNDLED["word"].examples(None, count, SEED)]


def _window(engine: Engine, given: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, over the layout that the model describes, or else that of the word problems."""
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
