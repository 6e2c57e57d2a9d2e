"""Find the chosen letter of a multiple-choice answer, ignoring lists of options that the text repeats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from foretell.evaluation.answers.statements import clean, find_statements, normalise

TAIL = 80  # characters at the end of a text that are searched for an unfinished statement
NEAR = 30  # characters before a letter that are searched for the other letter of "A or B"
UNDECIDED = re.compile(r"[\s*_`:]*+(?i:either|both|between|neither)\b")
UNFINISHED = re.compile(
    r"(?i:\b(?:answer|option|choice|letter)(?:\s?[:=]|(?:\s(?:is|are|was|must|would|should|will|be)){1,3}))"
    r"[\s*_`:=(\"'\[{]*+\Z"
)
SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")
FILLER = (
    r"(?:\\(?:boxed|fbox)|[\s*_`~$#:=\"'(\[{<.\\-]"
    r"|\b(?:option|choice|letter|clearly|therefore|most\s++likely|probably)\b)*+"
)
VERB = r"(?:is|(?:would|should|must|will|has\s++to)\s++be)\b"
HEAD = (
    r"(?i:\b(?:(?:correct|right|best)\s++one|option|choice|letter|selection|pick|solution|conclusion|ans|correct)"
    rf"(?:\s*+[:=]|\s++{VERB})|\b(?:choose|chose|pick|select|go\s++with|opt\s++for)\b)"
)
PRAISE = r"(?:is|must\s++be)\s++(?:the\s++)?(?:correct|right|best|true|answer)\b|it\s++is\b"
RIGHT = r"(?:(?:correct|right)(?=[.!,;\n]|\Z)|Correct(?=[.!,;]))"  # alone on its line it would be an option
CUE = r"(?i:\b(?:is|be|it's|so|thus|hence|therefore|think|say|leaves|option|choice)),?\s[*\"'`]{0,3}"
# Words before or after a letter that rule it out, unless it is stated.
REFUSED = r"(?<!not )(?<!not \()(?<!than )(?<!over )(?<!instead of )"
WRONG = r"(?![)\]*:]{0,3}\s++(?:(?:is|was|looks|seems)\s)?(?:clearly\s|also\s)?(?:wrong|incorrect|ruled\s|not\s)\b)"
ARTICLE = r"(?!\s++(?!because\b|since\b|as\b)[a-z])"  # the letter may be the word "A"
# In a list, the mark of an option is followed by its text; "A) is ..." is an argument instead.
TEXT = r"(?!(?:is|was|are|and|or|nor|but|because|since|as|seems|looks|must|can|cannot)\b|[\s,.;)\]])"


@dataclass(frozen=True, slots=True)
class Patterns:
    """The patterns that mark a letter as the answer, for one set of letters."""

    stated: re.Pattern[str]  # right after a statement
    chosen: re.Pattern[str]  # next to words that choose it
    opening: re.Pattern[str]  # at the start of a line
    alone: re.Pattern[str]  # anywhere
    listed: re.Pattern[str]  # as the mark of an option in a list
    before: re.Pattern[str]  # finds another letter and "or" or "and" before it
    after: re.Pattern[str]  # finds the same after it


@cache
def compile_patterns(letters: str) -> Patterns:
    some, large = f"[{letters}{letters.lower()}]", f"[{letters}]"
    unlike_words = "".join(letter for letter in letters if letter not in "AI")
    option = rf"(?:{some}(?=[)\]}}:*`]|\.?[ \t]*+(?:\n|\s*+\Z)|[.,;]\s)|{large})(?![\w'])"
    other = rf"(?:option\s)?[(\[*]{{0,3}}{large}(?![\w'])"
    return Patterns(
        stated=re.compile(rf"{FILLER}({option})"),
        chosen=re.compile(
            rf"(?<![\w'])\(?({option})(?:[)*.\]]*+\s++(?:{PRAISE})|[)*\]:]*+\s?{RIGHT})"
            rf"|{HEAD}{FILLER}({option})"
        ),
        opening=re.compile(
            rf"^[ \t*_`#>-]{{0,20}}[(\[]?({some})(?:[)\]:*`]|\.(?=\s|\*|$)|[ \t]*+$){WRONG}", re.MULTILINE
        ),
        alone=re.compile(
            rf"{REFUSED}\(({some})\){WRONG}|(?<![\w'.]){REFUSED}({large})(?![\w']){ARTICLE}{WRONG}"
            rf"|{CUE}([{unlike_words}])(?![\w']){WRONG}"
        ),
        listed=re.compile(
            rf"(?<![\w'])(?i:(?:option|choice)\s)?[*_]{{0,3}}[(\[]?({some})(?:([)\]])|[:*]|\.(?=[\s*]))"
            rf"[*_:.]{{0,3}}[ \t]{{0,4}}{TEXT}|^[ \t]{{0,3}}({large})[ \t]{{1,4}}{TEXT}",
            re.MULTILINE,
        ),
        before=re.compile(
            rf"(?<![\w']){large}[)*\]]{{0,2}}(?:\s?/\s?|,?\s(?:or|and|nor)\s)(?:option\s)?[(\[*]{{0,3}}\Z"
        ),
        after=re.compile(
            rf"[)*\]]{{0,3}}(?:(?:\s?/\s?|,?\sor\s){other}"
            rf"|(?:,?\sand\s|,\s?|\s?&\s?){other}(?=[)\]*\s]{{0,3}}(?:[.!?,;&/]|or\b|and\b|\Z)))"
        ),
    )


def find_letter(text: str, letters: str, *, strict: bool = False) -> str | None:
    """Return the letter stated last, else the last one chosen in words ("B is correct", "the right choice is B").

    Otherwise, unless `strict`, return the last one that begins a line ("**B)** ..."), else the last one that stands
    alone. Options in a list, "A or B" and text before an unfinished statement do not count. Only `letters` count; a
    lower-case letter counts if punctuation marks it as an option: "(c)" does, "a dog" does not.
    """
    plain, known = normalise(text), compile_patterns(letters)
    for clause in find_statements(plain):
        if UNDECIDED.match(clause):
            return None
        found = known.stated.match(clause)
        if found is not None:
            return None if known.after.match(clause, found.end()) else found[1].upper()
    found = _last(known.chosen, plain)
    if found is None and not strict and UNFINISHED.search(plain.rstrip()[-TAIL:]) is None:
        unlisted = _without_lists(plain, letters)
        found = _last(known.opening, unlisted) or _last(known.alone, unlisted)
    return None if found is None else _single_letter(found, known)


def read_letter(text: str, letters: str) -> str | None:
    """Return the letter if the text consists of it alone, in any notation (" B", "(b)", "**B**."), else None."""
    bare = re.sub(r"[^0-9A-Za-z]+", " ", clean(text)).strip()
    return bare.upper() if len(bare) == 1 and bare.upper() in letters else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(reversed([*pattern.finditer(text)]), None)


def _single_letter(match: re.Match[str], known: Patterns) -> str | None:
    """Return the letter of a match, or None if the text names two letters ("A or B")."""
    start, end = match.span(match.lastindex or 0)
    if known.after.match(match.string, end) or known.before.search(match.string, max(0, start - NEAR), start):
        return None
    return match[match.lastindex or 0].upper()


def _without_lists(text: str, letters: str) -> str:
    """Remove lists of two or more options in order, from the first letter to the end of the last option's sentence."""
    marks = list(compile_patterns(letters).listed.finditer(text))
    lists: dict[int, int] = {}  # start of each list -> its end
    first = count = 0
    for mark, stop in zip(marks, [*(one.start() for one in marks[1:]), len(text)], strict=False):
        place = letters.index((mark[1] or mark[3]).upper())
        if place == 0 and _begins_list(mark):
            first, count = mark.start(), 1
        else:
            count = count + 1 if place == count > 0 else 0
        if count > 1:
            end = SENTENCE_END.search(text, mark.end(), stop)
            lists[first] = stop if end is None else end.end()
    return "\n".join(text[start:end] for start, end in zip((0, *lists.values()), (*lists, len(text)), strict=True))


def _begins_list(mark: re.Match[str]) -> bool:
    """Whether a list may begin here. Without a bracket it must begin a line or a sentence (unlike "vitamin A.")."""
    before = mark.string[max(0, mark.start() - 8) : mark.start()].rstrip(" \t*_")
    return bool(mark[2]) or not before or before[-1] in "\n:.!?;,-"
