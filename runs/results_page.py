"""The index of results: one line and command per page, and what agrees with the paper and what differs.

    python runs/results_page.py              # docs/results/README.md; the other scripts update it, too

The list is collected from the pages, so that it cannot contradict them.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs" / "results"
FILE = "README.md"
ABOUT = {  # in reading order
    "tiny": (
        "tiny_proof",
        "The bundled model: accuracy, Prophet with its thresholds scaled up and down, the sizes of gaps.",
    ),
    "main_table": (
        "main_table",
        "Full decoding, Prophet with the mean and the minimum gap, and half the steps: accuracy and speed.",
    ),
    "convergence": (
        "convergence",
        "The step at which the right answer first appears, and the step from which on it stays.",
    ),
    "dynamics": ("dynamics", "One decoding, position by position and step by step, with its drafts."),
    "last_change": ("last_change", "The step at which right and wrong answers change for the last time."),
    "ablations": (
        "ablations",
        "Prophet with other windows, orders of filling, block lengths and thresholds, and fixed smaller budgets.",
    ),
    "gap": ("gap", "How the gap grows during decoding, and how often a stop at a large gap gives the final answer."),
    "methods": ("methods", "All methods, alone and with Prophet: accuracy, forward passes and time."),
    "stack": ("stack", "The best combination of methods (stack) for each task, found on other problems."),
    "sdtt": ("sdtt", "A model that was distilled to need half the steps (SDTT) and early commit, alone and together."),
    "found_regions": (
        "found_regions",
        "Answers that are found in the draft, compared with answers at a fixed position: speed, risk, cost.",
    ),
    "real_models": (
        "real_models",
        "Published antibody models: what recipes save, and how much of the result they change.",
    ),
    "bench": (
        "bench",
        "Speed compared with plain loops, time outside the network, request queues, memory, and time by size.",
    ),
    "serve": (
        "serve_load",
        "The server under load: requests per second, latencies, memory, and whether its answers stay the same.",
    ),
    "fleet": ("fleet", "Capacity: a simulated fleet beside the real scheduler, and GPUs for LLaDA-8B."),
    "certified": (
        "certified",
        "Certified stopping rules: how often certificates are wrong, and how many steps the rules save.",
    ),
    "validity": (
        "validity",
        "Simulations with known risk: how often certificates and alarms are wrong, compared with what is promised.",
    ),
    "tune": (
        "tune",
        "Tune: the fastest recipe with a risk you choose: certified speedups, and whether the risk is kept.",
    ),
    "climb": (
        "climb",
        "`generate --risk`: how many requests each faster recipe takes to earn, and how often a bad one is used.",
    ),
    "decide": (
        "decide",
        "Typed decisions: forward passes, accuracy, and how well the probabilities are calibrated.",
    ),
    "judge": (
        "judge",
        "The judge (a trained stopping rule) compared with other rules at equal certified risk, and its features.",
    ),
    "numerics": (
        "numerics",
        "Rules that were calibrated in float32, used in bfloat16 and int8, with and without calibrating again.",
    ),
}
COMPARED = "## Compared with the paper"
STATES = {  # heading in a page -> heading in the index
    "Agrees with the paper:": "## What agrees with the paper",
    "Differs from the paper:": "## What differs from the paper",
    "Not decided with this many problems:": "## What is not decided with this many problems",
}


def remarks(page: str) -> dict[str, list[str]]:
    """Return the lines of a page that compare it with the paper, by the heading that they are listed under."""
    found: dict[str, list[str]] = {heading: [] for heading in STATES}
    heading = ""
    for line in page.partition(COMPARED)[2].partition("\n## ")[0].splitlines():
        if line in STATES:
            heading = line
        elif heading and line.startswith("- "):
            found[heading].append(line)
    return found


def make_index(pages: dict[str, str]) -> str:
    """Return the text of the index, given the texts of all pages by name."""
    known = [name for name in ABOUT if name in pages]
    others = [name for name in pages if name not in ABOUT]
    lines = [
        "# Results",
        "",
        textwrap.fill(
            "The script in the last column measures the numbers of a page (NAME.json), and makes the page and its "
            "picture from them. `make study` runs the scripts of the paper's study, `make beyond` the others; `python "
            "runs/pages.py` makes pages again from the stored numbers. Most scripts accept another model and the "
            "public benchmarks: `--model FOLDER --tasks gsm8k mmlu`, with the files in FORETELL_DATA.",
            120,
            break_on_hyphens=False,
        ),
        "",
        textwrap.fill(
            "The tasks of the bundled model are `word` (word problems), `choice` (multiple choice), `sudoku` (4x4 "
            "Sudoku) and `countdown` (equations with three given numbers that reach a target). *Live* means that a "
            "recipe was decoded; *replayed* means that its stopping rule was applied to the stored steps (the trace) "
            "of a decoding that did not stop early. Differences in accuracy are in percentage points. The "
            "[glossary](../glossary.md) explains other words.",
            120,
            break_on_hyphens=False,
        ),
        "",
        textwrap.fill(
            "The lists after the table compare the pages with the Prophet paper. Numbers on both sides of an arrow "
            "are percentages. In lines of `convergence`, they are the share of right answers that first appeared "
            "within 50% of the steps, without and with a change of the decoding (a suffix, or another order of "
            "filling). In lines of `ablations`, they are the accuracy of full decoding and of Prophet. A static budget "
            "is a smaller number of steps that is fixed in advance.",
            120,
            break_on_hyphens=False,
        ),
        "",
        "| page | what it shows | script |",
        "|---|---|---|",
        *(f"| [{name}]({name}.md) | {ABOUT[name][1]} | `python runs/{ABOUT[name][0]}.py` |" for name in known),
        *(f"| [{name}]({name}.md) | {pages[name].splitlines()[0].lstrip('# ')} | |" for name in others),
    ]
    found = {name: remarks(page) for name, page in pages.items()}
    for heading, title in STATES.items():
        listed = [
            f"- [{name}]({name}.md): {line.removeprefix('- ')}" for name, one in found.items() for line in one[heading]
        ]
        lines += ["", title, "", *listed] if listed else []
    return "\n".join(lines) + "\n"


def write_index(folder: Path) -> None:
    pages = {page.stem: page.read_text(encoding="utf8") for page in sorted(folder.glob("*.md")) if page.name != FILE}
    ordered = {name: pages[name] for name in (*(n for n in ABOUT if n in pages), *sorted(set(pages) - set(ABOUT)))}
    (folder / FILE).write_text(make_index(ordered), encoding="utf8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the pages")
    options = parser.parse_args()
    write_index(options.out)
    print((options.out / FILE).read_text(encoding="utf8"))


if __name__ == "__main__":
    main()
