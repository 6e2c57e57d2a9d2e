"""Word problems with a chain of one to five steps: "3 * 4 = 12 . 12 - 5 = 7 . The answer is 7"."""

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
    """One equation. `left_from` and `right_from` are the steps whose results are its operands, or None."""

    left: int
    operator: str
    right: int
    result: int
    left_from: int | None = None
    right_from: int | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """A word problem without its question, and the steps that solve it."""

    sentences: tuple[str, ...]
    steps: tuple[Step, ...]
    subject: str
    things: str
    shrank: bool  # the last step was a subtraction

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
        story = draw_story(rng, count)
        prompt = " ".join((*story.sentences, draw_question(rng, story)))
        answer = f" {story.steps[-1].result}"
        return Problem(story.core, prompt, write_chain(story), f" {self.suffix}", answer, len(story.steps) + 2)

    def check(self, problem: Problem, text: str) -> bool:
        """Whether the answer is right; errors in the chain of steps do not count."""
        found = ANSWER.search(text.strip())
        return found is not None and int(found[1]) == int(problem.answer)


@dataclass(slots=True)
class StoryBuilder:
    """Draws a story sentence by sentence and keeps its total. A sentence that does not fit is skipped."""

    rng: Generator
    subject: str
    things: str
    total: int = 0
    source: int | None = None  # the step that gave the total
    shrank: bool = False
    sentences: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def begin(self) -> None:
        if self.rng.random() < 0.4:
            k, m = draw_groups(self.rng, LARGEST)
            self.sentences.append(f"{self.subject} has {k} {choose(self.rng, HOLDERS)} with {m} {self.things} each.")
            self.steps.append(Step(k, "*", m, k * m))
            self.total, self.source = k * m, 0
        else:
            self.total = int(self.rng.integers(2, 91))
            self.sentences.append(f"{self.subject} has {self.total} {self.things}.")

    def add_sentence(self, wanted: int) -> None:
        """Add a sentence of at most `wanted` steps."""
        pronoun = PEOPLE[self.subject]
        who = pronoun if self.rng.random() < 0.75 else f"Then {pronoun.lower()}"
        kind = self.rng.random()
        if wanted >= 2 and kind < 0.3:
            self.change_by_groups(who)
        elif kind < 0.4 and 2 <= self.total <= LARGEST // 2:
            self.multiply()
        elif kind < 0.7:
            self.gain(who)
        else:
            self.lose(who)

    def change_by_groups(self, who: str) -> None:
        grows = bool(self.rng.random() < 0.5)
        room = LARGEST - self.total if grows else self.total
        if room < 4:
            return
        k, m = draw_groups(self.rng, room)
        self.steps.append(Step(k, "*", m, k * m))
        if grows:
            verb, holders = choose(self.rng, GAINS), choose(self.rng, HOLDERS)
            self.add_step(f"{who} {verb} {k} {holders} with {m} each.", "+", k * m, len(self.steps) - 1)
        else:
            self.add_step(f"{who} gives {m} to each of {k} friends.", "-", k * m, len(self.steps) - 1)

    def multiply(self) -> None:
        times = int(self.rng.integers(2, min(9, LARGEST // self.total) + 1))
        self.subject = choose(self.rng, tuple(name for name in PEOPLE if name != self.subject))
        self.add_step(f"{self.subject} has {'twice' if times == 2 else f'{times} times'} as many.", "*", times)

    def gain(self, who: str) -> None:
        if self.total < LARGEST - 1:
            more = int(self.rng.integers(1, LARGEST - self.total + 1))
            self.add_step(f"{who} {choose(self.rng, GAINS)} {more} more.", "+", more)

    def lose(self, who: str) -> None:
        if self.total >= 2:
            less = int(self.rng.integers(1, self.total + 1))
            verb = choose(self.rng, (*LOSSES, "eats") if self.things in FOOD else LOSSES)
            self.add_step(f"{who} {verb} {less}.", "-", less)

    def add_step(self, sentence: str, operator: str, right: int, right_from: int | None = None) -> None:
        result = {"+": self.total + right, "-": self.total - right, "*": self.total * right}[operator]
        self.sentences.append(sentence)
        self.steps.append(Step(self.total, operator, right, result, self.source, right_from))
        self.total, self.source, self.shrank = result, len(self.steps) - 1, operator == "-"


def draw_story(rng: Generator, count: int) -> Story:
    """Draw a story of exactly `count` steps. All numbers are in 0..99, and only the last result may be 0."""
    while True:
        builder = StoryBuilder(rng, choose(rng, tuple(PEOPLE)), choose(rng, FOOD + THINGS))
        builder.begin()
        while len(builder.steps) < count and builder.total:
            builder.add_sentence(count - len(builder.steps))
        if len(builder.steps) == count:
            return Story(
                tuple(builder.sentences), tuple(builder.steps), builder.subject, builder.things, builder.shrank
            )  # fmt: skip


def draw_groups(rng: Generator, room: int) -> tuple[int, int]:
    """Draw a number of groups and their size, with a product of at most `room`."""
    k = int(rng.integers(2, min(9, room // 2) + 1))
    m = int(rng.integers(2, min(20, room // k) + 1))
    return k, m


def draw_question(rng: Generator, story: Story) -> str:
    if story.shrank and rng.random() < 0.7:
        return f"How many {story.things} are left?"
    who = story.subject if rng.random() < 0.5 else PEOPLE[story.subject].lower()
    return f"How many {story.things} does {who} have{' now' if rng.random() < 0.5 else ''}?"


def write_chain(story: Story) -> tuple[Piece, ...]:
    """Return the steps as pieces. The first operand of a step includes the blank after the previous step."""
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


def choose(rng: Generator, options: tuple[str, ...]) -> str:
    return options[rng.integers(len(options))]
