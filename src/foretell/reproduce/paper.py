"""The results of the Prophet paper, accuracies in percent. Its configurations are those of the benchmarks."""

from __future__ import annotations

from typing import NamedTuple

LLADA, DREAM = "LLaDA-8B", "Dream-7B"
NAMES = {
    "mmlu": "MMLU", "arc_challenge": "ARC-C", "hellaswag": "HellaSwag", "truthfulqa": "TruthfulQA",
    "winogrande": "WinoGrande", "piqa": "PIQA", "gsm8k": "GSM8K", "gpqa": "GPQA", "humaneval": "HumanEval",
    "mbpp": "MBPP", "countdown_cd4": "Countdown", "sudoku4x4": "Sudoku",
}  # fmt: skip
# The bundled model's task that resembles a benchmark of the paper.
COUNTERPARTS = {
    "word": "gsm8k", "word_96": "gsm8k_128", "choice": "mmlu", "sudoku": "sudoku4x4", "countdown": "countdown_cd4",
}  # fmt: skip


class Main(NamedTuple):
    full: float
    prophet: float
    speedup: float  # of steps


class Pair(NamedTuple):
    baseline: float
    prophet: float


class Result(NamedTuple):
    accuracy: float
    speedup: float | None = None
    steps: int | None = None  # mean


MAIN = {
    LLADA: {
        "mmlu": Main(54.1, 54.0, 2.34), "arc_challenge": Main(83.2, 83.5, 1.88), "hellaswag": Main(68.7, 70.9, 2.14),
        "truthfulqa": Main(34.4, 46.1, 2.31), "winogrande": Main(73.8, 70.5, 1.71), "piqa": Main(80.9, 81.9, 1.98),
        "gsm8k": Main(77.1, 77.9, 1.63), "gpqa": Main(25.2, 25.7, 1.82), "humaneval": Main(30.5, 30.5, 1.20),
        "mbpp": Main(37.6, 37.4, 1.35), "countdown_cd4": Main(15.3, 15.3, 2.67), "sudoku4x4": Main(35.0, 38.0, 2.46),
    },
    DREAM: {
        "mmlu": Main(67.6, 66.1, 2.47), "arc_challenge": Main(88.1, 87.9, 2.61), "hellaswag": Main(81.2, 81.9, 2.55),
        "truthfulqa": Main(55.6, 53.2, 1.83), "winogrande": Main(62.5, 62.0, 1.45), "piqa": Main(86.1, 86.6, 2.29),
        "gsm8k": Main(75.3, 75.2, 1.71), "gpqa": Main(27.0, 26.6, 1.66), "humaneval": Main(54.9, 55.5, 1.44),
        "mbpp": Main(54.0, 54.6, 1.33), "countdown_cd4": Main(14.6, 14.6, 2.37), "sudoku4x4": Main(89.0, 89.0, 3.40),
    },
}  # fmt: skip

# All that follows is LLaDA-8B on GSM8K; windows are 256 or 128 positions.
BUDGETS = {  # by window and number of steps
    256: {16: 7.7, 32: 22.5, 64: 58.8, 128: 76.2, 256: 77.1},
    128: {16: 21.8, 32: 50.3, 64: 67.9, 128: 71.3},
}
PROPHET = {256: Result(77.9, 1.63, 160), 128: Result(72.7, 1.73, 74)}  # by window
REMASKING = {"random": Pair(63.8, 66.6), "low-confidence": Pair(71.3, 72.7), "top-k margin": Pair(72.4, 73.1)}  # 128
BLOCKS = {  # by block length; window 128
    8: Pair(67.1, 72.8), 16: Pair(68.7, 73.3), 32: Pair(71.3, 72.7), 64: Pair(59.9, 69.8), 128: Pair(33.1, 52.2),
}  # fmt: skip
SCHEDULES = {"staged": Result(77.9, steps=160), "linear": Result(77.4, steps=154)}  # window 256
BEST_SPEEDUP = 7.66  # of wall-clock time, with Fast-dLLM and Prophet
FAST_DLLM = {  # window 256; speedup of wall-clock time
    "baseline": Result(77.1, 1.0), "Fast-dLLM": Result(76.6, 6.82), "Prophet": Result(77.9, 1.63),
    "Fast-dLLM + Prophet": Result(77.3, BEST_SPEEDUP),
}  # fmt: skip
SDTT = {  # window 256
    "teacher": Result(77.1, 1.0, 256), "SDTT": Result(76.9, 2.0, 128), "Prophet": Result(77.9, 1.63, 160),
    "SDTT + Prophet": Result(76.4, 3.21, 79),
}  # fmt: skip
# Percentage of right answers that are the best guess by 25% and 50% of the steps, by (benchmark, suffix, recipe).
CONVERGENCE = {
    ("gsm8k", False, "full"): (7.9, 24.2), ("gsm8k", True, "full"): (59.7, 75.8),
    ("gsm8k", False, "random"): (88.5, 97.2), ("gsm8k", True, "random"): (94.6, 97.3),
    ("mmlu", False, "full"): (15.1, 21.4), ("mmlu", True, "full"): (99.7, 99.9),
    ("mmlu", False, "random"): (95.3, 99.2), ("mmlu", True, "random"): (98.8, 99.6),
}  # fmt: skip
