"""Answers out of what models write: numbers, letters, code, equations and grids, as pure functions of text.

The rule for several answers, everywhere: the last explicit statement wins ("the answer is ...", "Answer: ...",
"#### ...", "\\boxed{...}"); without one, the weaker forms that each function names; None when nothing is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

LONGEST = 40  # digits; more is noise
SPECIAL = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:pad|mask|unk|eos|bos)>|\[(?:MASK|PAD|EOS|SEP|CLS|UNK)\]")
SIGNS = str.maketrans(
    {"−": "-", "‐": "-", "‑": "-", "–": "-", "－": "-", "\u00a0": " ", "\u202f": " ", "，": ",", "’": "'"}
)
LATEX = (
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{"), "{"),
    (re.compile(r"\\[,!;: ]|~"), " "),
    (re.compile(r"\\([$%])"), r"\1"),
)
DECORATION = r"[\s*_`~$#:=\"'(\[{<.\\-]"
STATEMENT = re.compile(
    r"####|\\(?:boxed|fbox)\b"
    r"|\banswer(?:\s+(?:choice|option))?[\s*_`\"']*(?:\([^()\n]{0,40}\))?[\s*_`\"']*"
    r"(?::|=|\b(?:is|are|was|equals|(?:would|should|must|will|has\s+to)\s+be)\b(?!\s+not\b))",
    re.IGNORECASE,
)
NUMBER = re.compile(
    r"(?:(?P<sign>(?<![\w)\]}])-)\s?)?(?:[$£€¥]\s?(?P<inner>-)?)?"
    r"(?P<digits>(?<!\w)(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+)"
    r"(?P<power>[eE][-+]?[0-9]{1,2}(?!\w))?"
    r"(?:\s?/\s?(?P<over>[0-9]+)(?![0-9]|\.[0-9])|\s(?P<top>[0-9]{1,3})\s?/\s?(?P<bottom>[0-9]{1,3})(?![0-9]))?"
)
FENCE = re.compile(r"```[ \t]*(?:[A-Za-z0-9_+-]*[ \t]*\n)?(.*?)(?:```|\Z)", re.DOTALL)
EQUATION = re.compile(r"(\d{1,9})\s*([-+*/×÷])\s*(\d{1,9})\s*=\s*(\d{1,9})")
GRID_NOISE = re.compile(r"[ \t,|\[\]]")


def clean(text: str) -> str:
    """Without special tokens; one kind of minus, blank and comma."""
    return SPECIAL.sub(" ", text).translate(SIGNS)


def number(text: str) -> str | None:
    """The number stated last, else the last number in the text; normalised as by `plain_number`.

    Behind a statement the first number counts, or the one behind the line's last "=" if there is an equation.
    """
    return stated_number(text) or next(iter([*_numbers(_flat(clean(text)))][::-1]), None)


def stated_number(text: str) -> str | None:
    """The number in the last explicit statement that holds one."""
    readable = _flat(clean(text))
    for clause in _statements(readable):
        line = clause.lstrip(" \n\t*_`:=$\"'").split("\n", 1)[0]
        sentence = re.split(r"[.!?;](?:\s|$)", line, maxsplit=1)[0]
        told = sentence.rpartition("=")[2] if "=" in sentence else sentence
        found = next(_numbers(told), None) or next(_numbers(sentence), None)
        if found is not None:
            return found
    return None


def plain_number(text: str) -> str | None:
    """One number, normalised: "$1,234.00" and "1234" are the same, and so are "1/2", "0.50" and ".5"; "25%" is 25."""
    return next(_numbers(_flat(clean(text))), None)


def letter(text: str, letters: str) -> str | None:
    """The option stated last; else the last that begins a line ("**B)** ..."); else the last that stands alone.

    Only `letters` count. A lower-case one counts where punctuation marks it as an option: "(c)" does, "a dog" does not.
    """
    readable = _flat(clean(text))
    some = f"[{letters}{letters.lower()}]"
    option = rf"(?:{some}(?=[)\]}}:*`]|\.?\s*$|[.,;]\s)|[{letters}])(?![\w'])"
    filler = (
        rf"(?:{DECORATION}|\\(?:boxed|fbox)|\b(?:option|choice|letter|clearly|therefore|most\s+likely|probably)\b)*"
    )
    behind = re.compile(rf"{filler}({option})")
    for clause in _statements(readable):
        found = behind.match(clause)
        if found is not None:
            return found[1].upper()
    verdict = rf"(?<![\w'])\(?({option})[)*.\]]*\s+(?:is|must\s+be)\s+(?:the\s+)?(?:correct|right|best|true|answer)\b"
    opening = rf"^[ \t*_`#>-]{{0,20}}[(\[]?({some})(?:[)\]:*`]|\.(?=\s|\*|$)|[ \t]*$)"
    alone = rf"\(({some})\)|(?<![\w'.])([{letters}])(?![\w'])(?!\s+[a-z])"
    for pattern in (verdict, opening, alone):
        marked = [match for match in re.finditer(pattern, readable, re.MULTILINE) if any(match.groups())]
        if marked:
            return next(group for group in marked[-1].groups() if group).upper()
    return None


def lone_letter(text: str, letters: str) -> str | None:
    """The option that is all a text says, in whatever dress: " B", "(b)", "**B**."; else None."""
    bare = re.sub(r"[^0-9A-Za-z]+", " ", clean(text)).strip()
    return bare.upper() if len(bare) == 1 and bare.upper() in letters else None


def code(text: str) -> str | None:
    """The first fenced block that defines something, else the first that is not empty, else the whole text.

    Indentation is kept: a block may be the body of a function alone. A fence that is never closed runs to the end.
    """
    whole = SPECIAL.sub("", text).replace("\r\n", "\n").replace("\u00a0", " ")
    blocks = [block for block in FENCE.findall(whole) if block.strip()] if "```" in whole else [whole]
    defines = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]", re.MULTILINE)
    chosen = next((block for block in blocks if defines.search(block)), next(iter(blocks), ""))
    lines = chosen.split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines).rstrip() or None


def equations(text: str) -> str | None:
    """The last run of equations on one line, such as "44-15=29,79-29=50"."""
    for line in reversed(clean(text).splitlines()):
        found = [(match[1], match[2], match[3], match[4]) for match in EQUATION.finditer(line)]
        if found:
            signs = {"×": "*", "÷": "/"}
            return ",".join(f"{a}{signs.get(sign, sign)}{b}={result}" for a, sign, b, result in found)
    return None


def grid(text: str, side: int = 4) -> str | None:
    """The first `side` lines in a row that are `side` digits each, as lines of digits."""
    rows: list[str] = []
    for line in clean(text).splitlines():
        digits = GRID_NOISE.sub("", line)
        rows = [*rows, digits] if re.fullmatch(rf"[0-9]{{{side}}}", digits) else []
        if len(rows) == side:
            return "\n".join(rows)
    return None


def _flat(text: str) -> str:
    for pattern, instead in LATEX:
        text = pattern.sub(instead, text)
    return text


def _statements(text: str) -> Iterator[str]:
    """What stands behind every explicit statement, up to the next one; the last one first."""
    ends = [match.end() for match in STATEMENT.finditer(text)]
    starts = [match.start() for match in STATEMENT.finditer(text)]
    for place in reversed(range(len(ends))):
        stop = starts[place + 1] if place + 1 < len(ends) else len(text)
        yield text[ends[place] : min(stop, ends[place] + 400)]


def _numbers(text: str) -> Iterator[str]:
    for match in NUMBER.finditer(text):
        value = _value(match)
        if value is not None:
            yield _written(value)


def _value(match: re.Match[str]) -> Fraction | None:
    """None for a number that is too long, or divided by nothing."""
    digits, over, bottom = match["digits"].replace(",", ""), match["over"], match["bottom"]
    if max(len(digits), len(over or "")) > LONGEST:
        return None
    below = int(over or bottom or 1)
    if below == 0:
        return None
    value = Fraction(digits + (match["power"] or ""))
    value = value + Fraction(int(match["top"]), below) if bottom else value / below
    return -value if match["sign"] or match["inner"] else value


def _written(value: Fraction) -> str:
    """A whole number or a decimal where it ends, else a fraction in lowest terms."""
    rest, places = value.denominator, 0
    while rest % 10 == 0 or rest % 5 == 0 or rest % 2 == 0:
        rest, places = rest // (10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2), places + 1
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    whole = abs(value.numerator) * 10**places // value.denominator
    digits = str(whole).rjust(places + 1, "0")
    text = f"{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".") if places else digits
    return f"-{text}" if value < 0 else text
