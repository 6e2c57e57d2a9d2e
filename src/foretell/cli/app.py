"""The `foretell` program: its commands, its version and its exit codes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from foretell.cli import (
    audit,
    bench,
    calibrate,
    decide,
    demo,
    distil,
    evaluate,
    generate,
    judge,
    plan,
    plot,
    recipes,
    reproduce,
    serve,
    study,
    tasks,
    trace,
    tune,
    vocab,
)
from foretell.cli.console import problem
from foretell.cli.process import Terminated, exit_code, quiet_pipes
from foretell.errors import ForetellError, PermissionNeededError
from foretell.version import __version__

FAILED, USAGE = 1, 2
RESUMABLE = ("eval", "sweep", "study", "reproduce", "tune", "calibrate", "judge", "train", "distil")
TRAIN = "foretell.cli.train"
HELP = {"help_option_names": ["-h", "--help"]}


class Program(TyperGroup):
    """Turns the errors of commands into one line and an exit code; only a bug shows a traceback."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with quiet_pipes():  # `foretell --help`
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with quiet_pipes():
            return self._invoke(ctx)

    def _invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PermissionNeededError:
            problem(f"error: {PermissionNeededError('--allow-code-execution')}")
            raise typer.Exit(USAGE) from None
        except ForetellError as error:
            problem(f"error: {error}")
            raise typer.Exit(USAGE) from None
        except KeyboardInterrupt as stop:
            resume = "; run the same command again to resume" if ctx.invoked_subcommand in RESUMABLE else ""
            problem(("terminated" if isinstance(stop, Terminated) else "interrupted") + resume, style="yellow")
            raise typer.Exit(exit_code(stop)) from None
        except BrokenPipeError:
            raise
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
app.command()(generate.fill)
app.command()(serve.serve)
app.command()(decide.decide)
app.add_typer(trace.app, name="trace")
app.command()(recipes.recipes)
app.command()(tasks.tasks)
app.command()(vocab.vocab)
app.command()(demo.demo)
app.command("eval")(evaluate.evaluate)
app.command()(study.sweep)
app.command()(study.study)
app.command()(plot.plot)
app.command()(reproduce.reproduce)
app.command()(bench.bench)
app.command()(plan.plan)
app.command()(distil.distil)
app.command()(tune.tune)
app.command()(calibrate.calibrate)
app.command()(judge.judge)
app.command()(audit.audit)

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
        command = typer.main.get_command(inner)
        with command.make_context("foretell train", ctx.args) as given:
            command.invoke(given)
