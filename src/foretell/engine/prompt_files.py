"""Read prompts from files: JSON lines, plain text or Parquet, with errors that name the line or the row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell.errors import RequestError, show, unknown
from foretell.extras import require_extra
from foretell.models.chat import check_messages
from foretell.storage import parse_json, read_file, read_text

if TYPE_CHECKING:
    from foretell.engine.prompt_kinds import WrittenPrompt


CONTENT = ("prompt", "text", "messages")  # keys of a line, of which it has one
KEYS = (*CONTENT, "id", "answer", "label")
LONGEST_LABEL = 80  # characters
PARQUET = ".parquet"


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """One prompt, its id, and the place where it was read."""

    id: str | int
    prompt: WrittenPrompt
    where: str = ""  # "prompts.jsonl, line 3"
    answer: object = None  # the right answer, if the file has one, for grading
    label: str | None = None  # the group that the user put it into


def read_prompts(file: str | Path) -> list[FilePrompt]:
    """Read the prompts of a file: JSON lines, a .parquet table, or a .txt with one prompt per line."""
    if Path(file).suffix == PARQUET:
        return _read_table(Path(file))
    text = read_text(file, "prompt file", RequestError)
    return parse_prompts(text, str(file), plain=Path(file).suffix == ".txt")


def parse_prompts(text: str, title: str, plain: bool) -> list[FilePrompt]:
    """Parse the prompts of a text that came from `title`; if `plain`, each line is a prompt."""
    # Not splitlines: a prompt may hold Unicode line separators.
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise RequestError(f"{title} has no prompts in it")
    return _unique(
        [_parse_line(line, at, f"{title}, line {number}", plain) for at, (number, line) in enumerate(lines, 1)]
    )


def _read_table(file: Path) -> list[FilePrompt]:
    require_extra("parquet")
    import pyarrow as pa  # noqa: PLC0415  slow to import
    from pyarrow import parquet  # noqa: PLC0415

    data = read_file(file, "prompt file", RequestError)
    try:
        table = parquet.ParquetFile(pa.BufferReader(data))
        rows = table.read([name for name in table.schema_arrow.names if name in KEYS]).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"cannot read the prompt file {file}: {error}") from error
    if not rows:
        raise RequestError(f"{file} has no prompts in it")
    return _unique([parse_row(row, number, f"{file}, row {number}") for number, row in enumerate(rows, 1)])


def parse_row(row: Mapping[str, Any], number: int, where: str) -> FilePrompt:
    """Parse a row of a table; what is null is missing."""
    row = {name: value for name, value in row.items() if value is not None}
    if isinstance(row.get("messages"), list):  # the columns of a list of structs are the same in all messages
        row["messages"] = [
            {name: value for name, value in one.items() if value is not None} if isinstance(one, dict) else one
            for one in row["messages"]
        ]
    return _parse_value(row, number, where)


def _unique(found: list[FilePrompt]) -> list[FilePrompt]:
    """Raise RequestError if two prompts have the same id."""
    seen: dict[str, str] = {}
    for one in found:
        first = seen.setdefault(str(one.id), one.where)
        if first != one.where:
            raise RequestError(f"{one.where}: the id {show(one.id)} is also that of {first}; give each prompt its own")
    return found


def _parse_line(line: str, number: int, where: str, plain: bool) -> FilePrompt:
    if plain:
        return FilePrompt(number, line, where)
    value = parse_json(line, where, RequestError)
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise RequestError(f"{where}: must be a string or an object, got {line.strip()[:40]}")
    return _parse_value(value, number, where)


def _parse_value(value: Mapping[str, Any], number: int, where: str) -> FilePrompt:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:  # results could not be written
        raise RequestError(f"{where}: has half of a surrogate pair, which is not a character") from error
    name, prompt = _id(value, number, where), _prompt(value, where)
    return FilePrompt(name, prompt, where, value.get("answer"), _label(value, where))


def _id(value: Mapping[str, Any], number: int, where: str) -> str | int:
    name = value.get("id", number)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise RequestError(f'{where}: "id" must be a string or a whole number, got {_json(name)}')
    return name


def _label(value: Mapping[str, Any], where: str) -> str | None:
    label = value.get("label")
    if label is None:
        return None
    if not isinstance(label, str) or not label.isprintable() or not 1 <= len(label) <= LONGEST_LABEL:
        raise RequestError(
            f'{where}: "label" must be a text of 1 to {LONGEST_LABEL} printable characters, got {show(label)}'
        )
    return label


def _prompt(value: Mapping[str, Any], where: str) -> WrittenPrompt:
    given = [key for key in CONTENT if key in value]
    if len(given) > 1:
        raise RequestError(f'{where}: has both "{given[0]}" and "{given[1]}"; give one of them')
    if not given:
        stray = next((key for key in value if key not in KEYS), None)
        missing = 'has no "prompt", "text" or "messages"'
        raise RequestError(f"{where}: {missing if stray is None else unknown('key', stray, KEYS)}")
    content = value[given[0]]
    if given == ["messages"]:
        return _messages(content, where)
    if not isinstance(content, str):
        raise RequestError(f'{where}: "{given[0]}" must be a string, got {_json(content)}')
    return content


def _json(value: object) -> str:
    return json.dumps(value, default=str)[:40]


def _messages(content: Any, where: str) -> WrittenPrompt:
    if not isinstance(content, list) or not content:
        raise RequestError(f'{where}: "messages" must be a list of messages')
    try:
        check_messages(content)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error
    return content
