"""Draw the pictures of a results folder, according to the kind of results that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from foretell.engine.certificate import read_certificate
from foretell.engine.trace import Trace
from foretell.engine.trace_files import load_traces
from foretell.errors import RequestError
from foretell.evaluation.manifest import FILE, read_manifest
from foretell.evaluation.records import Record, read_records
from foretell.evaluation.report import Report, report
from foretell.plots.frontier import Spot, plot_frontier
from foretell.plots.histograms import HistogramPanel, plot_histograms, progress
from foretell.plots.ladder import plot_ladder
from foretell.storage import is_file, is_folder

MARKS = (25, 50, 75)  # percent of the budget
WITHIN = 0.01  # the loss of accuracy that is marked
WORK = ".work"  # ending of a calibration's folder of decodings, next to its file


def draw_results(path: Path) -> dict[str, Figure]:
    """Return the pictures of a results folder, of a folder that holds several, or of a certified file, by name."""
    if is_file(path):
        return {path.stem: _draw_certificate(path)}
    folders = [path] if is_file(path / FILE) else sorted(one for one in path.glob("*") if is_file(one / FILE))
    figures = _draw_evaluations(folders) if folders else {}
    works = [path] if path.suffix == WORK else sorted(path.glob(f"*{WORK}"))
    files = [file for work in works if is_file(file := work.with_suffix(".json"))]
    figures |= {file.stem: _draw_certificate(file) for file in files}
    if figures:
        return figures
    if not is_folder(path):
        raise RequestError(f"{path} does not exist")
    raise RequestError(
        f"{path} holds nothing to draw; a picture needs an evaluation of several recipes, one with traces "
        "(foretell study, or eval --trace), or a certified file"
    )


def _draw_certificate(path: Path) -> Figure:
    found = read_certificate(path)
    if not found.report:
        raise RequestError(f"{path} does not say which rules were tested; tune or calibrate again")
    return plot_ladder(found)


def _draw_evaluations(folders: Sequence[Path]) -> dict[str, Figure]:
    reports = {folder: report(folder) for folder in folders}
    groups = {one.title.partition(", seed")[0]: _spots(one) for one in reports.values() if len(one.rows) > 1}
    figures = {}
    if groups:
        names = list(dict.fromkeys(spot.name for spots in groups.values() for spot in spots))
        figures["frontier"] = plot_frontier(groups, "forwards", WITHIN, names)
    panels = [panel for folder in folders for panel in _panels(folder)]
    if panels:
        title = "% of the budget (numbers: the share up to a line)"
        figures["convergence"] = plot_histograms(panels, min(4, len(panels)), title, MARKS)
    return figures


def _spots(found: Report) -> list[Spot]:
    full = found.rows[0].forwards
    return [
        Spot(row.recipe, full / row.forwards, row.accuracy, row.settled > 0, (row.accuracy_low, row.accuracy_high))
        for row in found.rows
    ]


def _panels(folder: Path) -> list[HistogramPanel]:
    """Return one panel per recipe that never stops early and has traces, of its right answers if there are any."""
    manifest, records = read_manifest(folder), read_records(folder)
    panels = []
    for name in manifest["order"]:
        traced = [one for one in records if one.recipe == name and one.trace is not None and one.finish != "settled"]
        right = [one for one in traced if one.correct]
        steps = [found for trace in _load(folder, right or traced) if (found := find_convergence(trace)) is not None]
        if steps:
            kind = "right" if right else "answers"
            first, stays = ([share for one in steps for share in progress([one[place]], one[-1])] for place in range(2))
            title = f"{manifest['task']}, {name}\n{len(steps)} {kind}"
            panels.append(HistogramPanel(title, {"first match": first, "stays from there on": stays}))
    return panels


def find_convergence(trace: Trace) -> tuple[int, int, int] | None:
    """Return the steps of the answer's first match and last change, and the budget; None if there is no answer."""
    where = trace.place() & ~torch.isin(trace.tokens[-1], torch.tensor(trace.end_ids))
    if not where.any():
        return None
    first = trace.first_match(where=where)
    assert first is not None, "the last draft equals itself"
    return first, trace.last_change(where), trace.request.budget


def _load(folder: Path, records: Sequence[Record]) -> list[Trace]:
    files: Mapping[str, list[Trace]] = {
        name: load_traces(folder / name) for name in {str(one.trace) for one in records}
    }
    return [files[str(one.trace)][one.trace_index or 0] for one in records]
