"""Texts as models write them, and the answer in each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from re import _constants as opcodes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.evaluation import answers
from foretell.evaluation.answers import letters, numbers, programs, puzzles, statements
from foretell.evaluation.benchmarks.bundled import ANSWER

UP_TO_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
NUMBERS = [
    ("18", "18"),
    ("The answer is 18.", "18"),
    ("The answer is $1,234.00", "1234"),
    ("the answer is $1,234,567.50 in total", "1234567.5"),
    ("so \\boxed{12}", "12"),
    ("$\\boxed{12.0}$", "12"),
    ("\\boxed{\\boxed{7}}", "7"),
    ("\\boxed{\\frac{3}{4}}", "0.75"),
    ("\\boxed{\\dfrac{1}{3}}", "1/3"),
    ("\\boxed{\\text{42 apples}}", "42"),
    ("\\boxed{1{,}500}", "1500"),
    ("\\boxed{\\$25}", "25"),
    ("#### 72", "72"),
    ("Some work 3*4=12\n#### 12\n<|eot_id|><|endoftext|>", "12"),
    ("Answer: 5", "5"),
    ("**Answer:** 5 apples", "5"),
    ("**Final Answer**: $65,960", "65960"),
    ("Final answer = -3", "-3"),
    ("The answer is −10.", "-10"),
    ("The answer is -$10", "-10"),
    ("The answer is $-10", "-10"),
    ("The answer is negative? No: 4", "4"),
    ("The answer is: \n\n 42", "42"),
    ("The answer is 25%", "25"),
    ("The answer is 12.0", "12"),
    ("The answer is 0.50", "0.5"),
    ("The answer is .5", "0.5"),
    ("The answer is 1/2", "0.5"),
    ("The answer is 2 1/2 cups", "2.5"),
    ("The answer is 007", "7"),
    ("The answer is 16 - 3 - 4 = 9 eggs.", "9"),
    ("The answer is 5. But wait, the answer is 6.", "6"),
    ("The answer is 5.\n\nShe has 3 cats.", "5"),
    ("The answer is 18 dollars, since 9 * 2 = 18. Thanks 99", "18"),
    ("The answer is not clear, maybe 8", "8"),
    ("Answer: 7\nAnswer: unknown", "7"),
    ("She sells 9 eggs and makes 9*2=18", "18"),
    ("It costs 10-3", "3"),
    ("between 10–20", "20"),
    ("x2 plus 5", "5"),
    ("1e3", "1000"),
    ("12,34", "34"),
    ("1,234", "1234"),
    ("She pays 3,000 + 4,000 = 7,000.", "7000"),
    ("The total is 5/0 or 4", "4"),
    ("5/0", None),
    ("<|mdm_mask|><|mdm_mask|>", None),
    ("", None),
    ("The answer is", None),
    ("no number at all", None),
    ("9" * 5000, None),
    ("9" * 5000 + " 4", "4"),
    ("The answer is 18<|endoftext|><|endoftext|>", "18"),
    ("The answer (in dollars) is 30", "30"),
    ("the answer would be 31", "31"),
    ("\\boxed{", None),
    ("\\boxed{}", None),
    ("Answer:Answer:Answer: 3", "3"),
    # thousands in groups
    ("The answer is 70\u2009000.", "70000"),
    ("70\u202f000", "70000"),
    ("70\u00a0000", "70000"),
    ("70 000", "70000"),
    ("$70\\,000$", "70000"),
    ("\\boxed{1,\\!500}", "1500"),
    ("1\u2009234\u2009567 people", "1234567"),
    ("The answer is 70\u2019000", "70000"),
    ("100 200 300", "300"),
    ("100~200", "200"),
    ("1,234,5678", "5678"),
    ("The answer is 1,50,000 rupees", "150000"),
    ("12,34,567.5", "1234567.5"),
    ("The answer is 1.5 million", "1500000"),
    ("$2 billion", "2000000000"),
    ("$1.5 \\text{ million}$", "1500000"),
    ("2 1/2 thousand", "2500"),
    ("3 millionaires", "3"),
    # fractions
    ("\\boxed{\\frac12}", "0.5"),
    ("\\frac{1}2", "0.5"),
    ("3\\frac12", "3.5"),
    ("\\boxed{-\\frac{1}{2}}", "-0.5"),
    ("$-\\frac{1}{2}$", "-0.5"),
    ("The answer is 1½.", "1.5"),
    ("The answer is 1 ½ cups", "1.5"),
    ("-½", "-0.5"),
    ("⅚", "5/6"),
    ("1⁄4", "0.25"),
    # words
    *((f"The answer is {word}.", str(value)) for value, word in enumerate(UP_TO_TWENTY.split())),
    ("The answer is Twenty-five apples", "25"),
    ("The answer is one hundred and five", "105"),
    ("The answer is five thousand, two hundred and twelve.", "5212"),
    ("The answer is minus two million", "-2000000"),
    ("5 apples and 7 pears: the answer is twelve", "12"),
    ("The answer is for four days. The number is 1000 + 1000 = 2000", "2000"),
    ("She has eleven left.", "11"),
    ("She has 3 left, all eleven of them gone", "3"),
    ("The answer is 5. No, the answer is one that I know.", "5"),
    ("The answer is one of them", None),
    ("The answer is the one on the left", None),
    ("The answer is three-fourths", None),
    ("The answer is two and a half", None),
    # sentences
    ("Answer: She needs 3 trips of 12 miles, so 36 miles", "36"),
    ("Answer: She needs 3 trips of 12 miles, thus 36 miles so far. Then 5.", "36"),
    ("The answer is 12, so she needs 3 more", "12"),
    ("Answer: {12}, so 3 more", "12"),
    ("Answer: Tom has 5 apples and 3 pears", "5"),
]

LETTERS = [
    ("B", "B"),
    ("(B)", "B"),
    ("b)", "B"),
    (" c ", "C"),
    ("**B)**", "B"),
    ("**B)** Paris", "B"),
    ("B. Paris", "B"),
    ("B: Paris", "B"),
    ("the answer is (c)", "C"),
    ("The answer is C", "C"),
    ("The answer is C.", "C"),
    ("The answer is: **D**", "D"),
    ("The answer is **(D)**.", "D"),
    ("The answer is B because it rains", "B"),
    ("Answer: B.", "B"),
    ("Answer: B<|eot_id|>", "B"),
    ("ANSWER: A", "A"),
    ("Answer:\n\nD) the last one", "D"),
    ("**Answer:** c", "C"),
    ("The correct answer is option D", "D"),
    ("The best answer choice is (A).", "A"),
    ("$\\boxed{B}$", "B"),
    ("\\boxed{\\text{C}}", "C"),
    ("\\boxed{\\boxed{C}}", "C"),
    ("\\boxed{(D) Paris}", "D"),
    ("The answer is A. No, wait. The answer is B.", "B"),
    ("The answer is not A. It is (D).", "D"),
    ("the answer is a dog", None),
    ("The answer is E", None),
    ("The answer is Paris", None),
    ("C is the correct answer", "C"),
    ("Option (B) is correct, although A looked good", "B"),
    ("A man walks. Therefore (D)", "D"),
    ("A man walks into a bar", None),
    ("I don't know", None),
    ("I'd go with B", "B"),
    ("Can't say; D'Artagnan", None),
    ("", None),
    ("<|endoftext|>" * 50, None),
    ("It is A", "A"),
    ("- A: wrong\n- C: right\n", "C"),
    ("The answer is A<|endoftext|><|endoftext|> trailing words", "A"),
    ("`C`", "C"),
    ('The answer is "C"', "C"),
    ("The answer is\nC", "C"),
    # one of two
    ("Either A or B", None),
    ("Either A or B. I'd say B", "B"),
    ("Either (A) or (B) is correct", None),
    ("The answer is either A or B.", None),
    ("The answer is A or B.", None),
    ("The answer is A. No, the answer is either B or C.", None),
    ("The answer is A/B", None),
    ("The answer is A and C.", None),
    ("The answer is A, because B is wrong", "A"),
    ("The answer is A, B is wrong", "A"),
    ("The correct option is either A or B", None),
    ("It could be A, B or C", None),
    ("Both A and D", None),
    ("Neither A nor B", None),
    ("B, not A", "B"),
    # cut off
    ("Option B. The answer is", None),
    ("Option B. The correct option is (", None),
    ("C is correct. The answer is", "C"),
    ("A) Paris B) Lon", None),
    ("A) Paris\nB) Lon", None),
    ("A) is wrong because it", None),
    ("I think A is wrong, and (C) is wrong too", None),
    # no list
    ("(A) is wrong, so (B) it is", "B"),
    ("I considered A. But B. It fits.", "B"),
    ("They need vitamin A. The dose is C. So take it.", "C"),
    ("A: x\nB: y\nC: z\nD: w\n\nA", "A"),
    ("C\n\nA) x\nB) y\nC) z\nD) w", "C"),
    ("A) True\nB) False\nThe correct option is B", "B"),
    ("- A: wrong\n- B: right\n", "B"),
    ("A) Right\nB) Left\nSo B", "B"),
    ("A) Correct\nB) Incorrect\nSo B", "B"),
    ("- A: Wrong.\n- B: Correct.\n", "B"),
    ("Surely A because it rains", "A"),
]
LISTS = [
    "A) Paris B) London C) Rome D) Berlin. ",
    "A. Paris B. London C. Rome D. Berlin. ",
    "A. Paris\nB. London\nC. Rome\nD. Berlin\n\n",
    "(A) Paris (B) London (C) Rome (D) Berlin\n",
    "[A] Paris [B] London [C] Rome [D] Berlin. ",
    "The options are: A: Paris, B: London, C: Rome, D: Berlin. ",
    "Option A: Paris. Option B: London. Option C: Rome. Option D: Berlin. ",
    "- **A)** Paris\n- **B)** London\n- **C)** Rome\n- **D)** Berlin\n",
    "**A**: Paris\n**B**: London\n**C**: Rome\n**D**: Berlin\n",
    "a) Paris b) London c) Rome d) Berlin. ",
    "A Paris\nB London\nC Rome\nD Berlin\n",
    "The options:\nA) Vitamin C is needed.\nB) London is in D.\nC) It is A.\nD) All.\n",
]
CHOSEN = [  # stated or chosen by words, also if strict
    "The correct option is B.", "The correct choice is (B).", "Hence, B is correct.", "I choose B.", "B it is.",
    "B is the right choice.", "the best choice would be B", "Correct: B", "Final choice: **B**", "I'd go with B.",
    "The right one is B", "We pick (b).", "Ans: B", "The correct option is\n\nB", "The correct option is B, not A.",
    "My answer would be B", "\\boxed{B}",
]  # fmt: skip
FOUND = [
    "So B.", "It must be B.", "B", "(B)", "**B**", "B) London", "I think it's B because of x.", "Therefore (B).",
    "That leaves B.", "Therefore option B.", "=> B", "It's B, rather than C.",
]  # fmt: skip
OPEN = ["", "The answer is", "The correct option is", "So the answer is either A or B.", "It is A or B.", "Let us see"]


@pytest.mark.parametrize(("text", "wanted"), NUMBERS)
def test_numbers(text: str, wanted: str | None) -> None:
    assert answers.find_number(text) == wanted


@pytest.mark.parametrize(("text", "wanted"), LETTERS)
def test_letters(text: str, wanted: str | None) -> None:
    assert answers.find_letter(text, "ABCD") == wanted


@pytest.mark.parametrize("listed", LISTS)
def test_options_that_are_listed_are_no_answer(listed: str) -> None:
    assert {end: answers.find_letter(listed + end, "ABCD") for end in (*CHOSEN, *FOUND)} == dict.fromkeys(
        CHOSEN + FOUND, "B"
    )
    assert {end: answers.find_letter(listed + end, "ABCD") for end in OPEN} == dict.fromkeys(OPEN)
    assert {answers.find_letter(listed + end, "ABCD", strict=True) for end in CHOSEN} == {"B"}
    assert {answers.find_letter(listed + end, "ABCD", strict=True) for end in (*FOUND, *OPEN)} == {None}


def test_a_list_of_two_is_a_list() -> None:
    assert answers.find_letter("The options are A) Sarah and B) Maria", "AB") is None
    assert answers.find_letter("A) Sarah B) Maria. So B.", "AB") == "B"


def test_the_letters_of_the_example_are_all_that_count() -> None:
    assert answers.find_letter("The answer is C", "AB") is None
    assert answers.find_letter("The answer is C", "ABC") == "C"
    assert answers.find_letter("I say C. So I stop here.", "ABCDEFGHIJKLM") == "C"
    assert answers.read_letter(" C", "AB") is None
    assert answers.read_letter("(b).", "AB") == "B"
    assert answers.read_letter("A B", "AB") is None


def test_a_number_needs_a_statement_to_be_stated() -> None:
    assert answers.find_stated_number("it is 5") is None
    assert answers.find_stated_number("the answer is 5, then 6") == "5"
    assert answers.find_number("it is 5", strict=True) is None
    assert answers.find_number("the answer is 5, then 6", strict=True) == "5"
    assert answers.find_number("twelve", strict=True) is None


@given(st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=1000))
def test_a_fraction_keeps_its_value(value: Fraction) -> None:
    found = answers.find_number(f"The answer is {value}.")
    assert found is not None
    assert Fraction(found) == value


@given(st.integers(-(10**15), 10**15), st.sampled_from(["{:d}", "{:,d}", "{:d}.00", "{:,d}.0"]))
def test_every_way_to_write_a_whole_number_is_the_same(value: int, form: str) -> None:
    written = form.format(value)
    for frame in ("The answer is {}.", "\\boxed{{{}}}", "**Answer:** {}", "#### {}\n<|endoftext|>", "so {}"):
        assert answers.find_number(frame.format(written)) == str(value)


@given(st.text(max_size=300))
def test_nothing_breaks_an_extractor(text: str) -> None:
    number = answers.find_number(text)
    assert number is None or answers.normalise_number(number) == number
    assert answers.find_letter(text, "ABCD") in {None, "A", "B", "C", "D"}
    assert answers.read_letter(text, "ABCD") in {None, "A", "B", "C", "D"}
    answers.find_code(text)
    equations = answers.find_equations(text)
    assert equations is None or answers.find_equations(equations) == equations
    grid = answers.find_grid(text)
    assert grid is None or answers.find_grid(grid) == grid


SIZE = 200_000
PIECES = {
    "number": (
        "answer is ", "answer ", "1,", "12,34,", "1 000 ", "1/", "\\frac{1}{", "1\\,", "one ",
        "five million ", "answer: so 1 so ", "\\boxed{",
    ),
    "letter": ("answer: A or ", "(A", "A) x B) y ", "a. ", "A is ", "option is ", "A  \n"),
    "code": (
        "```\n", "```python\n", "```", '```\n"""\n', "```\nx\n```\n", "x = (\n",
        "```\ndef f(): pass\n```\n",
    ),
    "equations": ("1 + 1 ", "1+", "123456789"),
    "grid": ("0123\n", "\n"),
}  # fmt: skip
TEXTS = [(name, piece * (SIZE // len(piece))) for name, pieces in PIECES.items() for piece in pieces] + [
    *((name, "answer" + piece * (SIZE // len(piece))) for name in ("number", "letter") for piece in (" ", "*\n")),
    ("number", "1/" + "9" * SIZE + ".5"),
    ("number", "\\frac" + " " * SIZE),
    ("letter", "A" + " " * SIZE + "x"),
    ("letter", "A" + ")" * SIZE),
    ("code", "```python\n" + "x = 1\n" * (SIZE // 6)),
    ("code", " " * SIZE + "x"),
    ("equations", "123456789" + " " * SIZE),
    ("bundled", "The answer is x" + " " * SIZE + "y"),
]
EXTRACTORS: dict[str, Callable[[str], Any]] = {
    "number": answers.find_number,
    "letter": lambda text: answers.find_letter(text, "ABCD"),
    "code": answers.find_code,
    "equations": answers.find_equations,
    "grid": answers.find_grid,
    "bundled": ANSWER.search,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "text"), TEXTS, ids=[f"{name} {text[:12]!r}" for name, text in TEXTS])
def test_hostile_texts_take_linear_time(name: str, text: str) -> None:
    """At this length, a quadratic pattern takes minutes and a linear one less than a third of a second."""
    started = time.process_time()
    EXTRACTORS[name](text)
    assert time.process_time() - started < 10


def repeats(tree: Any) -> Iterator[int]:
    """Yield the upper bound of each repeat that may backtrack."""
    for opcode, argument in tree:
        if opcode in {opcodes.MAX_REPEAT, opcodes.MIN_REPEAT}:
            yield argument[1]
        parts = argument if isinstance(argument, tuple | list) else (argument,)
        for part in parts:
            for branch in part if isinstance(part, list) else (part,):
                if isinstance(branch, parser.SubPattern):
                    yield from repeats(branch)


def test_no_unbounded_repeat_backtracks() -> None:
    """Time is linear: an attempt takes a bounded number of steps, and possessive repeats do not backtrack."""
    assert [*repeats(parser.parse("(?:a|(b*))(?=c{2,5})d*+"))] == [opcodes.MAXREPEAT, 5], "repeats() finds them"
    known = letters.compile_patterns("ABCD")
    found = [getattr(known, name) for name in known.__slots__]
    for module in (letters, numbers, programs, puzzles, statements):
        found += [value for value in vars(module).values() if isinstance(value, re.Pattern)]
    found += [pattern for pattern, _ in statements.LATEX]
    assert len(found) > 25
    assert [one.pattern for one in found if max(repeats(parser.parse(one.pattern)), default=0) > 60] == []


F = "def f(x):\n    return x"
G = "def g(x):\n    return f(x)"
DOCUMENTED = 'def f(x):\n    """Copy.\n\n    ```\n    >>> f(1)\n    ```\n    """\n    return x'
BROKEN = "import os\ndef f(:\n    return 1"
LONG = "x = 1\n" * 4000 + "It's too long to be looked at."
CODES = [
    # a fence in the pinned one
    (f"```python\n```python\n{F}\n```\nThis works.\n```", F),
    (f"```python\n\n```\n{F}\n```\n```", F),
    (f"```python\nHere it is:\n```py\n{F}\n```\n```", F),
    # prose
    (f"```python\n{F}\n\nThis doesn't do (much,\nand so on.\n```", F),
    (f"```python\nHere is the code:\n{F}\n```", F),
    (f"```python\n{F}\n\nAnd then:\n\n{G}\n```", f"{F}\n\n{G}"),
    (f"Sure, here it is:\n\n{F}\n\nIt's done.", F),
    ("```python\n    return 1\n\nThis is it.\n```", "    return 1"),
    ("```python\n    return h(1)\n\ndef h(x):\n    return x\n```", "    return h(1)\n\ndef h(x):\n    return x"),
    (f"```python\n{F}\n\ndef main():\n    print(", F),
    # several fences
    (f"```python\n{F}\n```\nand\n```python\n{G}\n```", f"{F}\n\n\n{G}"),
    (f"```python\n# first\nimport math\n```\nand\n```python\n{G}\n```", f"# first\nimport math\n\n\n{G}"),
    (f"```\n    def h(x):\n        return x\n```\n```\n{G}\n```", f"def h(x):\n    return x\n\n\n{G}"),
    (f"```python\n{F} + 1\nassert f(1) == 1\n```\nNo:\n```python\n{F}\n```\nThen\n```\nprint(f(2))\n```", F),
    (f"```python\n{F}\n```\nNo:\n```python\ndef f(x:\n    return 3", F),
    ("```python\n    return 1\n```\nNo:\n```python\n    return 2\n```\n\n```\n2\n```", "    return 2"),
    (f"```\n{F}\n```\n```\nclass A:\n    def f(self): ...\n```", f"{F}\n\n\nclass A:\n    def f(self): ..."),
    # other fences
    (f"~~~python\n{F}\n~~~\nok", F),
    (f"````python\n# not ```\n{F}\n````\nok", f"# not ```\n{F}"),
    (f"````markdown\n```python\n{F}\n```\n````\nok", F),
    (f"Use ```sorted``` here.\n```\n{F}\n```", F),
    ("So ```def f(): return 1``` it is", "def f(): return 1"),
    (f"```python\n{F}\n    ```", F),
    # fences in strings
    (f"```python\n{DOCUMENTED}\n```\nok", DOCUMENTED),
    (f"```python\n{DOCUMENTED.replace('    ```', '```python', 1)}```", DOCUMENTED.replace("    ```", "```python", 1)),
    ('```python\nx = """\n```\nNo:\n```python\n    return 1\n```', "    return 1"),
    # what is wrong stays wrong
    (f"```python\n{BROKEN}\n```", BROKEN),
    ("```python\ndef f(x):\n    return x\n    else: y\n```", "def f(x):\n    return x\n    else: y"),
    ("```python\nx = '\ud800'\n```", "x = '\ud800'"),
    ("```python\n" + "-" * 9000 + "1\n```", "-" * 9000 + "1"),
    ("```python\ndef f(x):\n    return '\\d'\n\nIt works.\n```", "def f(x):\n    return '\\d'"),
    (f"```python\n{LONG}\n```", LONG),
]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("```python\ndef f():\n    return 1\n```", "def f():\n    return 1"),
        ("```python\n    return 1\n```", "    return 1"),
        ("Sure!\n```\nx = 1\n```\nThen:\n```py\ndef f():\n    pass```", "def f():\n    pass"),
        ("```python\ndef f():\n    return 1", "def f():\n    return 1"),
        ("```python\ndef f():\r\n    return 1\r\n```", "def f():\n    return 1"),
        ("def f(): return 1<|endoftext|>", "def f(): return 1"),
        ("```python\n\n\n    return 1\n\n```", "    return 1"),
        ("```python\n```", None),
        ("", None),
        ("<|endoftext|>", None),
        *CODES,
    ],
    ids=lambda text: repr(text)[:50],
)
def test_code(text: str, wanted: str | None) -> None:
    assert answers.find_code(text) == wanted


def test_code_without_a_fence_is_not_read_strictly() -> None:
    assert answers.find_code(F, strict=True) is None
    assert answers.find_code(f"```\n{F}\n```", strict=True) == F


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("44-15=29,79-29=50", "44-15=29,79-29=50"),
        ("44 - 15 = 29, 79 - 29 = 50.", "44-15=29,79-29=50"),
        ("2 × 3 = 6, 6 ÷ 2 = 3", "2*3=6,6/2=3"),
        ("try 1+1=2\n44−15=29,79-29=50<|endoftext|>", "44-15=29,79-29=50"),
        ("__import__('os')", None),
        ("", None),
    ],
)
def test_equations(text: str, wanted: str | None) -> None:
    assert answers.find_equations(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1423\n2341\n3214\n4132", "1423\n2341\n3214\n4132"),
        ("Solution:\n1 4 2 3\n2 3 4 1\n3 2 1 4\n4 1 3 2\nDone", "1423\n2341\n3214\n4132"),
        ("[1, 4, 2, 3]\n[2, 3, 4, 1]\n[3, 2, 1, 4]\n[4, 1, 3, 2]", "1423\n2341\n3214\n4132"),
        ("1423\n2341\n\n3214\n4132", None),
        ("1423\n2341\n3214", None),
        ("", None),
    ],
)
def test_grids(text: str, wanted: str | None) -> None:
    assert answers.find_grid(text) == wanted
