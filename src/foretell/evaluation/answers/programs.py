"""Find programs: the code between fences, without the prose around it."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings

from foretell.evaluation.answers.statements import SPECIAL

LONGEST = 20_000  # characters; a longer block is not parsed and stays unchanged
CUTS = 8  # maximum number of passages removed from a block
OPENING = re.compile(r"`{3,}+|^[ \t]{0,3}~{3,}+")
LABELLED = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)[ \t]*+\w[\w+.-]*+[ \t]*+")
WORD = re.compile(r"[ \t]*+[\w+.-]*+[ \t]*+")
QUOTES = re.compile(r"\"\"\"|'''")
DEFINITION = re.compile(r"^[ \t]*+(?:async[ \t]++)?(?:def|class)[ \t]++(\w++)", re.MULTILINE)
RETURN = re.compile(r"^[ \t]*+(?:return|yield)\b", re.MULTILINE)
START = re.compile(r"(?:async|def|class|import|from)[ \t]|@")


def find_code(text: str, *, strict: bool = False) -> str | None:
    """Return the fenced blocks with definitions, except those that later blocks define again.

    If no block defines anything, return the last one that returns something, else the first; without a fence, the whole
    text (unless `strict`). Prose inside a block is removed if that makes it valid Python. Indentation is kept, because
    a block may be only the body of a function. A fence that is not closed extends to the end.
    """
    whole = SPECIAL.sub("", text).replace("\r\n", "\n").replace("\u00a0", " ")
    blocks = _blocks(whole)
    if not blocks and not strict:
        blocks = [whole]
    written = [block.strip("\n").rstrip() for block in blocks if block.strip()]
    programs = [program for program in map(_without_prose, written) if program] or written
    defining = _drop_redefined(programs)
    if defining:
        return defining[0] if len(defining) == 1 else "\n\n\n".join(map(textwrap.dedent, defining))
    returning = [program for program in programs if RETURN.search(program)]
    return next(iter(returning[-1:] or programs), None)


def _blocks(text: str) -> list[str]:
    """Return the text between fences. Fences in triple-quoted strings are ignored if all these strings end."""
    found, whole = _split(text, quoted=True)
    return found if whole else _split(text, quoted=False)[0]


def _split(text: str, *, quoted: bool) -> tuple[list[str], bool]:
    """Return the blocks of a text and whether all strings in them end; if `quoted`, ignore fences in strings."""
    blocks: list[list[str]] = []
    fence = quote = ""  # the fence and the quote that are open
    for line in text.split("\n"):
        rest = line
        if not fence:
            opening = OPENING.search(line)
            if opening is None:
                continue
            fence = opening[0].strip()
            rest, closed, _ = line[opening.end() :].partition(fence)
            blocks.append([rest] if closed else [])
            fence = "" if closed else fence
            if closed or WORD.fullmatch(rest):
                continue
        elif not quote and (label := LABELLED.fullmatch(line)):
            fence = label[1]  # the model opens another fence inside the pinned one
            blocks.append([])
            continue
        elif not quote and (length := _closing_length(line, fence)):
            inner = line.rstrip()[:-length]
            if inner.strip() or blocks[-1]:  # a fence right after an opening fence does not close it
                blocks[-1].append(inner)
                fence = ""
            continue
        if blocks[-1] or rest.strip():
            blocks[-1].append(rest)
        for mark in QUOTES.findall(rest) if quoted else ():
            quote = mark if not quote else "" if mark == quote else quote
    return ["\n".join(block) for block in blocks], not quote


def _closing_length(line: str, fence: str) -> int:
    """Return the length of the fence at the end of a line, or 0 if it does not close a block that `fence` opened."""
    bare = line.rstrip()
    length = len(bare) - len(bare.rstrip(fence[0]))
    return length if length >= len(fence) else 0


def _without_prose(block: str) -> str | None:
    """Return the block without the passages that are not Python, or None if no program is left."""
    if len(block) > LONGEST:
        return None
    lines = block.split("\n")
    for _ in range(CUTS):
        wrong = _first_error(lines)
        if wrong is None:
            left = "\n".join(lines).strip("\n").rstrip()
            return left if DEFINITION.search(left) or not DEFINITION.search(block) else None
        start = next((at for at in range(wrong, -1, -1) if lines[at][:1].strip()), None)
        if start is None:
            return None
        end = next((at for at in range(wrong + 1, len(lines)) if START.match(lines[at])), len(lines))
        del lines[start:end]
    return None


def _first_error(lines: list[str]) -> int | None:
    """Return the index of the line with the first syntax error (0 if unknown), or None if there is no error."""
    first = next((line for line in lines if line.strip()), "")
    above = ["def body():"] if first[:1].isspace() else []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(above + lines))
    except SyntaxError as error:
        return min(max((error.lineno or 1) - 1 - len(above), 0), len(lines) - 1)
    except (ValueError, RecursionError, MemoryError):
        return 0
    return None


def _drop_redefined(programs: list[str]) -> list[str]:
    """Return, in order, the programs with definitions that no later program repeats."""
    kept: list[str] = []
    known: set[str] = set()
    for program in reversed(programs):
        plain = textwrap.dedent(program)
        lines = {line for line in plain.split("\n") if line.strip() and not line.startswith("#")}
        imports = lines if all(line.startswith(("import ", "from ")) for line in lines) else set()
        names = {name[1] for name in DEFINITION.finditer(plain) if name[0].lstrip() == name[0]} | imports
        if not names <= known:
            kept.append(program)
            known |= names
    return kept[::-1] if any(DEFINITION.search(program) for program in kept) else []
