"""Decoding dynamics of one held-out word problem of three steps: what every position did, with and without a suffix.

python runs/dynamics.py                  # two full decodings, live; stopping rules are replayed on their traces
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from foretell.engine.engine import Engine, load
from foretell.engine.trace import Trace
from foretell.lab.bundled import BUNDLED, Bundled, distinct
from foretell.lab.tasks import Problem
from foretell.plots.dynamics import dynamics
from foretell.policies.stop.prophet import Prophet
from shared import SEED, options_of, publish, table

STEPS = 3  # of the problem's chain
EARLY = 0.1  # of the budget
RULES = {"mean": Prophet(), "min": Prophet(reduce="min")}
TITLES = {"pinned": '"The answer is" pinned', "none": "nothing pinned"}
SHOWN = "min"  # the rule in the picture


def problem() -> Problem:
    """The first one of the study's seed with this many steps."""
    drawn = distinct(BUNDLED["word"].task, np.random.default_rng(SEED))
    return next(one for one in drawn if one.core.count(";") + 1 == STEPS)


def decoded(engine: Engine, benchmark: Bundled, prompt: str) -> Trace:
    trace: Trace | None = engine.generate(prompt, recipe="full", trace=True, **benchmark.options).trace
    assert trace is not None
    return marked(trace, engine, benchmark) if benchmark.free else trace


def marked(trace: Trace, engine: Engine, benchmark: Bundled) -> Trace:
    """The answer region put, after the fact, where the model wrote its answer; nowhere if it wrote none."""
    final, suffix = trace.tokens[-1].tolist(), engine.codec.encode(benchmark.task.suffix)
    size = benchmark.task.answer_length
    last = len(final) - len(suffix) - size
    starts = [i for i in range(last + 1) if final[i : i + len(suffix)] == suffix]
    if not starts:
        return trace
    layout = replace(trace.request.layout, answer=(starts[-1] + len(suffix), size))
    return replace(trace, request=replace(trace.request, layout=layout))


def text_at(engine: Engine, trace: Trace, step: int) -> str:
    text, _ = engine.text(trace.tokens[step].tolist(), trace.request.layout)
    return text.strip()


def moments(trace: Trace) -> list[tuple[str, int]]:
    """(what it is, step from 0), in the order of the steps."""
    found = [("early", int(EARLY * trace.request.budget)), ("full", len(trace) - 1)]
    if trace.request.layout.answer is None:
        return found
    fired = {name: trace.replay(rule) for name, rule in RULES.items()}
    found += [(f"at the commit by the {name}", step) for name, step in fired.items() if step is not None]
    found.append(("from here on the answer stays", trace.last_change()))
    return sorted(found, key=lambda moment: moment[1])


def markdown(task: Problem, rows: list[list[str]], closing: list[str]) -> list[str]:
    return [
        "# Decoding dynamics, bundled model",
        "",
        f"The first held-out word problem of {STEPS} steps under seed {SEED}, decoded in full and live, once with",
        '"The answer is" pinned at the window\'s end and once with nothing pinned; commits are replayed on the traces.',
        "Without a pin the region is marked after the fact, where the model wrote its answer. One example shows what",
        "happens, not how often. `python runs/dynamics.py`",
        "",
        f"> {task.prompt}",
        "",
        f"Right: {task.answer.strip()}",
        *table(("suffix", "moment", "draft", "step"), rows, words=3),
        *closing,
    ]


def verdict(engine: Engine, gold: str, traces: dict[str, Trace]) -> list[str]:
    lines = [
        "Of the right answers of LLaDA-8B on GSM8K (low-confidence remasking), the paper finds 75.8% first there by",
        "half of the steps with a suffix and 24.2% without. In this one example:",
        "",
    ]
    for name, trace in traces.items():
        if trace.request.layout.answer is None:
            lines.append(f"- {TITLES[name]}: the text states no answer.")
            continue
        start, size = trace.request.layout.answer
        answer = engine.codec.decode(trace.tokens[-1, start : start + size].tolist()).strip()
        first, stays = trace.first_match(), trace.last_change()
        assert first is not None  # the last draft is the final one
        half = "the first" if first < len(trace) / 2 else "the second"
        right = "right" if answer == gold else f"wrong (it is {gold}), so the paper would not count it"
        lines.append(
            f"- {TITLES[name]}: the final answer {answer} is {right}; it first stood at step {first + 1} of "
            f"{len(trace)}, in {half} half, and stayed from step {stays + 1} on."
        )
    return lines


def main() -> None:
    options = options_of(__doc__)
    task, loaded = problem(), load(options.model)
    engine = Engine(loaded.model, loaded.codec)  # without the model's own layouts: the benchmark lays the window out
    benches = {"pinned": BUNDLED["word"], "none": BUNDLED["word-free"]}
    traces = {name: decoded(engine, one, task.prompt) for name, one in benches.items()}
    rows, numbers = [], {"seed": SEED, "prompt": task.prompt, "gold": task.answer.strip()}
    kept: dict[str, Any] = {}
    for name, trace in traces.items():
        found = [(what, step + 1, text_at(engine, trace, step)) for what, step in moments(trace)]
        kept[name] = [{"moment": what, "step": step, "text": text} for what, step, text in found]
        rows += [[name, what, f"`{text or ' '}`", f"{step} of {len(trace)}"] for what, step, text in found]
    figure = dynamics([(TITLES[name], trace) for name, trace in traces.items()], RULES[SHOWN])
    closing = verdict(engine, task.answer.strip(), traces)
    publish("dynamics", markdown(task, rows, closing), numbers | {"moments": kept}, options, figure)


if __name__ == "__main__":
    main()
