"""What runs/bench.py measures on networks with random weights: the loop's share of a step, memory, scaling, packed
matrices, int8 weights and torch.compile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

import foretell
from foretell.bench.memory import PeakMemory
from foretell.bench.timing import Instrumented, Stopwatch, time_in_turns
from foretell.engine.request import Layout, Request, lay_out
from foretell.loop.decode import decode, denoise_step
from foretell.loop.passes import StepPlan
from foretell.loop.protocols import Beliefs, Denoiser, Stop, Verdict
from foretell.loop.state import DecodeState
from foretell.loop.view import StateView
from foretell.models.faster import compile_blocks, quantize_weights
from foretell.models.packed import pack_weights
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.recipes.recipe import Recipe

Tell = Callable[[str, int, float], None]
SUFFIX, ANSWER = (1, 2, 3), 5  # pinned tokens, and the number of answer positions after them
NEVER = "linear(inf,inf)"  # checked at every step, never reached
RULES = {
    "full": "full",
    "prophet": f"prophet stop.tau={NEVER}",
    "margin + prophet": f"margin stop=prophet(tau={NEVER})",
    "entropy + prophet": f"full score=entropy stop=prophet(tau={NEVER})",
    "sched": f"sched stop=all(prophet(tau={NEVER}),stable(entropy=inf))",
}


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a network and a request."""

    width: int = 512
    layers: int = 8
    vocabulary: int = 126_464  # LLaDA's
    prompt: int = 64
    window: int = 128
    block: int = 32
    rows: int = 1

    @property
    def mask(self) -> int:
        return self.vocabulary - 128

    def network(self) -> Transformer:
        torch.manual_seed(0)
        heads = max(1, self.width // 64)
        config = TransformerConfig(self.vocabulary, self.mask, self.width, self.layers, heads, heads, 3 * self.width)
        return Transformer(config).requires_grad_(False).eval()

    def request(self, recipe: str) -> Request:
        layout = Layout.with_suffix(self.window, SUFFIX, ANSWER)
        return Request(
            tuple(range(10, 10 + self.prompt)), layout, replace(foretell.parse(recipe), block_length=self.block)
        )

    def state(self, recipe: str) -> tuple[DecodeState, Recipe]:
        request = self.request(recipe)
        return lay_out([request] * self.rows, self.mask), request.recipe

    def operations(self) -> float:
        """Return the number of multiplications and additions in the first step of full decoding."""
        columns = self.prompt + self.window
        weights = self.layers * (4 * self.width**2 + 3 * 3 * self.width**2)
        attention = 2 * self.layers * columns * self.width
        head = min(self.block, self.window) * self.width * self.vocabulary
        return 2.0 * self.rows * (columns * (weights + attention) + head)


def decode_ours(model: Denoiser, size: Size, recipe: str) -> Tensor:
    """Decode a window with a pinned suffix. [rows, N]"""
    state, asked = size.state(recipe)
    for step in decode(model, state, asked):
        state = step.after
    return state.window


@dataclass(frozen=True)
class TimedStop:
    """A stopping rule whose time is measured, including statistics that it is the first to compute."""

    inner: Stop
    watch: Stopwatch

    def reads(self, state: StateView) -> Tensor:
        return self.inner.reads(state)

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        with self.watch.running():
            return self.inner(beliefs, state)


def measure_shares(size: Size, steps: int) -> dict[str, Any]:
    """(b) Return the shares of a step's time for the stop check and for everything but the model."""
    model, check, inside = size.network(), Stopwatch(), Stopwatch()
    pack_weights(model, None)
    watched = Instrumented(model, inside.running, inside.running)
    states: dict[str, tuple[DecodeState, Recipe, StepPlan | None]]
    states = {name: (*size.state(text), None) for name, text in RULES.items()}
    took: dict[str, list[tuple[float, float, float]]] = {name: [] for name in RULES}
    for step in range(steps + 1):
        for name, (state, recipe, ahead) in states.items():
            check.seconds = inside.seconds = 0.0
            started = time.perf_counter()
            taken = denoise_step(watched, state, replace(recipe, stop=TimedStop(recipe.stop, check)), ahead)
            states[name] = taken.after, recipe, taken.ahead
            del taken  # each recipe pays for freeing its own logits
            whole = time.perf_counter() - started
            if step:  # the first step is a warm-up
                took[name].append((check.seconds / whole, 1 - inside.seconds / whole, whole))
    found: dict[str, Any] = {"size": asdict(size), "steps": steps}
    for name, each in took.items():
        stop, beside, whole = (median(column) for column in zip(*each, strict=True))
        found[name] = {"check": stop, "beside": beside, "step": whole}
    return found


def measure_memory(size: Size, windows: tuple[int, ...]) -> dict[str, Any]:
    """(d) Return the peak memory of logits and statistics per window, in rows of logits (bytes / 4 V)."""
    model = size.network()
    kinds = {  # "early commit" commits the whole window at the first step
        "full": ("full", False),
        "prophet": (RULES["prophet"], False),
        "early commit": ("prophet stop.tau=linear(-1,-1)", False),
        "observed": (RULES["prophet"], True),
    }
    found: dict[str, Any] = {"size": asdict(size), "windows": list(windows), "rows": {}}
    for name, (recipe, observed) in kinds.items():
        found["rows"][name] = [_peak(model, replace(size, window=each), recipe, observed) for each in windows]
    return found


def _peak(model: Transformer, size: Size, recipe: str, observed: bool) -> float:
    state, asked = size.state(recipe)
    with PeakMemory() as peak:
        step = denoise_step(Instrumented(model, peak.paused), state, asked)
        if observed:
            _ = step.draft
    return float(peak.most) / (4 * size.vocabulary)


def measure_scaling(size: Size, name: str, values: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """(e) Return the seconds and operations of the first step of full decoding, per value of one size."""
    sizes = [replace(size, **{name: value}) for value in values]
    models = {one: one.network() for one in sizes} if name == "vocabulary" else dict.fromkeys(sizes, size.network())

    def step(one: Size) -> Callable[[], None]:
        return lambda: _first_step(models[one], one)

    found = time_in_turns({str(value): step(one) for value, one in zip(values, sizes, strict=True)}, rounds)
    return {
        "sizes": list(values),
        "measured": [one.median for one in found.values()],
        "expected": [one.operations() for one in sizes],
    }


def _first_step(model: Transformer, size: Size) -> None:
    state, recipe = size.state("full")
    denoise_step(model, state, recipe)


def compare_flags(size: Size, steps: int, rounds: int, tell: Tell | None = None) -> dict[str, Any]:
    """(f) Compare packed matrices, int8 weights and compiled blocks with float32: times, and equal tokens."""
    base = size.network()
    models = {"float32": base}
    changes: dict[str, Callable[[Transformer], None]]
    changes = {"packed": lambda model: pack_weights(model, True), "int8": quantize_weights, "compile": compile_blocks}
    if find_spec("torchao") is None:
        del changes["int8"]
    for name, change in changes.items():
        models[name] = size.network()
        models[name].embed, models[name].head = base.embed, base.head  # large and unchanged, so shared
        change(models[name])
    ways = {
        name: (lambda model=model: decode_ours(model, size, f"full steps={steps}")) for name, model in models.items()
    }
    found = time_in_turns(ways, rounds, tell)
    exact = found["float32"]
    return {
        "size": asdict(size),
        "steps": steps,
        **{
            name: {"ratio": exact.median / one.median, "same": float((one.result == exact.result).float().mean())}
            for name, one in found.items()
            if name != "float32"
        },
    }
