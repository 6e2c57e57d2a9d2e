"""The cost of each method on a long canvas, on a network with random weights (quality is not measured).

python runs/long_canvas.py
"""

from __future__ import annotations

import time
from statistics import median

import torch

from foretell.engine.request import Layout, Request, lay_out
from foretell.loop.decode import decode
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.recipes.presets import parse

PROMPT, WINDOW, BLOCK, ROUNDS = 64, 512, 32, 3
RECIPES = {
    "full": "full",
    "prefix": "full cache=prefix",
    "dual": "full cache=dual",
    "delayed": "full cache=delayed",
    "drift": "full cache=drift",
    "near(32)": "full cache.window=near(32)",
    "decayed(256)": "full cache.window=decayed(256)",
    "dual, near(32)": "full cache=dual(window=near(32))",
}


def make_network() -> Transformer:
    torch.manual_seed(0)
    shape = TransformerConfig(1024, 0, dim=128, layers=4, heads=4, kv_heads=4, hidden=384)
    return Transformer(shape).requires_grad_(False).eval()


def measure_long_canvas() -> list[list[str]]:
    """Return table rows: recipe, forwards, and columns and time relative to full."""
    model, seconds, cost = make_network(), {name: [] for name in RECIPES}, {}  # type: ignore[var-annotated]
    for _ in range(ROUNDS):
        for name, text in RECIPES.items():
            recipe = parse(f"{text} steps={WINDOW // 8} block_length={BLOCK}")
            state = lay_out([Request(tuple(range(1, PROMPT + 1)), Layout(WINDOW), recipe)], model.mask_id)
            started = time.perf_counter()
            for step in decode(model, state, recipe):
                state = step.after
            seconds[name].append(time.perf_counter() - started)
            cost[name] = int(state.meters.forwards[0]), int(state.meters.needed[0])
    full = median(seconds["full"]), cost["full"][1]
    return [
        [name, str(cost[name][0]), f"{full[1] / cost[name][1]:.2f}x", f"{full[0] / median(seconds[name]):.2f}x"]
        for name in RECIPES
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in measure_long_canvas():
        print("  ".join(row))
