"""Plot the training of the bundled model: loss and held-out accuracy by step.

make train-tiny                 # writes its log to work/train/tiny
python runs/train_curves.py     # docs/results/tiny_training.{jsonl,png}, and prints the last values
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl

from foretell.plots.curves import plot_curves

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, default=ROOT / "work" / "train" / "tiny" / "log.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    kept = options.out / "tiny_training.jsonl"
    log = [json.loads(line) for line in (options.log if options.log.exists() else kept).open(encoding="utf8")]
    options.out.mkdir(parents=True, exist_ok=True)
    kept.write_text("".join(json.dumps(line) + "\n" for line in log), encoding="utf8")
    mpl.use("Agg")
    plot_curves(log).savefig(options.out / "tiny_training.png", dpi=110)
    for kind in ("loss", "accuracy"):
        last = next(line for line in reversed(log) if kind in line)
        print(f"{kind} at step {last['step']}: " + ", ".join(f"{task} {x:.3f}" for task, x in last[kind].items()))


if __name__ == "__main__":
    main()
