"""Add to the site what is not in this folder: references from the code, and files of the main folder."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import foretell
from foretell.cli.reference import describe_commands

DOCS = Path(__file__).parent
ROOT = DOCS.parent
COMMANDS, NAMES = "<!-- commands -->", "<!-- names -->"
TABLES = {  # public names that are dictionaries, which have no docstring
    "PRESETS": "The presets by name, each with its `recipe` and a description (`about`).",
    "POLICIES": "The policy classes by kind and name, such as `POLICIES['stop']['prophet']`; add your own for recipes.",
}
COPIED = {"README.md": "about.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add files of the main folder, and add pages that mkdocs.yml does not name to the navigation."""
    for source, name in COPIED.items():
        text = (ROOT / source).read_text(encoding="utf8").replace("](docs/", "](")
        for other, copied in COPIED.items():
            text = text.replace(f"]({other}", f"]({copied}")
        files.append(File.generated(config, name, content=text))
    named = str(config.nav)
    new = sorted(one.src_uri for one in files.documentation_pages() if f"'{one.src_uri}'" not in named)
    for section in config.nav or []:
        if isinstance(section, dict) and "Results" in section:
            section["Results"] = [name for name in new if name.startswith("results/")]
        if isinstance(section, dict) and "Reference" in section:
            section["Reference"] += [name for name in new if not name.startswith("results/")]
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put the references into the pages that ask for them, and convert GitHub's Markdown to that of the site."""
    markdown = _separate(markdown)
    for source, name in COPIED.items():
        markdown = markdown.replace(f"](../{source}", f"]({name}")
    if page.file.src_uri == "cli.md":
        return markdown.partition(COMMANDS)[0] + describe_commands()
    if page.file.src_uri == "python.md":
        return re.sub(rf"{NAMES}\n(.+)\n", lambda found: describe_names(found[1]), markdown)
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", markdown)


def _separate(markdown: str) -> str:
    """Add the blank lines that this Markdown wants before a list, a table or a block after a line of text."""
    lines: list[str] = []
    fence = False
    for line in markdown.split("\n"):
        before = lines[-1] if lines else ""
        is_list, is_table, is_fence = (
            re.match(r"\s*([-*]|\d+\.) ", line),
            line.startswith("|"),
            line.lstrip().startswith("```"),
        )
        was_list = re.match(r"\s*([-*]|\d+\.) |\s+\S", before)
        if (
            not fence
            and before.strip()
            and (
                (is_list and not was_list)
                or (is_table and not before.startswith("|"))
                or (is_fence and not before.startswith("<!--"))
            )
        ):
            lines.append("")
        fence ^= bool(is_fence)
        lines.append(line)
    return "\n".join(lines)


def describe_names(line: str) -> str:
    """Return the reference of the public names in a line, such as "`load`, `Engine`"."""
    return "\n".join(describe(name, getattr(foretell, name)) for name in re.findall(r"`(\w+)`", line))


def describe(name: str, thing: Any) -> str:
    """Return a heading, the signature and the docstring of a public name, and the fields and methods of a class."""
    parts = [f"### `{name}` {{ #{name} }}", ""]
    if callable(thing) and not isinstance(thing, type(enum.Enum)) and not getattr(thing, "_is_protocol", False):
        parts += [_signature(name, thing), ""]
    parts += [TABLES.get(name) or _doc(thing), ""]
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        parts += list(_members(thing))
    return "\n".join(parts)


def _members(thing: type) -> Iterator[str]:
    fields = {field.name for field in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
    for name, member in vars(thing).items():
        if name.startswith("_") or name in fields:
            continue
        if isinstance(member, property) or hasattr(member, "func"):
            yield _item(name, member if isinstance(member, property) else member.func)
        elif inspect.isfunction(member) or isinstance(member, staticmethod | classmethod):
            function = member if inspect.isfunction(member) else member.__func__
            yield _item(_short(name, function), function)
    yield ""


def _item(name: str, thing: Any) -> str:
    """Return a list item, with further paragraphs of the docstring inside it."""
    text = _doc(thing).replace("\n", "\n    ")
    return f"- `{name}`: {text}" if text else f"- `{name}`"


def _signature(name: str, thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    notes = _field_notes(thing)
    given = {one.name: _parameter(one) for one in signature.parameters.values()}
    line = f"{name}({', '.join(given.values())})"
    if notes or len(line) > 72:
        shown = (f"    {one},{notes.get(key, '')}\n" for key, one in given.items())
        line = f"{name}(\n" + "".join(shown) + ")"
    returned = signature.return_annotation
    arrow = f" -> {returned}" if isinstance(returned, str) and returned != "None" else ""
    return f"```python\n{line}{arrow}\n```"


def _field_notes(thing: Any) -> dict[str, str]:
    """Return the comments beside the fields of a dataclass or a msgspec Struct."""
    if not (inspect.isclass(thing) and (dataclasses.is_dataclass(thing) or hasattr(thing, "__struct_fields__"))):
        return {}
    return dict(re.findall(r"^    (\w+): .*?(  # .+)$", inspect.getsource(thing), re.MULTILINE))


def _parameter(one: inspect.Parameter) -> str:
    """Return a parameter as it is written in the code, where annotations are strings."""
    kind = type(one.default)
    if dataclasses.is_dataclass(kind) and one.default == kind():  # leave out the values of its fields
        shown = f"{one.replace(default=inspect.Parameter.empty)} = {kind.__name__}()"
    else:
        shown = re.sub(r"<function (\w+) at 0x\w+>", r"\1", str(one))
    shown = re.sub(r"ForwardRef\('([^']+)'\)", r"\1", shown)
    if isinstance(one.annotation, str):
        shown = shown.replace(repr(one.annotation), one.annotation, 1)
    return shown.replace(": Unpack[", ": ").removesuffix("]") if ": Unpack[" in shown else shown


def _short(name: str, function: Any) -> str:
    names = [str(one).partition(":")[0].partition(" =")[0] for one in inspect.signature(function).parameters.values()]
    return f"{name}({', '.join(one for one in names if one not in {'self', 'cls', '*', '/'})})"


def _doc(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and text.startswith(f"{thing.__name__}("):
        return ""  # what a dataclass without a docstring has
    return _indented_code(text)


def _indented_code(text: str) -> str:
    """Return a docstring as Markdown, with angle brackets as plain text."""
    return re.sub(r"(?<!`)<(?!!)", "&lt;", text).replace("\n    ", "\n\n    ")
