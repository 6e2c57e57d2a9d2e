"""`foretell recipes`: list presets and policies with their descriptions and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from inspect import cleandoc, getmodule
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from foretell.errors import RecipeError, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.engine.certificate import Certificate

QUESTIONS = {
    "cache": "what is recomputed?",
    "sample": "which token?",
    "region": "where is the answer?",
    "score": "how sure?",
    "transfer": "which masks now?",
    "stop": "is it settled?",
    "verify": "what is masked again?",
    "visible": "which positions does the model see?",
    "schedule": "how does a threshold fall?",
    "scale": "what is compared with it?",
}


def recipes(
    name: Annotated[
        str | None, Argument(help="Preset, policy, kind of policy or certified .json file to show.")
    ] = None,
) -> None:
    """List recipes and the policies they are made of.

    With a name, show a preset or a policy in detail, or list one kind of policy (stop, transfer, score).

    foretell recipes swift
    """
    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.policies import POLICIES  # noqa: PLC0415
    from foretell.recipes.presets import PRESETS  # noqa: PLC0415

    console = out()
    if name is None:
        _list_presets(console)
        _list_policies(console)
        console.print("Change any parameter: --recipe 'prophet stop.tau.high=8' or --set stop.tau.high=8.", style="dim")
        return
    if name.endswith(".json"):
        _show_certificate(console, name)
        return
    kinds = [(kind, policies[name]) for kind, policies in POLICIES.items() if name in policies]
    if name not in PRESETS and not kinds and name not in POLICIES:
        names = {*PRESETS, *POLICIES, *(policy for policies in POLICIES.values() for policy in policies)}
        raise RecipeError(unknown("recipe, policy or kind of policy", name, names))
    if name in POLICIES:
        _list_policies(console, name)
    if name in PRESETS:
        _show_preset(console, name)
    for kind, policy in kinds:
        _show_policy(console, kind, name, policy)


def sentence(policy: type) -> str:
    """Return what a policy does: the first sentence of its module, or of its class if policies share a module."""
    from foretell.policies import POLICIES  # noqa: PLC0415

    home = getmodule(policy)
    mates = {one for policies in POLICIES.values() for one in policies.values() if one.__module__ == policy.__module__}
    shared = len(mates) > 1 and not _is_generated(policy)
    text = policy.__doc__ if shared or home is None else home.__doc__
    return " ".join(cleandoc(text or "").split("\n\n")[0].split())


def _is_generated(policy: type) -> bool:
    """Return whether the docstring is only the signature that a dataclass generates."""
    return (policy.__doc__ or "").startswith(f"{policy.__name__}(")


def _list_presets(console: Console) -> None:
    from foretell.recipes.presets import PRESETS  # noqa: PLC0415

    table = _table("Recipes")
    for name, preset in PRESETS.items():
        table.add_row(_bold(name), _two_lines(preset.about, str(preset.recipe)))
    console.print(table, "")


def _list_policies(console: Console, *kinds: str) -> None:
    """Print the policies of these kinds, or all of them."""
    from foretell.policies import POLICIES  # noqa: PLC0415
    from foretell.recipes.text import signature  # noqa: PLC0415

    for kind in kinds or POLICIES:
        table = _table(f"{kind}: {QUESTIONS.get(kind, '')}")
        for name, policy in POLICIES[kind].items():
            table.add_row(_bold(name), _two_lines(sentence(policy), signature(policy)))
        console.print(table, "")


def _show_preset(console: Console, name: str) -> None:
    from rich.text import Text  # noqa: PLC0415

    from foretell.recipes.presets import PRESETS  # noqa: PLC0415

    preset = PRESETS[name]
    console.print(Text(name, style="bold"), Text(f"  {preset.about}"))
    console.print(Text(f"{preset.recipe}\n", style="cyan"))
    table = _table("")
    table.columns[0].width = None
    table.columns[1].ratio = None
    table.add_column(ratio=1)
    for path, value, about in _parameters("", preset.recipe):
        table.add_row(f" {path}", Text(value, style="bold"), Text(about, style="dim"))
    console.print(table, "")


def _show_certificate(console: Console, path: str) -> None:
    from rich.text import Text  # noqa: PLC0415

    from foretell.engine.certificate import read_certificate  # noqa: PLC0415

    found = read_certificate(path)
    title = f"certified at {found.speedup:.2f}x fewer {found.cost}" if found.certified else "nothing is certified"
    console.print(Text(Path(path).name, style="bold"), Text(f"  {title}"))
    console.print(Text(found.recipe, style="cyan"))
    console.print(Text(f"{found.says[:1].upper()}{found.says[1:]}.\n"))
    table = _table("")
    for heading, text in _describe_certificate(found):
        table.add_row(f" {heading}", Text(text))
    console.print(table, "")


def _describe_certificate(found: Certificate) -> Iterator[tuple[str, str]]:
    """Yield what a certificate holds for and how it came about, each with a heading."""
    runs = [found.dtype, found.device, "compiled" if found.compile else None, found.torch and f"torch {found.torch}"]
    yield "model", ", ".join([found.model, f"sha256 {found.model_sha256[:12]}", *filter(None, runs)])
    if found.fills:
        yield "for", "texts with masks"
    elif found.window is None:
        yield "for", "windows that differ from example to example"
    else:
        answer = "" if found.answer is None else f", the answer {found.answer[1]} tokens at {found.answer[0]}"
        yield "for", f"a window of {found.window} positions{answer}"
    yield "against", found.against
    pilot = f", after a pilot of {found.pilot}" if found.pilot else ""
    yield "examples", f"{found.examples} of {found.task or 'a set of prompts'}, seed {found.seed}{pilot}"
    bound = f"{found.empirical_risk:.2%} there, with an upper bound of {found.upper_bound:.2%}"
    yield "risk", f"at most {found.risk:.4g} ({found.loss}) with confidence {found.confidence:g}; {bound}"
    if found.rung is not None:
        yield "ladder", f"{found.ladder}, rung {found.rung + 1} of {len(found.rungs)}"
    yield "look", f"{found.look}, tested at delta = {found.delta:g}"
    yield "made by", f"foretell {found.version}"


def _parameters(prefix: str, value: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (path for --set, value, description) of every parameter; those of a policy follow it."""
    from foretell.recipes.text import format_value  # noqa: PLC0415

    for field in fields(value):
        inner, path = getattr(value, field.name), f"{prefix}{field.name}"
        policy = is_dataclass(inner) and not isinstance(inner, type)
        yield path, format_value(inner), sentence(type(inner)) if policy else ""
        if policy:
            yield from _parameters(f"{path}.", inner)


def _show_policy(console: Console, kind: str, name: str, policy: type) -> None:
    from rich.text import Text  # noqa: PLC0415

    from foretell.recipes.text import signature  # noqa: PLC0415

    console.print(Text(f"{kind} {name}", style="bold"), Text(f"({signature(policy)})", style="cyan"))
    console.print(Text(sentence(policy)))
    if not _is_generated(policy):
        console.print(Text(f"\n{cleandoc(policy.__doc__ or '')}", style="dim"))


def _table(title: str) -> Any:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=None,
        show_header=False,
        padding=(0, 2, 0, 0),
        expand=True,
    )
    table.add_column(width=_longest_name() + 1, no_wrap=True)
    table.add_column(ratio=1)
    return table


def _longest_name() -> int:
    """Return the length of the longest name, so that the left columns of all tables align."""
    from foretell.policies import POLICIES  # noqa: PLC0415
    from foretell.recipes.presets import PRESETS  # noqa: PLC0415

    return max(map(len, [*PRESETS, *(name for policies in POLICIES.values() for name in policies)]))


def _bold(name: str) -> Any:
    from rich.text import Text  # noqa: PLC0415

    return Text(f" {name}", style="bold cyan")


def _two_lines(about: str, signature: str) -> Any:
    from rich.text import Text  # noqa: PLC0415

    text = Text(about)
    return text.append(f"\n{signature}", style="dim") if signature else text
