"""The `foretell` program: its commands, its version and its exit codes."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from foretell.cli import bench, calibrate, demo, distil, evaluate, generate, judge, recipes, tasks, trace, vocab
from foretell.cli.console import problem
from foretell.errors import ForetellError, PermissionNeededError
from foretell.version import __version__

FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
TRAIN = "foretell.cli.train"
HELP = {"help_option_names": ["-h", "--help"]}


class Program(TyperGroup):
    """Turns the errors of commands into one line and an exit code; only a bug shows a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PermissionNeededError:
            problem(f"error: {PermissionNeededError('--allow-code-execution')}")
            raise typer.Exit(USAGE) from None
        except ForetellError as error:
            problem(f"error: {error}")
            raise typer.Exit(USAGE) from None
        except KeyboardInterrupt:
            problem("interrupted", style="yellow")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader (e.g. `head`) has exited; the flush at exit would fail again, so stdout becomes /dev/null.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except OSError as error:  # e.g. a full disk or a file without write permission
            problem(f"error: {error}")
            raise typer.Exit(FAILED) from None


app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foretell {__version__}")
        raise typer.Exit


@app.callback()
def program(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Decode diffusion language models and stop as soon as the answer is settled."""


app.command()(generate.generate)
app.add_typer(trace.app, name="trace")
app.command()(recipes.recipes)
app.command()(tasks.tasks)
app.command()(vocab.vocab)
app.command()(demo.demo)
app.command("eval")(evaluate.evaluate)
app.command()(evaluate.sweep)
app.command()(bench.bench)
app.command()(distil.distil)
app.command()(calibrate.calibrate)
app.command()(judge.judge)

if find_spec(TRAIN) is not None:

    @app.command(
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        help="Train a masked diffusion model in LLaDA's format.",
    )
    def train(ctx: typer.Context) -> None:
        # Imported only here: training imports everything, and `foretell --help` should not wait for that.
        from importlib import import_module  # noqa: PLC0415

        inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        inner.command(context_settings=HELP)(import_module(TRAIN).train)
        inner(ctx.args, prog_name="foretell train", standalone_mode=False)
