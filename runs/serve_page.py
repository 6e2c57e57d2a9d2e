"""The page of runs/serve_load.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from foretell.evaluation.intervals import paired_difference
from text_page import percent, points, prose, table

PAGE = "serve"
GENERATE, SERVER, NAIVE = "Engine.generate", "server", "one at a time"
COLOURS = {GENERATE: "0.7", SERVER: "tab:green", NAIVE: "tab:red"}
BEST, NEVER, FULL = "swift", "swift stop=never", "full"
MEGABYTE = 1 << 20
COUNTS = ("requests", "answered", "left", "different", "streams", "refusals")  # of a round of the soak


def goals(numbers: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Return what was aimed at, the goal, what was measured, and whether it was reached."""
    speed, lost, won, count = (numbers[name] for name in ("recipes", "lost", "won", "requests"))
    served = speed[BEST][SERVER]
    beside = {recipe: one[SERVER]["rate"] / one[GENERATE]["rate"] for recipe, one in speed.items()}
    worst = min(beside, key=lambda recipe: beside[recipe])
    alone = served["rate"] / speed[BEST][NAIVE]["rate"]
    full = served["rate"] / speed[FULL][NAIVE]["rate"]
    gain, interval = 100 * (won - lost) / count, points(*paired_difference(lost, won, count))
    return [
        (f"the server beside `Engine.generate`, worst recipe (`{worst}`)", "at least 0.8x", f"{beside[worst]:.2f}x",
         beside[worst] >= 0.8),
        ("`swift` beside one at a time with `swift`", "at least 1.4x", f"{alone:.2f}x", alone >= 1.4),
        ("`swift` beside one at a time with `full`", "at least 12x", f"{full:.1f}x", full >= 12),
        (f"accuracy of `swift` beside `full`, points (95%), n = {count}", "at least -0.5", f"{gain:+.1f} ({interval})",
         gain >= -0.5),
    ]  # fmt: skip


def markdown(numbers: Mapping[str, Any]) -> list[str]:
    packed = "packed for the CPU (`--packed`)" if numbers["packed"] else "not packed for the CPU"
    lines = ["# The server under load", ""]
    lines.append(
        prose(
            "Many clients at the same time, in a process of their own, on loopback; each sends its next request when",
            f"it has an answer. The bundled model, matrices {packed}, one torch thread,",
            f"`foretell serve --max-batch {numbers['batch']}`. Everything in a table is measured in one run, so read",
            "ratios, not seconds: the clients share the machine with the server. Made by `python runs/serve_load.py`.",
        )
    )
    if speed := numbers.get("speed"):
        lines += ["", "## Goals", ""]
        lines += table(
            ("", "goal", "measured", "reached"),
            [(what, goal, found, "yes" if reached else "**no**") for what, goal, found, reached in goals(speed)],
            words=1,
        )[1:]
        if note := numbers.get("note"):
            lines += [prose(note), ""]
        lines.append(
            prose(
                f"Accuracy is counted on {speed['requests']} problems here; for the same two recipes on 500, see",
                "[methods.md](methods.md).",
            )
        )
        lines += describe_speed(speed, numbers["batch"])
    if soak := numbers.get("soak"):
        lines += describe_soak(soak)
    return lines


def describe_speed(numbers: Mapping[str, Any], batch: int) -> list[str]:
    speed = numbers["recipes"]
    base = speed[FULL][NAIVE]["rate"]
    rows = [
        (
            f"`{recipe}`", way, f"{one['rate']:.1f}", f"{one['rate'] / base:.1f}x",
            f"{one['rate'] / ways[GENERATE]['rate']:.2f}x", "-" if one["p50"] is None else f"{one['p50']:.1f}",
            "-" if one["p99"] is None else f"{one['p99']:.1f}", percent(one["accuracy"]), percent(one["same"]),
        )
        for recipe, ways in speed.items()
        for way, one in ways.items()
    ]  # fmt: skip
    heads = (
        *("recipe", "answered by", "requests per second", "beside one at a time, full", "beside Engine.generate"),
        *("p50, s", "p99, s", "accuracy, %", "same texts as Engine.generate, %"),
    )
    text = prose(
        f"{numbers['requests']} word problems, {numbers['rounds']} rounds in turns, medians; `full` in one round.",
        f"`Engine.generate` gets the whole list at once, with the same batch size of {batch};",
        '"one at a time" is a server that calls `Engine.generate` under a lock (runs/serve_naive.py). Latencies are',
        f"those of a full queue: {numbers['clients']} clients ask at the same time.",
    )
    return ["", "## Speed", "", text, *table(heads, rows)]


def describe_soak(numbers: Mapping[str, Any]) -> list[str]:
    rounds = numbers["rounds"]
    total = {name: sum(one[name] for one in rounds) for name in COUNTS}
    growth = (rounds[-1]["memory"] - rounds[0]["memory"]) / MEGABYTE
    text = prose(
        f"{total['requests']:,} requests in {len(rounds)} rounds, one per client and round,",
        f"{numbers['clients']} clients at the same time: all four tasks, five recipes,",
        f"{total['streams']} streams, some of them with drafts; {total['left']} clients hung up, after 0 to 2",
        f"seconds; {total['refusals']} times a client was told to try again (429: more than 16 recipes and windows).",
        f"{total['answered'] - total['different']} of {total['answered']} answers equal `Engine.generate` of the",
        "request alone. After each round nothing is left in the server;",
        f"from the first round to the last its memory grew by {growth:.1f} MB.",
    )
    rows = [
        (
            str(number), str(one["requests"]), str(one["answered"]), str(one["left"]), str(one["different"]),
            f"{one['p50']:.1f}", f"{one['p99']:.1f}", f"{one['seconds_until_idle']:.1f}",
            f"{one['memory'] / MEGABYTE:.0f}",
        )
        for number, one in enumerate(rounds, 1)
    ]  # fmt: skip
    heads = (
        *("round", "requests", "answered", "left early", "other answers", "p50, s", "p99, s"),
        *("seconds until idle", "resident memory, MB"),
    )
    return ["", "## Soak", "", text, *table(heads, rows, words=1)]


def figure(numbers: Mapping[str, Any]) -> Figure:
    """Draw requests per second of every way under every recipe."""
    made: Figure = plt.figure(figsize=(8, 3.4), layout="constrained")
    axes = made.subplots()
    speed = numbers["speed"]["recipes"]
    for place, way in enumerate(COLOURS):
        heights = [ways[way]["rate"] for ways in speed.values()]
        spots = [at + (place - 1) * 0.27 for at in range(len(speed))]
        bars = axes.bar(spots, heights, 0.25, color=COLOURS[way], label=way)
        axes.bar_label(bars, [f"{height:.1f}" for height in heights], fontsize=8, padding=2)
    axes.set_xticks(range(len(speed)), list(speed))
    axes.set_ylabel("requests per second")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return made
