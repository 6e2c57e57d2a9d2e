"""`--import`: your own policies and presets, from a file or a module, for commands that take recipes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

from typer import Option

HELP = "Python file or module that adds your own policies (as FORETELL_IMPORT does). Repeatable."
Import = Annotated[list[str] | None, Option("--import", help=HELP, metavar="FILE_OR_MODULE")]
NAME = "import_"


def with_imports(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option --import to a command. What it names is imported before the command runs."""

    @wraps(command)
    def run_command(**given: Any) -> None:
        if named := given.pop(NAME):
            import foretell.recipes.presets  # noqa: F401, PLC0415  imports what FORETELL_IMPORT names
            from foretell.recipes.plugins import add_plugins  # noqa: PLC0415

            add_plugins(named)
        command(**given)

    own = signature(command, eval_str=True).parameters.values()
    described: Any = run_command
    option = Parameter(NAME, Parameter.KEYWORD_ONLY, default=None, annotation=Import)
    described.__signature__ = Signature([*own, option])
    return run_command
