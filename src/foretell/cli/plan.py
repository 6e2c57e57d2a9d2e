"""`foretell plan`: predict memory, step times and throughput on a device, without weights and without running."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from foretell.cli.model import Revision

if TYPE_CHECKING:
    from foretell.plan.devices import Device
    from foretell.plan.predict import Memory, Prediction
    from foretell.plan.shapes import ModelShape

DEVICE = "Device"
TITLE = "prediction, nothing was run: times are lower bounds (rooflines), and memory is an estimate"


def plan(
    model: Annotated[
        str | None,
        Argument(help="llada-8b, dream-7b, a folder with config.json, or a Hugging Face model (owner/name)."),
    ] = None,
    device: Annotated[str | None, Option(help="GPU, e.g. h100; --devices lists them.", rich_help_panel=DEVICE)] = None,
    tflops: Annotated[
        float | None, Option(help="Peak TFLOP/s of a device that is not in the list.", rich_help_panel=DEVICE)
    ] = None,
    bandwidth: Annotated[
        float | None, Option(help="Memory bandwidth of that device in GB/s.", rich_help_panel=DEVICE)
    ] = None,
    memory: Annotated[float | None, Option(help="Memory of that device in GB.", rich_help_panel=DEVICE)] = None,
    window: Annotated[int, Option(help="Length of the response window in tokens.")] = 256,
    prompt: Annotated[int, Option(help="Length of a prompt in tokens.")] = 128,
    batch: Annotated[int, Option("--batch", "--batch-size", help="Number of rows decoded together.")] = 8,
    recipe: Annotated[str, Option("--recipe", "-r", help="Preset or recipe text (see `foretell recipes`).")] = "full",
    steps: Annotated[
        int | None, Option(help="Step at which the stopping rule stops, e.g. 160 (default: it never does).")
    ] = None,
    tokens_per_step: Annotated[
        float, Option(help="Number of masks that a parallel transfer fills per step, e.g. 3.25.")
    ] = 1.0,
    answer_length: Annotated[int, Option(help="Number of positions that the stopping rule watches.")] = 5,
    dtype: Annotated[
        str, Option(help="Data type: bfloat16 (bf16), float16 (fp16) or float32.", rich_help_panel=DEVICE)
    ] = "bfloat16",
    revision: Revision = None,
    devices: Annotated[
        bool, Option("--devices", help="List the known devices with their sources, and exit.", rich_help_panel=DEVICE)
    ] = False,
    json: Annotated[bool, Option("--json", help="Print the prediction as JSON.")] = False,
) -> None:
    """Predict memory and step times on a GPU, without running anything.

    Weights are neither read nor downloaded. Times are lower bounds, from arithmetic and memory bandwidth. Real times
    are longer.

    foretell plan llada-8b --device h100 --window 256 --batch 16 \\
        --recipe prophet --steps 160
    """
    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.errors import RequestError  # noqa: PLC0415
    from foretell.models.device import parse_dtype  # noqa: PLC0415
    from foretell.plan.devices import device_named, own_device  # noqa: PLC0415
    from foretell.plan.predict import predict  # noqa: PLC0415
    from foretell.plan.shapes import find_shape  # noqa: PLC0415
    from foretell.recipes.presets import parse  # noqa: PLC0415

    console = out(None if out().is_terminal else 140)
    if devices:
        console.print(_device_table())
        return
    if device is not None and not tflops == bandwidth == memory is None:
        raise RequestError("--device names a known device; leave out --tflops, --bandwidth and --memory")
    if model is None:
        raise RequestError("name a model: llada-8b, dream-7b, a folder, or owner/name on the hub")
    target = own_device(tflops, bandwidth, memory) if device is None else device_named(device)
    kind = parse_dtype(dtype)
    if kind is None:
        raise RequestError("--dtype auto depends on stored weights, which are not read; name a dtype")
    how = parse(recipe)
    shape = find_shape(model, revision)
    found = predict(
        shape, target, kind, how,
        rows=batch, prompt=prompt, window=window, answer=min(answer_length, window),
        tokens_per_step=tokens_per_step, steps=steps,
    )  # fmt: skip
    name = str(kind).removeprefix("torch.")
    if json:
        from json import dumps  # noqa: PLC0415

        asked = {"recipe": str(how), "prompt": prompt, "window": window, "tokens_per_step": tokens_per_step}
        console.print(
            dumps(
                {"prediction": TITLE, "model": shape.name, "parameters": shape.parameters, "dtype": name}
                | {"device": asdict(target)} | asked | asdict(found)
                | {"requests_per_second": found.requests_per_second, "memory_total": found.memory.total}
            ),
            soft_wrap=True,
            markup=False,
        )  # fmt: skip
        return
    _show(console, shape, target, name, found, f"{recipe}, prompt of {prompt} and window of {window} tokens")


def _show(console: Any, shape: ModelShape, device: Device, dtype: str, found: Prediction, asked: str) -> None:
    from foretell.cli.wording import count  # noqa: PLC0415

    rate = device.half if dtype != "float32" else device.single
    console.print(f"{shape.name}: {shape.parameters / 1e9:.3g}B parameters in {dtype}", markup=False)
    console.print(
        f"{device.name}: {rate / 1e12:.4g} TFLOP/s, {device.bandwidth / 1e9:.4g} GB/s ({device.source})", markup=False
    )
    console.print(asked, markup=False)
    console.print(TITLE, style="yellow")
    console.print(_memory_line(found.memory, found.rows))
    if found.rows_fit is not None:
        console.print(
            f"rows      {found.rows_fit} fit into the memory; beyond {found.rows_useful}, more rows hardly help"
        )
    else:
        console.print(f"rows      beyond {found.rows_useful}, more rows hardly raise the throughput")
    console.print(_pass_table(found))
    per_second = f"{found.requests_per_second:.3g} requests per second"
    console.print(
        f"request   {count(found.steps, 'step')}, at least {_seconds(found.request.seconds)} with "
        f"{count(found.rows, 'row')}; at most {per_second}"
    )


def _memory_line(memory: Memory, rows: int) -> str:
    from foretell.models.memory import format_bytes  # noqa: PLC0415

    parts = [f"weights {format_bytes(memory.weights)}"]
    if memory.stored:
        parts.append(f"keys and values {format_bytes(memory.stored)}")
    parts.append(f"working memory {format_bytes(memory.working)}")
    line = f"memory    {format_bytes(memory.total)} for {rows} rows: {', '.join(parts)}"
    if memory.device is None:
        return line
    fits = "fits into" if memory.total <= memory.device else "DOES NOT FIT into"
    return f"{line}; {fits} {format_bytes(memory.device)}"


def _pass_table(found: Prediction) -> Any:
    from rich.table import Table  # noqa: PLC0415

    made = Table("at least", box=None, pad_edge=False)
    for heading in ("per request", "columns", "by arithmetic", "by bandwidth", "limited by"):
        made.add_column(heading, justify="right")
    for kind in found.kinds:
        limit = "arithmetic" if kind.bound.arithmetic >= kind.bound.bandwidth else "bandwidth"
        size = f"{found.rows} x {kind.columns:.0f}"
        times = (_seconds(kind.bound.arithmetic), _seconds(kind.bound.bandwidth))
        made.add_row(f"a pass over the {kind.name}", str(kind.count), size, *times, limit)
    made.add_row(
        "a step, on average", str(found.steps), "", _seconds(found.step.arithmetic), _seconds(found.step.bandwidth), ""
    )
    return made


def _device_table() -> Any:
    from rich.table import Table  # noqa: PLC0415

    from foretell.plan.devices import DEVICES  # noqa: PLC0415

    made = Table("--device", "name", box=None, pad_edge=False)
    for heading in ("TFLOP/s half", "float32", "GB/s", "GB"):
        made.add_column(heading, justify="right")
    made.add_column("source")
    for name, one in DEVICES.items():
        numbers = (one.half / 1e12, one.single / 1e12, one.bandwidth / 1e9, (one.memory or 0) / 1e9)
        made.add_row(name, one.name, *(f"{number:.4g}" for number in numbers), one.source)
    return made


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"
