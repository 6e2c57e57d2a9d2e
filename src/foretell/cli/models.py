"""`foretell models`: list the models that can be loaded, and what they were checked against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def models() -> None:
    """List bundled models, supported families, and the models in your Hugging Face cache.

    Every command also accepts a folder with config.json, safetensors and a tokenizer. This command downloads nothing.

    foretell models
    """
    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.models.catalogue import bundled_models, families  # noqa: PLC0415
    from foretell.models.hub import cache_folder  # noqa: PLC0415
    from foretell.models.memory import format_bytes  # noqa: PLC0415

    console = out()
    console.print("Bundled models", style="bold")
    sizes = {one: f"{one.parameters / 1e6:.1f}M parameters, {format_bytes(one.bytes)}" for one in bundled_models()}
    console.print(_table((one.name, f"{size}: {one.about}") for one, size in sizes.items()))
    console.print("\nSupported families", style="bold")
    console.print(_table((one.name, f"{one.models}\nChecked: {one.checked}") for one in families()))
    console.print(f"\nIn the Hugging Face cache ({cache_folder()})", style="bold", markup=False, soft_wrap=True)
    console.print(_table(_cached()))


def _cached() -> Iterator[tuple[str, str]]:
    from foretell.models.hub import cached_models  # noqa: PLC0415
    from foretell.models.memory import format_bytes  # noqa: PLC0415

    every = cached_models()
    if not every:
        yield "none", "a command with owner/name as its model downloads it"
    for one in every:
        state = "not supported" if one.family is None else one.family
        missing = "" if one.complete else ", without weights as safetensors"
        yield one.name, f"{format_bytes(one.bytes)}, {state}{missing}"


def _table(rows: Iterator[tuple[str, str]]) -> Table:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold cyan", overflow="fold", max_width=40, min_width=10)
    table.add_column(ratio=1)
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    return table
