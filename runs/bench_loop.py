"""What the loop costs beside the model: the share of a step's time that is not the model's forward pass.

python runs/bench_loop.py                      # widths 512, 1024 and 2048 at LLaDA's vocabulary
python runs/bench_loop.py --width 1024 --rows 4
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import foretell
from foretell.decode import denoise_step
from foretell.layout import Layout, Request, lay_out
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.protocols import Denoiser, Inputs, Readout
from foretell.state import KVStore

ROOT = Path(__file__).parents[1]
VOCABULARY, MASK = 126_464, 126_336
RULES = {  # the stopping rules check at every step and never fire
    "full": "full",
    "prophet": "prophet stop.tau=linear(inf,inf)",
    "margin + prophet": "margin stop=prophet(tau=linear(inf,inf))",
    "entropy + prophet": "full score=entropy stop=prophet(tau=linear(inf,inf))",
    "sched": "sched stop=all(prophet(tau=linear(inf,inf)),stable(entropy=inf))",
}


@dataclass
class Timed:
    """A denoiser that adds up the seconds spent inside it, head included."""

    inner: Denoiser
    seconds: float = field(default=0.0)

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        started = time.perf_counter()
        readout = self.inner(inputs)
        self.seconds += time.perf_counter() - started

        def timed(row: Tensor, at: Tensor) -> Tensor:
            started = time.perf_counter()
            logits = readout(row, at)
            self.seconds += time.perf_counter() - started
            return logits

        return timed

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)


def network(width: int, layers: int) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(VOCABULARY, MASK, width, layers, width // 64, width // 64, 3 * width)
    return Transformer(config).requires_grad_(False).eval()


def shares(model: Denoiser, recipe: str, options: argparse.Namespace) -> Iterator[float]:
    """The loop's share of each step, after one step to warm up."""
    layout = Layout.with_suffix(options.window, [1, 2, 3], 5)
    request = Request(tuple(range(options.prompt)), layout, foretell.parse(recipe))
    timed, state = Timed(model), lay_out([request] * options.rows, MASK)
    for step in range(options.steps + 1):
        timed.seconds, started = 0.0, time.perf_counter()
        denoise_step(timed, state, request.recipe)
        if step:
            yield 1 - timed.seconds / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="*", default=[512, 1024, 2048])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "loop.md")
    options = parser.parse_args()
    shape = f"{options.layers} layers, {options.rows} rows, {options.prompt} + {options.window} columns"
    command = " ".join(["python runs/bench_loop.py", *sys.argv[1:]])
    lines = [
        "# What the loop costs beside the model",
        "",
        f"Time outside the model in % of a step (median over {options.steps} steps): vocabulary {VOCABULARY}, {shape},",
        f"block 32, answer of 5 tokens, float32 on CPU. Printed by `{command}`.",
        "",
        "| width | " + " | ".join(RULES) + " |",
        "|---" + "|---:" * len(RULES) + "|",
    ]
    print("\n".join(lines))
    for width in options.width:
        model = network(width, options.layers)
        row = [f"{100 * median(shares(model, recipe, options)):.1f}" for recipe in RULES.values()]
        lines.append(f"| {width} | " + " | ".join(row) + " |")
        print(lines[-1], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(lines) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
