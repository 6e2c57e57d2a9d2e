"""What models write, and the answer in it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.lab import extract

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
]


@pytest.mark.parametrize(("text", "wanted"), NUMBERS)
def test_numbers(text: str, wanted: str | None) -> None:
    assert extract.number(text) == wanted


@pytest.mark.parametrize(("text", "wanted"), LETTERS)
def test_letters(text: str, wanted: str | None) -> None:
    assert extract.letter(text, "ABCD") == wanted


def test_the_letters_of_the_example_are_all_that_count() -> None:
    assert extract.letter("The answer is C", "AB") is None
    assert extract.letter("The answer is C", "ABC") == "C"
    assert extract.lone_letter(" C", "AB") is None
    assert extract.lone_letter("(b).", "AB") == "B"
    assert extract.lone_letter("A B", "AB") is None


def test_a_number_needs_a_statement_to_be_stated() -> None:
    assert extract.stated_number("it is 5") is None
    assert extract.stated_number("the answer is 5, then 6") == "5"


@given(st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=1000))
def test_a_fraction_keeps_its_value(value: Fraction) -> None:
    told = extract.number(f"The answer is {value}.")
    assert told is not None
    assert Fraction(told) == value


@given(st.integers(-(10**15), 10**15), st.sampled_from(["{:d}", "{:,d}", "{:d}.00", "{:,d}.0"]))
def test_every_way_to_write_a_whole_number_is_the_same(value: int, form: str) -> None:
    written = form.format(value)
    for frame in ("The answer is {}.", "\\boxed{{{}}}", "**Answer:** {}", "#### {}\n<|endoftext|>", "so {}"):
        assert extract.number(frame.format(written)) == str(value)


@given(st.text(max_size=300))
def test_nothing_breaks_an_extractor(text: str) -> None:
    number = extract.number(text)
    assert number is None or extract.plain_number(number) == number
    assert extract.letter(text, "ABCD") in {None, "A", "B", "C", "D"}
    assert extract.lone_letter(text, "ABCD") in {None, "A", "B", "C", "D"}
    extract.code(text)
    equations = extract.equations(text)
    assert equations is None or extract.equations(equations) == equations
    grid = extract.grid(text)
    assert grid is None or extract.grid(grid) == grid


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece",
    ["answer is ", "1,", "1/", "-", "\\boxed{", "(A", "```", "a" * 50 + " ", "{,}", "**", "\n", "1+", " ", "=", "<|"],
)
def test_long_texts_take_no_time(piece: str) -> None:
    text = piece * (20_000 // len(piece))
    extract.number(text)
    extract.letter(text, "ABCD")
    extract.code(text)
    extract.equations(text)
    extract.grid(text)


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
    ],
)
def test_code(text: str, wanted: str | None) -> None:
    assert extract.code(text) == wanted


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
    assert extract.equations(text) == wanted


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
    assert extract.grid(text) == wanted
