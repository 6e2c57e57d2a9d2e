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
        "The bundled model: accuracy, Prophet at several scales of the thresholds, the gap's scale.",
    ),
    "main_table": ("main_table", "Main table: full, Prophet with the mean and the minimum gap, half the budget."),
    "convergence": ("convergence", "When the right answer first appears, and when it stays."),
    "dynamics": ("dynamics", "One decoding, position by position and step by step, with its drafts."),
    "last_change": ("last_change", "The last change of right and of wrong answers."),
    "ablations": ("ablations", "Static budgets at two windows, remasking strategies, block lengths, schedules."),
    "gap": ("gap", "How the gap grows, and how far the gap at the exit can be trusted."),
    "methods": ("methods", "Every way to spend less, alone and with Prophet."),
    "stack": ("stack", "The best stack of methods for each task, searched on other problems."),
    "sdtt": ("sdtt", "Distilling (SDTT) and early commit, alone and together."),
    "found_regions": (
        "found_regions",
        "Answers found in the draft against answers at a fixed place: speed, risk, cost.",
    ),
    "real_models": ("real_models", "Antibody models that others trained: what recipes save, and what they change."),
    "bench": ("bench", "Speed: plain loops beside ours, the loop's own share, queues, memory, scaling."),
    "serve": ("serve_load", "The server under load: requests per second, latencies, equal answers, memory."),
    "fleet": ("fleet", "Capacity: a simulated fleet beside the real scheduler, and GPUs for LLaDA-8B."),
    "certified": (
        "certified",
        "Certified stopping: how often certificates hold over random splits, and how fast they are.",
    ),
    "validity": (
        "validity",
        "Whether delta is kept where the risk is known: ladders, repeated looks, alarms and false alarms.",
    ),
    "tune": (
        "tune",
        "Tune: the fastest recipe with a risk you choose: certified speedups, and whether the risk is kept.",
    ),
    "climb": (
        "climb",
        "Speed that is earned from requests alone: what each rung costs, and how often a bad one is used.",
    ),
    "decide": (
        "decide",
        "Typed decisions: how many readings a label needs, and what its probability is worth.",
    ),
    "judge": (
        "judge",
        "The learned judge beside gap, entropy and persistence at equal certified risk, and what it looks at.",
    ),
    "numerics": (
        "numerics",
        "A rule calibrated in float32 on a model in bfloat16 or int8: with and without calibrating again.",
    ),
}
BESIDE = "## Beside the paper"
STATES = {  # heading in a page -> heading in the index
    "Agrees with the paper:": "## What agrees with the paper",
    "Differs from the paper:": "## What differs from the paper",
    "Not decided by this many problems:": "## What is not decided by this many problems",
}


def remarks(page: str) -> dict[str, list[str]]:
    """Return the lines of a page that compare it with the paper, by the heading that they are listed under."""
    found: dict[str, list[str]] = {heading: [] for heading in STATES}
    heading = ""
    for line in page.partition(BESIDE)[2].partition("\n## ")[0].splitlines():
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
            "Every page is made from its numbers (JSON) by the script beside it, with a picture; each says what was "
            "decoded live and what was replayed on traces. `make study` runs the scripts of the paper's study, `make "
            "beyond` the others; `python runs/pages.py` makes pages again from their numbers. The same scripts take "
            "another model and the public benchmarks: `--model FOLDER --tasks gsm8k mmlu`, with the files in "
            "FORETELL_DATA.",
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
