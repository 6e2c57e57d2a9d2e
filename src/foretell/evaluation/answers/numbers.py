"""Find numbers in digits or words, whole, decimal or as fractions, and normalise them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from foretell.evaluation.answers.statements import find_statements, normalise

LONGEST = 40  # digits; longer numbers are ignored
SCALES = {
    "hundred": 10**2, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7, "billion": 10**9,
    "trillion": 10**12,
}  # fmt: skip
NUMBER = re.compile(
    r"(?:(?P<sign>(?<![\w)\]}])-)\s?)?(?:[$£€¥]\s?(?:(?P<inner>-)\s?)?)?"
    r"(?P<digits>(?<!\w)(?:[0-9]{1,3}(?:,[0-9]{3}(?![0-9]))++|[0-9]{1,2}(?:,[0-9]{2}){1,6},[0-9]{3}(?![0-9])|[0-9]++)"
    r"(?:\.[0-9]++)?|(?<![\w.])\.[0-9]++)"
    r"(?P<power>[eE][-+]?[0-9]{1,2}(?!\w))?"
    r"(?:\s?/\s?(?P<over>[0-9]++)(?!\.[0-9])|\s(?P<top>[0-9]{1,3})\s?/\s?(?P<bottom>[0-9]{1,3})(?![0-9]))?"
    rf"(?:[\s{{-]{{0,3}}(?P<scale>(?i:{'|'.join(SCALES)}))\b)?"
)
ONES = "one two three four five six seven eight nine"
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
WORDS = {word: place for place, word in enumerate(f"zero {ONES} {TEENS}".split())} | {
    word: 10 * place for place, word in enumerate(TENS.split(), 2)
}
SMALL = (
    rf"(?:(?:{TENS.replace(' ', '|')})(?:[\s-](?:{ONES.replace(' ', '|')})\b)?"
    rf"|{TEENS.replace(' ', '|')}|zero|{ONES.replace(' ', '|')})\b"
)
BELOW_THOUSAND = rf"{SMALL}(?:[\s-]hundred\b(?:\s(?:and\s)?{SMALL})?)?"
SPELLED = re.compile(
    rf"(?<![\w-])(?P<minus>(?:minus|negative)\s)?(?P<words>{BELOW_THOUSAND}"
    rf"(?:[\s-](?:{'|'.join([*SCALES][1:])})\b(?:,?\s(?:and\s)?{BELOW_THOUSAND})?){{0,4}})"
    r"(?!(?<=one)\sof\b|-\w|\s(?:hal[fv]|third|quarter|fourth|fifth|sixth|eighth|tenth)|\sand\s(?:a|one|three)\b)",
    re.IGNORECASE,
)
LEAD = " \n\t*_`:=$\"'"  # characters between a statement and its content
CONCLUSION = re.compile(r"\b(?:so|thus|hence|therefore|gives|giving|totall?ing|total\s++of)\b", re.IGNORECASE)


def find_number(text: str, *, strict: bool = False) -> str | None:
    """Return the number stated last, else (unless `strict`) the last number in the text, normalised."""
    stated = find_stated_number(text)
    if stated is not None or strict:
        return stated
    plain = normalise(text)
    return _find_digits(reversed([*NUMBER.finditer(plain)])) or _find_words(reversed([*SPELLED.finditer(plain)]))


def find_stated_number(text: str) -> str | None:
    """Return the number in the last explicit statement that contains one, in digits or else in words.

    Of a sentence, this is the first number after the last "=". Without "=", it is the first number after the last "so",
    unless the sentence starts with a number; otherwise the first number.
    """
    clauses = [clause.lstrip(LEAD) for clause in find_statements(normalise(text))]
    in_digits = (_find_conclusion(_sentence(clause)) for clause in clauses)
    in_words = (_find_words(SPELLED.finditer(_sentence(one)), start=0) for one in clauses if not NUMBER.search(one))
    return next((found for read in (in_digits, in_words) for found in read if found is not None), None)


def normalise_number(text: str) -> str | None:
    """Return the first number, normalised: "$1,234.00" as "1234"; "1/2", "0.50" and ".5" as "0.5"; "25%" as "25"."""
    return _find_digits(NUMBER.finditer(normalise(text)))


def _sentence(clause: str) -> str:
    return re.split(r"\n|[.!?;](?:\s|$)", clause, maxsplit=1)[0]


def _find_conclusion(sentence: str) -> str | None:
    parts: list[str] = []
    if "=" in sentence:
        parts = [sentence.rpartition("=")[2]]
    elif NUMBER.match(sentence.lstrip(f"{LEAD}([{{<\\")) is None:
        parts = CONCLUSION.split(sentence)[:0:-1]
    found = (_find_digits(NUMBER.finditer(part)) for part in (*parts, sentence))
    return next((one for one in found if one is not None), None)


def _find_digits(matches: Iterable[re.Match[str]]) -> str | None:
    values = (_parse_value(match) for match in matches)
    return next((_format(value) for value in values if value is not None), None)


def _find_words(matches: Iterable[re.Match[str]], start: int | None = None) -> str | None:
    """Return the first number in words. "One" is also a pronoun, so on its own it counts only at `start`."""
    for match in matches:
        if match["words"].lower() == "one" and match.start() != start:
            continue
        value = _parse_words(re.findall("[a-z]+", match["words"].lower()))
        return str(-value if match["minus"] else value)
    return None


def _parse_words(words: list[str]) -> int:
    total = part = 0
    for word in words:
        if word == "hundred":
            part *= 100
        elif word in SCALES:
            total, part = total + part * SCALES[word], 0
        else:
            part += WORDS.get(word, 0)  # "and" adds nothing
    return total + part


def _parse_value(match: re.Match[str]) -> Fraction | None:
    """Return the value of a match, or None if it is too long or divides by zero."""
    digits, over, bottom = match["digits"].replace(",", ""), match["over"], match["bottom"]
    if max(len(digits), len(over or "")) > LONGEST:
        return None
    below = int(over or bottom or 1)
    if below == 0:
        return None
    value = Fraction(digits + (match["power"] or ""))
    value = value + Fraction(int(match["top"]), below) if bottom else value / below
    value *= SCALES[match["scale"].lower()] if match["scale"] else 1
    return -value if match["sign"] or match["inner"] else value


def _format(value: Fraction) -> str:
    """Return a whole number, a finite decimal, or else a fraction in lowest terms."""
    rest, places = value.denominator, 0
    while rest % 10 == 0 or rest % 5 == 0 or rest % 2 == 0:
        rest, places = rest // (10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2), places + 1
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    whole = abs(value.numerator) * 10**places // value.denominator
    digits = str(whole).rjust(places + 1, "0")
    text = f"{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".") if places else digits
    return f"-{text}" if value < 0 else text
