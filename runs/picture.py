"""The README's picture: one word problem decoded in full, with and without the suffix, and where Prophet stops.

python runs/picture.py          # docs/pictures/dynamics.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import torch

import foretell
from foretell.plots.dynamics import plot_dynamics
from foretell.policies.stop.prophet import Prophet

ROOT = Path(__file__).parents[1]
PROBLEM = "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?"

SHOWN = Prophet(reduce="min")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default=PROBLEM)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures" / "dynamics.png")
    options = parser.parse_args()
    torch.set_num_threads(1)
    mpl.use("Agg")
    engine = foretell.load(options.model)
    anchored = engine.generate(options.problem, trace=True)
    size = anchored.trace.request.layout.answer[1] if anchored.trace and anchored.trace.request.layout.answer else 1
    text = engine.generate(options.problem, suffix="", answer_length=None, trace=True)
    print(f"with the suffix: {anchored.text}\nwithout:         {text.text}")
    start = text.response_tokens - size
    free = engine.generate(options.problem, suffix="", answer_start=start, answer_length=size, trace=True)
    assert anchored.trace is not None
    assert free.trace is not None
    figure = plot_dynamics([('"The answer is" pinned', anchored.trace), ("nothing pinned", free.trace)], SHOWN)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=100)
    for name, trace in (("with the suffix", anchored.trace), ("without", free.trace)):
        print(f"{name}: the answer last changed at step {trace.last_change() + 1} of {len(trace)}")
        for rule in (SHOWN, Prophet()):
            fires = trace.replay(rule)
            ends = "never settles" if fires is None else f"ends at step {fires + 1}"
            print(f"  by the {rule.reduce} gap: {ends}")


if __name__ == "__main__":
    main()
