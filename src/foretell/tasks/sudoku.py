"""Sudoku on 4x4 cells: rows of digits, 0 for a blank; the response is the filled grid."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from foretell.tasks.problem import Piece, Problem

SIDE = 4
CELLS = SIDE * SIDE
FEWEST, MOST = 4, 12  # number of givens


@dataclass(frozen=True, slots=True)
class Sudoku:
    """Implements `Task`."""

    name: str = "sudoku"
    window: int = 24
    block: int = 24
    suffix: str = ""
    answer_length: int = 19

    @property
    def texts(self) -> tuple[str, ...]:
        return ("1003\n0300\n3210\n4132",)

    def sample(self, rng: Generator) -> Problem:
        """Draw a puzzle with exactly one solution; every number of givens is equally likely."""
        grids, agreement = solutions()
        count = int(rng.integers(FEWEST, MOST + 1))
        while True:
            grid = int(rng.integers(len(grids)))
            given = rng.permutation(CELLS)[:count]
            wanted = np.uint16(sum(1 << int(cell) for cell in given))
            # Every grid agrees with itself, so the solution is unique if only one grid agrees on all givens.
            if ((agreement[grid] & wanted) == wanted).sum() == 1:
                return make_problem(grids[grid], {int(cell) for cell in given})

    def check(self, problem: Problem, text: str) -> bool:
        """Whether the grid is full, keeps the givens and has 1 to 4 in every row, column and box."""
        rows = text.strip().split("\n")
        if len(rows) != SIDE or any(len(row) != SIDE for row in rows):
            return False
        cells, givens = "".join(rows), problem.prompt.replace("\n", "")
        kept = all(given in ("0", cell) for given, cell in zip(givens, cells, strict=True))
        return kept and all(sorted(cells[i] for i in unit) == list("1234") for unit in units())


def make_problem(grid: NDArray[np.int64], given: set[int]) -> Problem:
    puzzle = "\n".join("".join(str(grid[r * 4 + c]) if r * 4 + c in given else "0" for c in range(4)) for r in range(4))
    pieces = [
        piece
        for cell in range(CELLS)
        for piece in (
            *((Piece("\n"),) if cell and cell % SIDE == 0 else ()),
            Piece(str(grid[cell]), 1 if cell in given else 2),
        )
    ]
    return Problem(puzzle, puzzle, tuple(pieces), "", "", 0)


@cache
def units() -> tuple[tuple[int, ...], ...]:
    """Return the cells of every row, column and box."""
    rows = [tuple(r * 4 + c for c in range(4)) for r in range(4)]
    columns = [tuple(r * 4 + c for r in range(4)) for c in range(4)]
    boxes = [tuple((r + i) * 4 + c + j for i in (0, 1) for j in (0, 1)) for r in (0, 2) for c in (0, 2)]
    return (*rows, *columns, *boxes)


@cache
def solutions() -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """Return all 288 grids [288, 16] and, for each pair, the cells on which they agree, as bits [288, 288]."""
    rows = list(permutations((1, 2, 3, 4)))
    grids: list[tuple[int, ...]] = [()]
    for _ in range(SIDE):
        grids = [(*grid, *row) for grid in grids for row in rows if is_consistent((*grid, *row))]
    cells = np.array(grids)
    same = cells[:, None, :] == cells[None, :, :]
    bits = (same * (1 << np.arange(CELLS))).sum(-1).astype(np.uint16)
    return cells, bits


def is_consistent(cells: tuple[int, ...]) -> bool:
    """Whether no column or box of the first rows repeats a digit."""
    for unit in units():
        seen = [cells[i] for i in unit if i < len(cells)]
        if len(seen) != len(set(seen)):
            return False
    return True
