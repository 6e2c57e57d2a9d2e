"""The `foretell` program: its commands, its version and its exit codes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foretell.cli.commands import COMMANDS, add_commands
from foretell.cli.console import problem
from foretell.cli.process import Terminated, exit_code, quiet_pipes
from foretell.cli.usage import Group
from foretell.errors import ForetellError, PermissionNeededError
from foretell.version import __version__

FAILED, USAGE = 1, 2
HELP = {"help_option_names": ["-h", "--help"]}


class Program(Group):
    """Turns the errors of commands into one line and an exit code; only a bug shows a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the registry; typer would put those with subcommands last."""
        return sorted(super().list_commands(ctx), key=list(COMMANDS).index)

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
            resumes = ctx.invoked_subcommand in COMMANDS and COMMANDS[ctx.invoked_subcommand].resumes
            resume = "; run the same command again to resume" if resumes else ""
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


add_commands(app)
