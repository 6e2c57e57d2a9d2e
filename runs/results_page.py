"""The index of results: one line and command per page, and a list of all differences from the paper.

    python runs/results_page.py              # docs/results/README.md; the other scripts update it, too

The list is collected from the pages, so that it cannot contradict them.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs" / "results"
FILE = "README.md"
ABOUT = {  # in reading order
    "tiny": (
        "tiny_proof",
        "The bundled model: accuracy, Prophet at several scales of the thresholds, the gap's scale.",
    ),
    "main_table": ("main_table", "Main table: full, Prophet by the mean and by the minimum gap, half the budget."),
    "convergence": ("convergence", "When the right answer is first the model's own, and when it is there to stay."),
    "dynamics": ("dynamics", "One decoding, position by position and step by step, and its drafts on the way."),
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
APART = ("differs", "a larger loss than any in the paper", "slower than any", "faster than any")
OPEN = ("not decided at this n", "nothing to compare")
ALIKE = ("agrees", "within the paper's range", "no clear change in either")


def remarks(page: str) -> list[str]:
    """Return the lines of a page that compare it with the paper."""
    _, mark, rest = page.partition(BESIDE)
    return re.findall(r"^- (.+)$", rest.partition("\n## ")[0], flags=re.MULTILINE) if mark else []


def sort_remarks(pages: dict[str, str]) -> tuple[list[str], int, int]:
    """Return the remarks that report a difference, and the numbers of those that agree and that are undecided."""
    apart, alike, undecided = [], 0, 0
    for name, page in pages.items():
        for line in remarks(page):
            if any(word in line for word in APART):
                apart.append(f"- [{name}]({name}.md): {line}")
            elif any(word in line for word in OPEN):
                undecided += 1
            else:
                alike += any(word in line for word in ALIKE)
    return apart, alike, undecided


def make_index(pages: dict[str, str]) -> str:
    """Return the text of the index, given the texts of all pages by name."""
    known = [name for name in ABOUT if name in pages]
    others = sorted(set(pages) - set(ABOUT))
    apart, alike, undecided = sort_remarks(pages)
    lines = [
        "# Results",
        "",
        textwrap.fill(
            "Every page is written by the script beside it, with its numbers as JSON and its picture as PNG and SVG; "
            "each says what was decoded live and what was replayed on traces. `make study` runs the scripts of the "
            "paper's study, `make beyond` the others. The same scripts take another model and the public benchmarks: "
            "`--model FOLDER --tasks gsm8k mmlu`, with the files where FORETELL_DATA says.",
            120,
            break_on_hyphens=False,
        ),
        "",
        "| page | what it shows | script |",
        "|---|---|---|",
        *(f"| [{name}]({name}.md) | {ABOUT[name][1]} | `python runs/{ABOUT[name][0]}.py` |" for name in known),
        *(f"| [{name}]({name}.md) | {pages[name].splitlines()[0].lstrip('# ')} | |" for name in others),
        "",
        "## Where this differs from the paper",
    ]
    beside = f"{alike} other comparisons come out as in the paper, {undecided} are not decided by this many problems"
    if not apart and not alike + undecided:
        return "\n".join([*lines, "Nothing has been compared yet."]) + "\n"
    listed = ["What comes out otherwise here, in the words of the pages:", "", *apart, ""] if apart else []
    return "\n".join([*lines, *listed, f"{beside}; each page has its own beside the paper's numbers."]) + "\n"


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
