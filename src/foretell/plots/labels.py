"""Place labels next to their points, greedily, so that none covers another label, a point or a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Pair = tuple[float, float]
RADII = (8, 11, 15, 20, 26, 33, 41, 50)  # distances from a point to the centre of its label
TURNS = 24  # directions tried at each radius, starting at the top
STRIDE = 3  # distance between the samples of a line


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, given by its centre and size."""

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
    """Yield points along a line, as boxes of size 0."""
    pieces = max(1, math.ceil(math.dist(start, end) / STRIDE))
    for piece in range(pieces + 1):
        share = piece / pieces
        yield Box(start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]), 0, 0)


def place_labels(points: Sequence[Pair], sizes: Sequence[Pair], inside: Box, taken: Sequence[Box]) -> list[Box]:
    """Return a box for each point's label: the nearest free place, otherwise the one with the fewest overlaps.

    `taken` are boxes to keep clear, including those around the points. All values have the same unit.
    """
    boxes: list[Box] = []
    for point, size in zip(points, sizes, strict=True):
        tried = [box for box in _boxes_around(point, size) if box.within(inside)]
        boxes.append(min(tried, key=lambda box: _count_conflicts(box, point, taken, boxes)))
    return boxes


def _boxes_around(point: Pair, size: Pair) -> Iterator[Box]:
    for radius in RADII:
        for turn in range(TURNS):
            angle = 2 * math.pi * turn / TURNS
            yield Box(point[0] + radius * math.sin(angle), point[1] + radius * math.cos(angle), *size)


def _count_conflicts(box: Box, point: Pair, taken: Sequence[Box], boxes: Sequence[Box]) -> tuple[int, int]:
    """Count the things that the label covers, and those that make its point ambiguous; both are 0 at a good place.

    Ambiguous: what its leader line crosses, and what is nearer to it than its own point. A leader line through another
    label counts as covering it.
    """
    own = Box(*point, 0, 0)
    middle, leader = (box.x, box.y), list(cover_line(point, (box.x, box.y)))
    others = [one for one in taken if one.width and not one.meets(own)]
    covered = sum(box.meets(one) for one in (*taken, *boxes)) + sum(_crosses(one, leader) for one in boxes)
    nearer = sum(math.dist(middle, (one.x, one.y)) < math.dist(middle, point) for one in others)
    return covered, nearer + sum(_crosses(one, leader) for one in others)


def _crosses(one: Box, line: Sequence[Box]) -> bool:
    return any(one.meets(piece) for piece in line)
