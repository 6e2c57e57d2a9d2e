"""Normalise text (one kind of minus and blank, no LaTeX) and find the explicit statements in it."""

from __future__ import annotations

import re
import unicodedata

LONGEST_CLAUSE = 400  # characters after a statement that are read
SPECIAL = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:pad|mask|unk|eos|bos)>|\[(?:MASK|PAD|EOS|SEP|CLS|UNK)\]")
BLANKS = "\u00a0\u2007\u2009\u202f"  # no-break, figure, thin and narrow no-break space
SIGNS = str.maketrans(
    {"−": "-", "‐": "-", "‑": "-", "–": "-", "－": "-", "，": ",", "’": "'", "⁄": "/", **dict.fromkeys(BLANKS, " ")}
)
# Thousands separators; an ordinary blank is one only in a number that ends with 000.
GROUPED = re.compile(
    rf"(?<=[0-9])(?:(?:[{BLANKS}'’_]|,?\\[,;:! ])(?=[0-9]{{3}}(?![0-9]))|[ ](?=(?:[0-9]{{3}}[ ]){{0,3}}000(?![0-9])))"
)
PART = r"\s{0,3}(?:\{([^{}]{0,40})\}|([0-9]))"
LATEX = (
    (re.compile(r"\{,\}"), ","),
    (re.compile(rf" ?\\[cdt]?frac{PART}{PART}"), r" \1\2/\3\4"),
    (re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s{0,3}\{"), "{"),
    (re.compile(r"\\[,!;: ]|~"), " "),
    (re.compile(r"\\([$%])"), r"\1"),
)
VULGAR = re.compile(" ?([\u00bc-\u00be\u2150-\u215e])")  # a fraction in one character, such as ½
STATEMENT = re.compile(
    r"####|\\(?:boxed|fbox)\b"
    r"|\banswer(?:\s++(?:choice|option)\b)?[\s*_`\"']*+(?:\([^()\n]{0,40}\)[\s*_`\"']*+)?"
    r"(?::|=|\b(?:is|are|was|equals|(?:would|should|must|will|has\s++to)\s++be)\b(?!\s++not\b))",
    re.IGNORECASE,
)


def clean(text: str) -> str:
    """Remove special tokens and replace every variant of minus, blank and comma by the ASCII character."""
    return SPECIAL.sub(" ", text).translate(SIGNS)


def normalise(text: str) -> str:
    """Clean the text and write thousands as 1,000, fractions as 1/2 and LaTeX as plain text."""
    text = clean(GROUPED.sub(",", text))
    for pattern, plain in LATEX:
        text = pattern.sub(plain, text)
    return VULGAR.sub(lambda found: " " + unicodedata.normalize("NFKC", found[1]).replace("⁄", "/"), text)


def find_statements(text: str) -> list[str]:
    """Return the text after each explicit statement, up to the next one; the last one comes first."""
    found = list(STATEMENT.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    clauses = [text[one.end() : min(end, one.end() + LONGEST_CLAUSE)] for one, end in zip(found, ends, strict=False)]
    return clauses[::-1]
