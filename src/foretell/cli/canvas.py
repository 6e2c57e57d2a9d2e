"""The canvas as text: every position at its place in the text, drawn by its status."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from rich.text import Text

from foretell.loop.spelling import blank_between, looks_spaced

if TYPE_CHECKING:
    from foretell.engine.codec import Codec
    from foretell.engine.engine import Frame

Spell = Callable[[int], str]


class Look(Enum):
    """The status of a position. Looks can be told apart even without colour."""

    MASK = "bright_black"  # drawn as shading
    DRAFT = "dim italic"  # still masked, with the same draft twice in a row
    FRESH = "bold reverse cyan"  # committed by this step
    DONE = "default"
    PINNED = "bold"
    ALL_IN = "bold underline green"  # committed at once, when the answer was settled


LEGEND = (
    ("░░░ mask", Look.MASK),
    ("draft", Look.DRAFT),
    ("just committed", Look.FRESH),
    ("committed", Look.DONE),
    ("all-in commit", Look.ALL_IN),
)
SHADE, END, OPEN, CLOSE = "░", "·", "⟦", "⟧"


def legend() -> Text:
    parts = Text(no_wrap=True)
    for word, look in LEGEND:
        parts.append(word, style=look.value).append("  ")
    return parts.append(f"{OPEN}answer{CLOSE}", style="bold green")


def speller(codec: Codec) -> Spell:
    """Return a function that writes a token on a canvas: end tokens as a dot, line breaks unchanged."""
    known: dict[int, str] = {}

    def spell(token: int) -> str:
        if token not in known:
            raw = codec.decode([token], skip_special=False)
            piece = raw if "\n" in raw else codec.pieces([token])[0]
            known[token] = END if token in codec.end_ids else piece
        return known[token]

    return spell


class Canvas:
    """Holds the latest frame of one decoding for drawing; frames may be skipped."""

    def __init__(self, spell: Spell) -> None:
        self.spell = spell
        self.frame: Frame | None = None
        self.steady: tuple[bool, ...] = ()
        self.gauges: list[tuple[float, float]] = []

    def update(self, frame: Frame) -> None:
        before = self.frame.tokens if self.frame is not None else frame.tokens
        first = self.frame is None
        self.steady = tuple(not first and a == b for a, b in zip(before, frame.tokens, strict=True))
        if frame.gauge is not None:
            self.gauges.append(frame.gauge)
        self.frame = frame

    def look(self, at: int) -> Look:
        frame = self.frame
        assert frame is not None, "nothing has been decoded yet"
        if frame.pinned[at]:
            return Look.PINNED
        if frame.fresh[at]:
            return Look.ALL_IN if frame.settled else Look.FRESH
        if frame.filled[at]:
            return Look.DONE
        return Look.DRAFT if self.steady[at] else Look.MASK

    def text(self, brief: bool = False) -> Text:
        """Return the whole window, with the answer in brackets if it is contiguous.

        If `brief`, for a log: one glyph per mask; only drafts of the answer are shown, followed by a question mark.
        """
        if self.frame is None:
            return Text()
        pieces = [self.spell(token) for token in self.frame.tokens]
        spaced, drawn, before = looks_spaced(pieces), Text(), ""
        first, last = contiguous_span(self.frame.answer, self.frame.pinned)
        for at, piece in enumerate(pieces):
            if spaced and not before == piece == END:
                drawn.append(blank_between(before, piece))
            look, before = self.look(at), piece
            if brief and look is Look.DRAFT and not first <= at <= last:
                look = Look.MASK
            body = SHADE if brief and look is Look.MASK else _draw_piece(piece.removeprefix("##"), look)
            if at == first:
                blank = len(body) - len(body.lstrip(" "))
                drawn.append(" " * blank).append(OPEN, style="bold green")
                body = body[blank:]
            _append(drawn, body, look)
            if at == last:
                guessed = brief and not all(self.frame.filled[first : last + 1])
                drawn.append(f"{CLOSE}?" if guessed else CLOSE, style="bold green")
        return drawn

    def line(self) -> str:
        """Return the window on one line of plain text, for a log."""
        plain = " ".join(self.text(brief=True).plain.replace("⏎", " ").split())
        plain = re.sub(f"(?<={SHADE}) (?={SHADE})", "", plain)
        return re.sub(f"{END}+", END, plain)


def contiguous_span(where: Sequence[bool], pinned: Sequence[bool]) -> tuple[int, int]:
    """Return the first and last true index of `where` if all between are true or pinned, else (-1, -1).

    Also (-1, -1) if none or all of the values are true, since brackets would not help.
    """
    hits = [at for at, inside in enumerate(where) if inside]
    between = range(hits[0], hits[-1]) if hits else range(0)
    if not hits or len(hits) == len(where) or not all(where[at] or pinned[at] for at in between):
        return -1, -1
    return hits[0], hits[-1]


def _draw_piece(piece: str, look: Look) -> str:
    if look is Look.MASK:
        blank = len(piece) - len(piece.lstrip(" "))
        return " " * blank + SHADE * max(1, min(8, len(piece.strip())))
    return piece if look in (Look.DONE, Look.PINNED) else piece.replace("\n", "⏎\n")


def _append(drawn: Text, body: str, look: Look) -> None:
    """Append `body` with only its visible part styled: a reversed blank would look like a bar."""
    bare = body.strip(" ")
    left = len(body) - len(body.lstrip(" "))
    drawn.append(" " * left).append(bare, style=look.value).append(" " * (len(body) - left - len(bare)))
