"""Places for labels beside their points, so that none covers another label, a point or a line; greedy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Pair = tuple[float, float]
RADII = (8, 11, 15, 20, 26, 33, 41, 50)  # from a point to the middle of its label
TURNS = 24  # directions tried at each radius, from the top on
STRIDE = 3  # between the places at which a line is looked at


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle by its middle."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: Box) -> bool:
        return (
            abs(self.x - other.x) < (self.width + other.width) / 2
            and abs(self.y - other.y) < (self.height + other.height) / 2
        )

    def within(self, other: Box) -> bool:
        return (
            abs(self.x - other.x) <= (other.width - self.width) / 2
            and abs(self.y - other.y) <= (other.height - self.height) / 2
        )


def cover_line(start: Pair, end: Pair) -> Iterator[Box]:
    """A line as boxes of no size."""
    pieces = max(1, math.ceil(math.dist(start, end) / STRIDE))
    for piece in range(pieces + 1):
        share = piece / pieces
        yield Box(start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]), 0, 0)


def place_labels(points: Sequence[Pair], sizes: Sequence[Pair], inside: Box, taken: Sequence[Box]) -> list[Box]:
    """A box for each point's label, all in one unit: the nearest place that is free, else the least covered one.

    `taken` must be kept clear, the boxes around the points themselves included.
    """
    boxes: list[Box] = []
    for point, size in zip(points, sizes, strict=True):
        tried = [box for box in _around(point, size) if box.within(inside)]
        boxes.append(min(tried, key=lambda box: _trouble(box, point, taken, boxes)))
    return boxes


def _around(point: Pair, size: Pair) -> Iterator[Box]:
    for radius in RADII:
        for turn in range(TURNS):
            angle = 2 * math.pi * turn / TURNS
            yield Box(point[0] + radius * math.sin(angle), point[1] + radius * math.cos(angle), *size)


def _trouble(box: Box, point: Pair, taken: Sequence[Box], boxes: Sequence[Box]) -> tuple[int, int]:
    """How many things the label covers, then how many make it doubtful whose it is; both 0 of a good place.

    Doubtful: what its leader runs across, and what lies nearer to it than its own point. A leader through another label
    counts as covering it.
    """
    own = Box(*point, 0, 0)
    middle, leader = (box.x, box.y), list(cover_line(point, (box.x, box.y)))
    others = [one for one in taken if one.width and not one.meets(own)]
    covered = sum(box.meets(one) for one in (*taken, *boxes)) + sum(_crosses(one, leader) for one in boxes)
    nearer = sum(math.dist(middle, (one.x, one.y)) < math.dist(middle, point) for one in others)
    return covered, nearer + sum(_crosses(one, leader) for one in others)


def _crosses(one: Box, line: Sequence[Box]) -> bool:
    return any(one.meets(piece) for piece in line)
