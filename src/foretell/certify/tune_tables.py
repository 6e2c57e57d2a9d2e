"""The report of a tuned file as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from foretell.engine.certificate import Certificate

MOST_TRIED = 8  # ladders that are listed


class Table(NamedTuple):
    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]  # the first cell is text, the others are numbers, except "recipe" and "certified"


def make_tables(found: Certificate) -> list[Table]:
    """Return the tables of a tuned file; none if it has no report."""
    report = found.report
    if not report:
        return []
    made = [_frontier(found, report), _tried(report), _sizes(found, report)]
    return [*made, _groups(found, report)] if report["groups"] else made


def _frontier(found: Certificate, report: Mapping[str, Any]) -> Table:
    """Return the rungs, and next to them what the certified one achieves without its stopping rule."""
    rows = [
        (one["recipe"], *_risk(one), f"{one['p_value']:.2g}", f"{one['speedup']:.2f}x", _yes(one["certified"]))
        for one in report["frontier"]
    ]
    alone = report["transfer_alone"]
    if alone is not None and alone["stops"]:
        rows.append((f"{alone['recipe']} (the transfer alone)", *_risk(alone), "", f"{alone['speedup']:.2f}x", ""))
    title = f"Ladder {found.ladder}, from safe to fast, on {found.examples} examples"
    return Table(title, ("recipe", "risk", "95%", f"p (risk > {found.risk:g})", "speedup", "certified"), rows)


def _tried(report: Mapping[str, Any]) -> Table:
    """Return the best ladders on the pilot, always with the best without a stopping rule and the plain threshold."""
    listed = report["tried"][:MOST_TRIED]
    alone = [one for one in report["tried"] if not one["stops"]]
    for wanted in (alone[:1], [one for one in alone if one["ladder"] == "threshold"]):
        listed += [one for one in wanted if one not in listed]
    rows = [
        (one["ladder"], f"{one['expected_speedup']:.2f}x", f"{one['risk']:.2%}", f"{one['speedup']:.2f}x")
        for one in listed
    ]
    count = report["tried"][0]["examples"]
    title = f"Ladders on the pilot ({count} examples): the speedup each is expected to certify, and a rung near it"
    return Table(title, ("ladder", "expected", "risk", "speedup"), rows)


def _sizes(found: Certificate, report: Mapping[str, Any]) -> Table:
    rows = [
        (f"{one['examples']}{' (now)' if one['examples'] == found.examples else ''}", f"{one['expected_speedup']:.2f}x")
        for one in report["sizes"]
    ]
    return Table("With fewer or more examples (predicted)", ("examples", "expected speedup"), rows)


def _groups(found: Certificate, report: Mapping[str, Any]) -> Table:
    rows = [
        (f"{one['by']} {one['group']}", str(one["examples"]), *_risk(one), _name_excess(one))
        for one in report["groups"]
    ]
    title = f"Where the average hides it: the risk by group (the promise of {found.risk:.2%} is for all together)"
    return Table(title, ("group", "examples", "risk", "95%", "above"), rows)


def groups_above(found: Certificate) -> list[str]:
    """Return one line per group whose mean loss is above the promised risk."""
    return [
        f"{one['by']} {one['group']}: {one['risk']:.2%} of {one['examples']} examples{_name_excess(one, ', proven')}"
        for one in (found.report or {}).get("groups", ())
        if one["above"]
    ]


def _name_excess(group: Mapping[str, Any], proven: str = "proven") -> str:
    return proven if group["proven_above"] else "yes" if group["above"] and proven == "proven" else ""


def _risk(row: Mapping[str, Any]) -> tuple[str, str]:
    low, high = row["interval"]
    return f"{row['risk']:.2%}", f"{100 * low:.2f}-{100 * high:.2f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def write_markdown(found: Certificate, tables: Sequence[Table], picture: str | None) -> str:
    """Return the report as a page."""
    says = found.says[0].upper() + found.says[1:]
    lines = [f"# {found.speedup:.2f}x fewer {found.cost}, certified" if found.certified else "# Nothing is certified"]
    lines += ["", f"`{found.recipe}`", "", f"{says}.", ""]
    lines += [f"![the frontier]({picture})", ""] if picture else []
    for table in tables:
        lines += [f"## {table.title}", "", "| " + " | ".join(table.headings) + " |"]
        lines += ["|" + "|".join(["---", *["---:"] * (len(table.headings) - 1)]) + "|"]
        lines += ["| " + " | ".join((_code(row[0], table), *row[1:])) + " |" for row in table.rows]
        lines.append("")
    return "\n".join(lines)


def _code(text: str, table: Table) -> str:
    return f"`{text}`" if table.headings[0] == "recipe" else text
