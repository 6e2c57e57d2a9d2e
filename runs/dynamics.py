"""Decoding dynamics of one problem: what every position did at every step, with and without a suffix prompt.

    python runs/dynamics.py                  # a held-out word problem with three steps
    python runs/dynamics.py --model LLaDA-8B-Instruct --tasks gsm8k --device cuda

Uses two full decodings with traces, shared with other scripts; stopping rules are replayed on them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foretell.certify.replay import Case
from foretell.engine.trace import Trace
from foretell.errors import RequestError
from foretell.plots.dynamics import plot_dynamics
from foretell.policies.stop.prophet import Prophet
from page import Numbers, publish
from shared import load_study, make_parser, parse_options, run_script

STEPS = 3  # steps of the word problem's solution
EARLY = 0.1  # share of the budget
TITLES = {"pinned": '"The answer is" pinned', "none": "nothing pinned"}
SHOWN = "min"  # the rule in the picture


def choose_case(cases: tuple[Case, ...]) -> Case:
    """Return the first word problem with `STEPS` steps, or the first example of any other task."""
    if cases[0].benchmark.name != "word":
        return cases[0]
    fitting = [case for case in cases if case.example.data["problem"].core.count(";") + 1 == STEPS]
    if not fitting:
        raise RequestError(f"none of the first {len(cases)} problems has {STEPS} steps; raise --limit")
    return fitting[0]


def mark_answer(case: Case) -> Trace:
    """Return the trace with its answer region set to where the model wrote the answer, if it wrote one."""
    trace, where = case.trace, case.answer_positions.nonzero().squeeze(1).tolist()
    if trace.request.layout.answer is not None or not where:
        return trace
    layout = replace(trace.request.layout, answer=(where[0], len(where)))
    return replace(trace, request=replace(trace.request, layout=layout))


def make_rules(case: Case) -> dict[str, Prophet]:
    tau = case.benchmark.thresholds
    return {"mean": Prophet(tau), "min": Prophet(tau, reduce="min")}


def find_moments(case: Case) -> list[tuple[str, int]]:
    """Return pairs of (description, step from 0), in the order of the steps."""
    trace = mark_answer(case)
    found = [("early", int(EARLY * trace.request.budget)), ("full", len(trace) - 1)]
    if trace.request.layout.answer is not None:
        fired = {name: trace.replay(rule) for name, rule in make_rules(case).items()}
        found += [(f"at the commit by the {name}", step) for name, step in fired.items() if step is not None]
        found.append(("from here on the answer stays", trace.last_change(case.answer_positions)))
    return sorted(found, key=lambda moment: moment[1])


def draft_at(case: Case, step: int) -> str:
    """Return the draft on one line, as Markdown code in a table."""
    text, _ = case.engine.text(case.trace.tokens[step].tolist(), case.trace.request.layout)
    shown = text.strip().replace("\n", " / ").replace("|", "\\|").replace("`", "'")
    return f"`{shown}`" if shown else "(empty)"


def describe_answer(case: Case) -> dict[str, Any]:
    """Return where the final answer first appeared, and from where on it stayed."""
    found = {"answer": case.record.answer, "right": case.record.correct, "steps": len(case.trace)}
    return found | {"first": case.first_match, "stays": case.last_change}


def view(numbers: Numbers) -> dict[str, Any]:
    rows = [
        [name, one["moment"], one["text"], f"{one['step']} of {numbers['answers'][name]['steps']}"]
        for name, found in numbers["moments"].items()
        for one in found
    ]
    answers = {TITLES[name]: one for name, one in numbers["answers"].items()}
    return {"rows": rows, "answers": answers, "task": numbers.get("task", "word"), "chosen": STEPS}


def main() -> None:
    options = parse_options(make_parser(__doc__, 10, ("word",), ("gsm8k",)))
    if len(options.tasks) > 1:
        raise RequestError(f"one task at a time, got {', '.join(options.tasks)}")
    task = options.tasks[0]
    pinned = choose_case(load_study(task, options).cases)
    free = {case.example.id: case for case in load_study(f"{task}-free", options).cases}
    cases = {"pinned": pinned, "none": free[pinned.example.id]}
    kept = {
        name: [{"moment": what, "step": step + 1, "text": draft_at(case, step)} for what, step in find_moments(case)]
        for name, case in cases.items()
    }
    shown = [(TITLES[name], mark_answer(case)) for name, case in cases.items()]
    numbers: dict[str, Any] = {
        "id": pinned.example.id,
        "task": task,
        "prompt": str(pinned.example.prompt).splitlines(),
        "gold": pinned.example.gold,
        "moments": kept,
        "answers": {name: describe_answer(case) for name, case in cases.items()},
    }
    publish("dynamics", numbers, options, plot_dynamics(shown, make_rules(pinned)[SHOWN]))


if __name__ == "__main__":
    run_script(main)
