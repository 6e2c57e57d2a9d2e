"""`foretell plot`: the pictures of a results folder or a certified file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from foretell.extras import require_extra


def plot(
    path: Annotated[
        Path, Argument(help="Folder of an evaluation, sweep, study or calibration, or a certified file (.json).")
    ],
    out: Annotated[Path | None, Option(help="Folder for the pictures (default: next to the results).")] = None,
    format_: Annotated[str, Option("--format", help="File format: png, svg or pdf.")] = "png",
) -> None:
    """Draw the pictures of a results folder or a certified file.

    Shows accuracy against cost, how early answers are right, and risk against speedup.

    foretell plot results/word
    """
    require_extra("plots")
    require_extra("lab")
    draw(path, out, format_)


def draw(path: Path, out: Path | None = None, kind: str = "png") -> None:
    """Write every picture of `path` to the folder `out`, and say which."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from foretell.cli.console import say  # noqa: PLC0415
    from foretell.errors import RequestError, one_of  # noqa: PLC0415
    from foretell.plots.results import draw_results  # noqa: PLC0415
    from foretell.storage import make_folder, writing  # noqa: PLC0415

    one_of("format", kind, ("png", "svg", "pdf"), RequestError)
    folder = out or (path if path.is_dir() else path.parent)
    figures = draw_results(path)
    make_folder(folder)
    for name, figure in figures.items():
        picture = folder / f"{name}.{kind}"
        with writing(picture):
            figure.savefig(picture, dpi=150)
        say(f"wrote {picture}", style="dim")
