"""The page of runs/bench.py: one section per part, with its goals and whether they were reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

from foretell.plots.scaling import Series, plot_scaling
from page import percent, prose, table

FASTER, CHECK, BESIDE, WASTE, TOGETHER, STACK, LOST, FLAT = 3.0, 0.01, 0.05, 0.1, 1.3, 8.0, 0.005, 0.9
FROM = 1  # index of the first window of (d) larger than a block, a region and a chunk of the rest together
LEAST = CHECK / 2  # shares of a step below this are timing noise
VARIED = ("rows", "window", "vocabulary")
LOOPS = {"LLaDA": "LLaDA's loop", "Prophet": "Prophet's loop", "Fast-dLLM": "Fast-dLLM's loop with a dual cache"}
Part = Mapping[str, Any]


def goal(words: str, reached: bool) -> str:
    return f"- Goal: {words}. {'Reached' if reached else 'Not reached'}."


def network(size: Part) -> str:
    return f"{size['layers']} layers of width {size['width']}, vocabulary {size['vocabulary']}, random weights, float32"


def plain_loops(part: Part) -> list[str]:
    size, loops = part["size"], {name: part[name] for name in LOOPS}
    rows = []
    for name, one in loops.items():
        for softmax, ratio in one["ratios"].items():
            cells = (f"{ratio[ours][clock]:.2f}x" for ours in ("packed", "not packed") for clock in ("wall", "cpu"))
            rows.append([f"{LOOPS[name]}, softmax in {softmax}", f"`{one['recipe']}`", *cells, percent(one["same"])])
    own = max(one["own"] for one in loops.values())
    headings = ("plain loop", "ours", "packed: wall", "CPU", "not packed: wall", "CPU", "same tokens, %")
    return [
        "## (a) Decoding beside plain loops",
        prose(
            f"{network(size)}; one request: prompt {size['prompt']}, window {size['window']} with a pinned suffix,",
            f"block {size['block']}, {part['steps']} steps where the recipe has a number, {part['threads']} threads,",
            f"{part['load']:.1f} processes waiting for a core at the start. The plain loops are written like the",
            "released ones, on the same network without packed matrices: they compute all columns of a pass, all",
            "logits, and their softmax; in float32, as LLaDA's code does today, or in float64, as its older copies and",
            "Fast-dLLM's code do. Random weights reach neither Prophet's thresholds nor Fast-dLLM's 0.9, so that both",
            "sides run all passes. Numbers: the plain loop's seconds over ours, on the clock and of the CPU;",
            f"{percent(part['packed'])}% of the matrices are packed (`load(..., packed=False)`: none).",
        ),
        *table(headings, rows),
        prose(
            "Share of a decoding that is not the network and its head:",
            ", ".join(f"`{one['recipe']}` {percent(one['own'])}%" for one in loops.values()) + ".",
        ),
        "",
        *(
            goal(
                f"at least {FASTER:g}x {LOOPS[name]} with its softmax in float32, at equal tokens",
                one["ratios"]["float32"]["packed"]["wall"] >= FASTER and one["same"] == 1,
            )
            for name, one in loops.items()
        ),
        goal(f"at most {100 * BESIDE:g}% of a decoding outside of the network", own <= BESIDE),
    ]


def own_share(part: Part) -> list[str]:
    rules = {name: one for name, one in part.items() if isinstance(one, dict) and "check" in one}
    rows = [
        [name, f"{100 * one['check']:.2f}", f"{100 * one['beside']:.2f}", f"{one['step'] / rules['full']['step']:.3f}"]
        for name, one in rules.items()
    ]
    prophet = rules["prophet"]
    return [
        "## (b) What the loop costs beside the model",
        prose(
            f"The same network, packed; median over {part['steps']} steps, recipes taking turns; one row, an answer of",
            "5 tokens;",
            "thresholds are checked at every step and never reached. Check: the stopping rule with the statistics that",
            "it is the first to ask for. Beside: everything but the network and its head. Step: its time over full's,",
            "with the head on the positions that only the rule reads; as the ratio of two medians it is the",
            "least sure.",
        ),
        *table(("recipe", "check, %", "beside, %", "step"), rows, words=1),
        goal(f"Prophet's check below {100 * CHECK:g}%", prophet["check"] < CHECK),
        goal(
            f"all policies below {100 * BESIDE:g}%, for full and Prophet",
            max(rules["full"]["beside"], prophet["beside"]) < BESIDE,
        ),
    ]


def queues(part: Part) -> list[str]:
    ways = part["ways"]
    rows = []
    for name, one in ways.items():
        score = "-" if one["accuracy"] is None else percent(one["accuracy"])
        waste = percent(1 - one["columns_needed"] / one["columns_computed"])
        rows.append([name, f"{one['speedup']:.2f}x", percent(one["same"]), score, str(one["columns_needed"]), waste])
    together = ways["prophet, continuous"]["speedup"] / ways["prophet, synchronous"]["speedup"]
    stack, base = ways["best stack, continuous"], ways["full, one by one"]
    wasted = [
        1 - one["columns_needed"] / one["columns_computed"] for name, one in ways.items() if name.endswith("continuous")
    ]
    lost = base["accuracy"] - stack["accuracy"]
    listed = ", ".join(f"{name}: `{text}`" for name, text in part["recipes"].items())
    return [
        "## (c) A queue of requests",
        prose(
            f"Bundled model, {part['requests']} word problems, batches of {part['batch']}, one thread.",
            "Synchronous: rows",
            "that are done are computed until the last of their batch is. Clock: full decoding one by one over this.",
            "Same: requests whose tokens are those of the same recipe one by one. Columns: what the rows needed;",
            "waste:",
            f"computed beyond that. {listed}.",
        ),
        *table(("recipe, service", "clock", "same, %", "accuracy, %", "columns", "waste, %"), rows, words=1),
        goal(
            f"continuous wastes less than {100 * WASTE:g}% (at most {percent(max(wasted))}% here)", max(wasted) < WASTE
        ),
        goal(
            f"under Prophet continuous is at least {TOGETHER:g}x synchronous ({together:.2f}x here)",
            together >= TOGETHER,
        ),
        goal(
            f"the best stack, continuous, at least {STACK:g}x full one by one at no more than {100 * LOST:g} points "
            f"lost ({stack['speedup']:.2f}x and {-100 * lost:+.1f} points here)",
            stack["speedup"] >= STACK and lost <= LOST,
        ),
    ]


def flatness(part: Part) -> dict[str, float]:
    """Return the memory of a step at a small window divided by that at the largest."""
    return {name: rows[FROM] / rows[-1] for name, rows in part["rows"].items()}


def memories(part: Part) -> list[str]:
    windows = part["windows"]
    rows = [[name, *(f"{one:.1f}" for one in taken)] for name, taken in part["rows"].items()]
    rows.append(["all of the window's logits", *(str(window) for window in windows)])
    return [
        "## (d) Memory of logits and statistics",
        prose(
            f"The most held at once in one step, in rows of {part['size']['vocabulary']} float32; the network's own",
            "activations, and what a kernel takes inside of itself, are not counted. Block 32, an answer of 5",
            "tokens. A",
            "commit and an observer take the rest of the window 64 positions at a time.",
        ),
        *table(("step", *(f"window {window}" for window in windows)), rows, words=1),
        goal(
            f"flat in the window from {windows[FROM]} on, within {100 * (1 - FLAT):.0f}%",
            min(flatness(part).values()) >= FLAT,
        ),
    ]


def costs(part: Part) -> list[str]:
    rows = []
    for name in VARIED:
        one = Series(**part[name])
        measured, expected = one.slopes
        rows.append([name, ", ".join(f"{size:g}" for size in one.sizes), f"{measured:.2f}", f"{expected:.2f}"])
    return [
        "## (e) Cost against size",
        prose(
            f"The first step of full decoding, {part['size']['layers']} layers of width {part['size']['width']};",
            "where it",
            "is not varied: 1 row, prompt 64, window 128, block 32, vocabulary 32768. The slope is the power of",
            "the size",
            "that the time grows with; expected: of the multiplications and additions. Small sizes pay for what every",
            "step costs, so a measured slope below the expected one is overhead, one above it a cache that overflows.",
        ),
        *table(("varied", "values", "slope", "expected"), rows),
    ]


def choices(part: Part) -> list[str]:
    rows = [
        [name, f"{one['ratio']:.2f}x", percent(one["same"])]
        for name in ("packed", "int8", "compile")
        if (one := part.get(name)) is not None
    ]
    bundled = part["bundled"]
    if bundled is None:
        effect = "int8 was not measured: torchao is not installed (`pip install 'foretell[quantize]'`)."
    else:
        effect = (
            f"On the bundled model int8 leaves {percent(bundled['same'])}% of {bundled['requests']} texts the same; "
            f"accuracy {percent(bundled['accuracy'])} -> {percent(bundled['rounded'])}%."
        )
    return [
        "## (f) Packed matrices, int8 weights and torch.compile",
        prose(
            f"{network(part['size'])}, {part['steps']} steps of full decoding, {part['threads']} threads;",
            "the time of float32, not",
            "packed, over this, and the share of tokens that are the same. With random weights many tokens are nearly",
            "equal, so",
            f"this is the worst case. {effect}",
        ),
        *table(("choice", "clock", "same, %"), rows, words=1),
    ]


SECTIONS: dict[str, Callable[[Part], list[str]]] = {
    "a": plain_loops, "b": own_share, "c": queues, "d": memories, "e": costs, "f": choices,
}  # fmt: skip


def markdown(numbers: Mapping[str, Part]) -> list[str]:
    head = prose(
        "Ratios of medians of runs that take turns in one process, on the same weights, on a CPU.",
        "`python runs/bench.py`; `make bench` fails where (a), (b) or (d) has become worse by a fifth.",
    )
    sections = [line for name, part in numbers.items() for line in ("", *SECTIONS[name](part))]
    return ["# Speed", "", head, *sections]


def figure(numbers: Mapping[str, Part]) -> Figure | None:
    if "e" not in numbers:
        return None
    return plot_scaling({name: Series(**numbers["e"][name]) for name in VARIED})


def ratios(numbers: Mapping[str, Part]) -> dict[str, float]:
    """Return the ratios that must not get worse; larger is better."""
    found: dict[str, float] = {}
    if "a" in numbers:
        for name, words in LOOPS.items():
            found[f"(a) {words} over ours"] = numbers["a"][name]["ratios"]["float32"]["packed"]["wall"]
    if "b" in numbers:
        shares = numbers["b"]["prophet"]
        found["(b) step over stop check"] = 1 / max(shares["check"], LEAST)
        found["(b) step over all policies"] = 1 / max(shares["beside"], LEAST)
    if "d" in numbers:
        for name, flat in flatness(numbers["d"]).items():
            found[f"(d) {name}, small window over large"] = flat
            found[f"(d) {name}, all logits over what is held"] = (
                numbers["d"]["windows"][-1] / numbers["d"]["rows"][name][-1]
            )
    return found
