"""Word problems in plain English with a chain of one to five steps: "3 * 4 = 12 . 12 - 5 = 7 . The answer is 7"."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from numpy.random import Generator

from foretell.tasks.problem import Piece, Problem

LARGEST = 99
PEOPLE = {
    **dict.fromkeys(("Adam", "Ben", "Dan", "Jack", "Leo", "Max", "Noah", "Paul", "Sam", "Tom"), "He"),
    **dict.fromkeys(("Amy", "Ann", "Emma", "Eva", "Kate", "Lily", "Lucy", "Mia", "Sara", "Zoe"), "She"),
}
FOOD = ("apples", "cakes", "cookies", "eggs", "grapes", "nuts", "oranges", "pears", "plums", "sweets")
THINGS = ("balls", "beads", "books", "cards", "coins", "flowers", "marbles", "pens", "shells", "stamps", "toys")
HOLDERS = ("bags", "baskets", "bowls", "boxes", "crates", "jars", "packs", "trays")
GAINS = ("buys", "collects", "finds", "gets", "makes", "picks", "takes", "wins")
LOSSES = ("breaks", "drops", "gives away", "hides", "loses", "sells", "throws away", "uses")
ANSWER = re.compile(r"The answer is (\d+)\s*$")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of arithmetic. `left_from` and `right_from` name the earlier step an operand comes from, if one."""

    left: int
    operator: str
    right: int
    result: int
    left_from: int | None = None
    right_from: int | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """A question without its last sentence, and the steps that answer it."""

    sentences: tuple[str, ...]
    steps: tuple[Step, ...]
    subject: str
    things: str
    shrank: bool  # the last thing that happened took some away

    @property
    def core(self) -> str:
        return ";".join(f"{s.left}{s.operator}{s.right}" for s in self.steps)


@dataclass(frozen=True, slots=True)
class Word:
    """Implements `Task`."""

    name: str = "word"
    window: int = 64
    block: int = 32
    suffix: str = "The answer is"
    answer_length: int = 2
    lengths: tuple[float, ...] = (0.06, 0.12, 0.22, 0.27, 0.33)  # share of chains of one to five steps

    @property
    def texts(self) -> tuple[str, ...]:
        return (
            *PEOPLE, *PEOPLE.values(), *FOOD, *THINGS, *HOLDERS, *GAINS, *LOSSES, "eats",
            "Tom has 3 boxes with 4 apples each. He buys 5 more. How many apples are left? How many does he have now?",
            "Then he gives 3 to each of 4 friends. Ann has twice as many. Then she has 3 times as many.",
            "1 + 2 = 3 . 4 * 5 = 20 . 7 - 6 = 1 . The answer is 7",
        )  # fmt: skip

    def sample(self, rng: Generator) -> Problem:
        count = 1 + int(rng.choice(len(self.lengths), p=self.lengths))
        story = tell(rng, count)
        prompt = " ".join((*story.sentences, closing(rng, story)))
        answer = f" {story.steps[-1].result}"
        return Problem(story.core, prompt, chain(story), f" {self.suffix}", answer, len(story.steps) + 2)

    def check(self, problem: Problem, text: str) -> bool:
        """Only the answer counts: a slip in the chain that does not reach it is forgiven."""
        found = ANSWER.search(text.strip())
        return found is not None and int(found[1]) == int(problem.answer)


@dataclass(slots=True)
class Teller:
    """Makes up a story sentence by sentence, and keeps the books. A sentence that does not fit is not told."""

    rng: Generator
    subject: str
    things: str
    total: int = 0
    source: int | None = None  # the step that the total comes from
    shrank: bool = False
    sentences: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def begin(self) -> None:
        if self.rng.random() < 0.4:
            k, m = groups(self.rng, LARGEST)
            self.sentences.append(f"{self.subject} has {k} {pick(self.rng, HOLDERS)} with {m} {self.things} each.")
            self.steps.append(Step(k, "*", m, k * m))
            self.total, self.source = k * m, 0
        else:
            self.total = int(self.rng.integers(2, 91))
            self.sentences.append(f"{self.subject} has {self.total} {self.things}.")

    def go_on(self, wanted: int) -> None:
        """One more sentence, of at most `wanted` steps."""
        pronoun = PEOPLE[self.subject]
        who = pronoun if self.rng.random() < 0.75 else f"Then {pronoun.lower()}"
        kind = self.rng.random()
        if wanted >= 2 and kind < 0.3:
            self.by_groups(who)
        elif kind < 0.4 and 2 <= self.total <= LARGEST // 2:
            self.multiply()
        elif kind < 0.7:
            self.gain(who)
        else:
            self.lose(who)

    def by_groups(self, who: str) -> None:
        grows = bool(self.rng.random() < 0.5)
        room = LARGEST - self.total if grows else self.total
        if room < 4:
            return
        k, m = groups(self.rng, room)
        self.steps.append(Step(k, "*", m, k * m))
        if grows:
            verb, holders = pick(self.rng, GAINS), pick(self.rng, HOLDERS)
            self.happen(f"{who} {verb} {k} {holders} with {m} each.", "+", k * m, len(self.steps) - 1)
        else:
            self.happen(f"{who} gives {m} to each of {k} friends.", "-", k * m, len(self.steps) - 1)

    def multiply(self) -> None:
        times = int(self.rng.integers(2, min(9, LARGEST // self.total) + 1))
        self.subject = pick(self.rng, tuple(name for name in PEOPLE if name != self.subject))
        self.happen(f"{self.subject} has {'twice' if times == 2 else f'{times} times'} as many.", "*", times)

    def gain(self, who: str) -> None:
        if self.total < LARGEST - 1:
            more = int(self.rng.integers(1, LARGEST - self.total + 1))
            self.happen(f"{who} {pick(self.rng, GAINS)} {more} more.", "+", more)

    def lose(self, who: str) -> None:
        if self.total >= 2:
            less = int(self.rng.integers(1, self.total + 1))
            verb = pick(self.rng, (*LOSSES, "eats") if self.things in FOOD else LOSSES)
            self.happen(f"{who} {verb} {less}.", "-", less)

    def happen(self, sentence: str, operator: str, right: int, right_from: int | None = None) -> None:
        result = {"+": self.total + right, "-": self.total - right, "*": self.total * right}[operator]
        self.sentences.append(sentence)
        self.steps.append(Step(self.total, operator, right, result, self.source, right_from))
        self.total, self.source, self.shrank = result, len(self.steps) - 1, operator == "-"


def tell(rng: Generator, count: int) -> Story:
    """A story of exactly `count` steps whose every number stays in 0..99; only the last may be 0."""
    while True:
        teller = Teller(rng, pick(rng, tuple(PEOPLE)), pick(rng, FOOD + THINGS))
        teller.begin()
        while len(teller.steps) < count and teller.total:
            teller.go_on(count - len(teller.steps))
        if len(teller.steps) == count:
            return Story(
                tuple(teller.sentences), tuple(teller.steps), teller.subject, teller.things, teller.shrank
            )  # fmt: skip


def groups(rng: Generator, room: int) -> tuple[int, int]:
    """How many groups of how many, with a product of at most `room`."""
    k = int(rng.integers(2, min(9, room // 2) + 1))
    m = int(rng.integers(2, min(20, room // k) + 1))
    return k, m


def closing(rng: Generator, story: Story) -> str:
    if story.shrank and rng.random() < 0.7:
        return f"How many {story.things} are left?"
    who = story.subject if rng.random() < 0.5 else PEOPLE[story.subject].lower()
    return f"How many {story.things} does {who} have{' now' if rng.random() < 0.5 else ''}?"


def chain(story: Story) -> tuple[Piece, ...]:
    """The steps written out. The first of a line's operands carries the blank that parts it from the line before."""
    pieces: list[Piece] = []
    for index, step in enumerate(story.steps):
        blank = " " if index else ""
        pieces += (
            Piece(f"{blank}{step.left}", operand_level(step.left_from)),
            Piece(f" {step.operator} "),
            Piece(str(step.right), operand_level(step.right_from)),
            Piece(" = "),
            Piece(str(step.result), 2 + index),
            Piece(" ."),
        )
    return tuple(pieces)


def operand_level(source: int | None) -> int:
    return 1 if source is None else 2 + source


def pick(rng: Generator, options: tuple[str, ...]) -> str:
    return options[rng.integers(len(options))]
