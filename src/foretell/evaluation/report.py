"""The report of an evaluation: accuracy and cost of each recipe, compared with the first recipe."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell.errors import RequestError, StorageError, show, unknown
from foretell.evaluation.intervals import mcnemar, paired_difference, penalised_speedup, wilson
from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.records import Record, read_records
from foretell.storage import write_file

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class ReportRow:
    """The results of one recipe. Comparisons with the first recipe use `pairs`: examples that both have finished."""

    recipe: str
    n: int
    accuracy: float
    accuracy_low: float  # Wilson, 95%
    accuracy_high: float
    fallbacks: float | None  # share of answers that the text does not state; None: not recorded
    steps: float  # mean
    budget: float  # mean
    forwards: float  # mean
    columns: float  # mean number of columns that these passes needed
    padded: float | None  # share of padding in the computed columns; None: not recorded
    tokens_per_forward: float  # response tokens, up to the end of the text
    seconds: float  # mean wall-clock time per example
    settled: float  # share of examples that the stopping rule ended
    pairs: int
    step_speedup: float  # the first recipe's steps over this one's
    budget_speedup: float  # the paper's: the first recipe's budget (with pins) over this one's steps
    clock_speedup: float
    difference: float  # accuracy minus the first recipe's
    difference_low: float  # Tango's 95% interval of paired shares
    difference_high: float
    lost: int  # right under the first recipe, wrong under this one
    won: int
    mcnemar_p: float
    agreement: float  # share of equal answers
    penalised_speedup: float | None  # step_speedup x (accuracy / the first recipe's)^4


@dataclass(frozen=True, slots=True)
class Report:
    manifest: Mapping[str, Any]
    rows: tuple[ReportRow, ...]
    sandbox: Mapping[str, int] = field(default_factory=dict)  # number of programs that ran at each level

    @property
    def expected(self) -> int:
        """The number of results per recipe once the evaluation is complete."""
        return int(self.manifest["examples"])

    @property
    def title(self) -> str:
        manifest = self.manifest
        mode = ", strict" if manifest.get("strict") else ""
        return f"{manifest['task']}{mode}, {manifest['model']}, seed {manifest['seed']}, n = {self._format_count()}" + (
            f", sandbox: {self._format_sandbox()}" if self.sandbox else ""
        )

    def _format_count(self) -> str:
        finished = {row.n for row in self.rows}
        if finished == {self.expected}:
            return str(self.expected)
        return f"{'/'.join(str(row.n) for row in self.rows)} of {self.expected} (not complete)"

    def _format_sandbox(self) -> str:
        if len(self.sandbox) == 1:
            return next(iter(self.sandbox))
        return f"mixed ({', '.join(f'{count} {level}' for level, count in self.sandbox.items())})"

    def cells(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the headings and the rows as text."""
        return HEADINGS, [_format_cells(row, first=index == 0) for index, row in enumerate(self.rows)]

    def markdown(self) -> str:
        headings, rows = self.cells()
        ruler = (" --- ", *(" ---: " for _ in headings[1:]))
        table = "\n".join("| " + " | ".join(row) + " |" for row in (headings, *rows))
        top, _, rest = table.partition("\n")
        listed = "".join(
            f"- `{name}` is `{used['recipe']}`" + _format_options(used["options"]) + "\n"
            for name, used in self.manifest["recipes"].items()
        )
        return f"# {self.title}\n\n{top}\n|{'|'.join(ruler)}|\n{rest}\n\n{LEGEND}\n\n{listed}"

    def tables(self, width: int) -> list[Table]:
        """Return one table if it fits into `width` characters, otherwise several that each name the recipes."""
        name_width = min(WIDEST, width // 3)
        shown: list[list[int]] = [[0]]
        for group in GROUPS:
            if len(shown[-1]) > 1 and _table_width(self._table((*shown[-1], *group), name_width)) > width:
                shown.append([0])
            shown[-1] += group
        return [self._table(columns, name_width, None if place else self.title) for place, columns in enumerate(shown)]

    def _table(self, columns: Sequence[int], name_width: int, title: str | None = None) -> Table:
        """Return a table of some columns; names of recipes are wrapped after `name_width` characters."""
        from rich.box import SIMPLE  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        headings, rows = self.cells()
        table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
        for place in columns:
            if place:
                table.add_column(headings[place].replace(" ", "\n"), justify="right", no_wrap=True)
            else:
                table.add_column(headings[place], overflow="fold", max_width=name_width)
        for row in rows:
            table.add_row(*(row[place] for place in columns))
        return table

    def save(self, folder: Path) -> None:
        """Write report.md and report.json."""
        rows = [{name: _finite(value) for name, value in asdict(row).items()} for row in self.rows]
        whole = {"manifest": self.manifest, "rows": rows, "sandbox": dict(self.sandbox)}
        for name, text in (("report.md", self.markdown()), ("report.json", json.dumps(whole, indent=2) + "\n")):
            write_file(folder / name, text)


HEADINGS = (
    "recipe", "n", "accuracy", "95%", "fallback", "steps", "budget", "step speedup", "clock speedup", "forwards",
    "columns", "padded", "tokens per forward", "difference", "95%", "p", "agreement", "penalised speedup",
)  # names as in report.json  # fmt: skip
# Columns of one group stay in one table.
GROUPS = ((1, 2, 3, 4), (5, 6), (7,), (8,), (9,), (10, 11), (12,), (13, 14, 15), (16,), (17,))
WIDEST = 40  # characters of a recipe's name per line
LEGEND = (
    "Accuracy with Wilson's 95% interval. Fallback: share of answers that the text does not state, such as a last "
    "number. Steps, budget, forwards (forward passes) and columns (computed by these passes) are means per example. "
    "Step speedup: the first recipe's mean steps divided by this recipe's; clock speedup: the same for wall-clock "
    "time, if it was measured. Padded: share of the computed columns that was padding. Tokens per forward: response "
    "tokens, up to the end of the text. Difference: accuracy minus the first recipe's, in points, with Tango's 95% "
    "interval for paired shares and McNemar's exact p. Agreement: answers equal to the first recipe's. Penalised "
    "speedup: step speedup x (accuracy / the first recipe's)^4."
)


def report(folder: Path | str) -> Report:
    """Return the report of a results folder, complete or not."""
    manifest, records = read_manifest(folder), read_records(folder)
    return Report(manifest, compare(records, tuple(manifest["order"])), count_levels(records))


def count_levels(records: Sequence[Record]) -> dict[str, int]:
    """Return how many programs ran at each level of the sandbox; empty if no level is recorded."""
    levels = Counter(record.sandbox for record in records)
    return {} if set(levels) <= {None} else {level or "not recorded": count for level, count in levels.items()}


def compare(records: Sequence[Record], recipes: Sequence[str]) -> tuple[ReportRow, ...]:
    """Return one row per recipe that has results."""
    by_recipe: dict[str, dict[str, Record]] = {name: {} for name in recipes}
    for record in records:
        if record.recipe not in by_recipe:
            raise StorageError(f"the result of {show(record.id)}: {unknown('recipe', record.recipe, recipes)}")
        by_recipe[record.recipe][record.id] = record
    base = by_recipe[recipes[0]]
    if not base:
        raise RequestError(f"there are no results yet for {recipes[0]!r}, and the other recipes are compared with it")
    return tuple(_row(name, found, base) for name, found in by_recipe.items() if found)


def _row(name: str, found: Mapping[str, Record], base: Mapping[str, Record]) -> ReportRow:
    mine = list(found.values())
    right = sum(record.correct for record in mine)
    low, high = wilson(right, len(mine))
    pairs = [(base[key], record) for key, record in found.items() if key in base]
    return ReportRow(
        recipe=name,
        n=len(mine),
        accuracy=right / len(mine),
        accuracy_low=low,
        accuracy_high=high,
        fallbacks=_fallback_share(mine),
        steps=_mean([one.steps for one in mine]),
        budget=_mean([one.budget for one in mine]),
        forwards=_mean([one.forwards for one in mine]),
        columns=_mean([one.columns_needed for one in mine]),
        padded=_padding_share(mine),
        tokens_per_forward=sum(one.response_tokens for one in mine) / sum(one.forwards for one in mine),
        seconds=_mean([one.wall for one in mine]),
        settled=_mean([one.finish == "settled" for one in mine]),
        **_compare_pairs(pairs),
    )


def _fallback_share(records: Sequence[Record]) -> float | None:
    recorded = [one.fallback for one in records if one.fallback is not None]
    return _mean(recorded) if recorded else None


def _padding_share(records: Sequence[Record]) -> float | None:
    counted = [(one.columns_needed, one.columns_computed) for one in records if one.columns_computed]
    return 1 - sum(needed for needed, _ in counted) / sum(computed for _, computed in counted) if counted else None


def _compare_pairs(pairs: Sequence[tuple[Record, Record]]) -> dict[str, Any]:
    nan = float("nan")
    if not pairs:
        names = (
            "step_speedup",
            "budget_speedup",
            "clock_speedup",
            "difference",
            "difference_low",
            "difference_high",
            "agreement",
        )
        return dict.fromkeys(names, nan) | {
            "pairs": 0,
            "lost": 0,
            "won": 0,
            "mcnemar_p": nan,
            "penalised_speedup": None,
        }
    base, mine = ([pair[side] for pair in pairs] for side in (0, 1))
    lost = sum(before.correct and not after.correct for before, after in pairs)
    won = sum(after.correct and not before.correct for before, after in pairs)
    low, high = paired_difference(lost, won, len(pairs))
    steps = _mean([one.steps for one in mine])
    speedup = _mean([one.steps for one in base]) / steps
    clock = _mean([one.wall for one in mine])
    scores = [_mean([one.correct for one in side]) for side in (mine, base)]
    return {
        "pairs": len(pairs),
        "step_speedup": speedup,
        "budget_speedup": _mean([one.budget for one in base]) / steps,
        "clock_speedup": _mean([one.wall for one in base]) / clock if clock else nan,
        "difference": (won - lost) / len(pairs),
        "difference_low": low,
        "difference_high": high,
        "lost": lost,
        "won": won,
        "mcnemar_p": mcnemar(lost, won),
        "agreement": _mean([before.answer == after.answer for before, after in pairs]),
        "penalised_speedup": penalised_speedup(speedup, *scores),
    }


def _finite(value: Any) -> Any:
    """Return None instead of a NaN, which JSON does not have."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _format_cells(row: ReportRow, first: bool) -> tuple[str, ...]:
    left = (
        row.recipe,
        str(row.n),
        f"{row.accuracy:.1%}",
        f"{100 * row.accuracy_low:.1f}-{100 * row.accuracy_high:.1f}",
        "" if row.fallbacks is None else f"{row.fallbacks:.1%}",
        f"{row.steps:.1f}",
        f"{row.budget:g}",
        f"{row.step_speedup:.2f}x",
        "-" if math.isnan(row.clock_speedup) else f"{row.clock_speedup:.2f}x",
        f"{row.forwards:.1f}",
        f"{row.columns:.0f}",
        "" if row.padded is None else f"{row.padded:.1%}",
        f"{row.tokens_per_forward:.2f}",
    )
    if first:
        return (*left, "", "", "", "", "" if row.penalised_speedup is None else f"{row.penalised_speedup:.2f}")
    return (
        *left,
        f"{100 * row.difference:+.1f}",
        f"{100 * row.difference_low:+.1f} to {100 * row.difference_high:+.1f}",
        f"{row.mcnemar_p:.2g}",
        f"{row.agreement:.1%}",
        "" if row.penalised_speedup is None else f"{row.penalised_speedup:.2f}",
    )


def _table_width(table: Table) -> int:
    """Return the width of a table in characters if nothing in it is wrapped."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(width=1000)
    return console.measure(table).maximum


def _format_options(options: Mapping[str, Any]) -> str:
    return " with " + ", ".join(f"{name} = {value!r}" for name, value in options.items()) if options else ""
