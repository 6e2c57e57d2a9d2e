"""Train a judge on traces of full decodings to predict whether a commit at this step gives the final answer.

Labels come from simulated commits: the draft of every step is committed, and its answer is extracted as in decoding
and compared with the full decoding's answer. No right answers are needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from foretell.certify.decodings import evaluation_for, example_key, without_stopping
from foretell.certify.outcomes import read_traces
from foretell.certify.replay import Case, run_study
from foretell.errors import RequestError, one_of, whole, within
from foretell.evaluation.benchmarks.prompts import Given
from foretell.evaluation.run import Evaluation, PreparedEvaluation, Watch
from foretell.models.load import Progress
from foretell.policies.cache.off import Off
from foretell.policies.stop.features import ANSWER, FEATURES, features
from foretell.policies.stop.head import Head
from foretell.policies.stop.sure import Sure
from foretell.recipes.text import format_value
from foretell.storage import write_file

LOOKS: Mapping[str, tuple[str, ...]] = {"answer": tuple(ANSWER), "text": tuple(FEATURES)}
ROUNDS = 200  # iterations of L-BFGS, each over all steps of all traces


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """Settings for training a head."""

    look: str = "text"  # features: "answer" for the answer alone, "text" for the masks around it too
    hidden: int = 16  # hidden units; 0 means logistic regression
    penalty: float = 1e-3  # weight of the sum of squared weights
    seed: int = 0  # random seed of the initial weights

    def __post_init__(self) -> None:
        one_of("look", self.look, LOOKS, RequestError)
        whole("hidden", self.hidden, 0, 256, RequestError)
        within("penalty", self.penalty, 0.0, 1e6, RequestError)
        whole("seed", self.seed, 0, 2**63 - 1, RequestError)


@dataclass(frozen=True, slots=True)
class TrainedJudge:
    """A trained head, and how well it fits the steps that it was trained on."""

    head: Head
    steps: int
    share: float  # share of steps at which a commit gives the final answer
    loss: float  # log loss, in nats
    before: float  # log loss of always predicting `share`

    def save(self, path: str | Path) -> None:
        """Write the head to a file atomically."""
        write_file(path, self.head.text())


@dataclass(frozen=True, slots=True)
class JudgeTraining:
    """A prepared training: the examples to decode without stopping, and the settings of the head."""

    bench: PreparedEvaluation
    config: JudgeConfig

    @classmethod
    def prepare(cls, what: Evaluation, config: JudgeConfig, progress: Progress | None = None) -> JudgeTraining:
        """Check all inputs before anything is decoded."""
        bench, orders = without_stopping(what, Sure(), progress=progress)
        cache = orders[0].recipe.cache
        if config.look == "text" and cache != Off():
            raise RequestError(
                f"a judge that looks at the text cannot learn from cache={format_value(cache)}, which skips masks; "
                'let it look only at the answer (look="answer"), or train it without a cache'
            )
        return cls(bench, config)

    def run(self, watch: Watch | None = None) -> TrainedJudge:
        """Decode the examples that are not stored yet, and train."""
        engine = self.bench.engine
        named = {
            "model": engine.name,
            "model_sha256": engine.fingerprint,
            "task": self.bench.evaluation.task,
        }
        return fit_judge(run_study(self.bench, watch).cases, self.config, named)


def train_judge(
    model: str,
    *,
    task: str | None = None,
    prompts: str | Path | Sequence[Given] | None = None,
    recipe: str = "full",
    config: JudgeConfig | None = None,
    out: str | Path | None = None,
    work: str | Path | None = None,
    watch: Watch | None = None,
    options: Mapping[str, Any] | None = None,
    **evaluation: Any,
) -> TrainedJudge:
    """Train a judge on a task or on prompts, and write it to `out`; see `calibrate` for the other arguments."""
    what = evaluation_for(model, task, prompts, recipe, out, work, options or {}, **evaluation)
    made = JudgeTraining.prepare(what, config or JudgeConfig()).run(watch)
    if out is not None:
        made.save(out)
    return made


def fit_judge(cases: Sequence[Case], config: JudgeConfig, named: Mapping[str, Any] | None = None) -> TrainedJudge:
    """Fit a head to full decodings; `named` is stored in its file."""
    names = LOOKS[config.look]
    values, right = collect_features(cases, names), collect_labels(cases)
    share = float(right.float().mean())
    if share in (0.0, 1.0):
        which = "every" if share else "no"
        raise RequestError(f"a commit gives the final answer at {which} step of these decodings: nothing to learn")
    trained = {
        **(named or {}),
        "recipe": str(cases[0].trace.request.recipe),
        "steps": len(right),
        "examples": [example_key(case.example) for case in cases],
    }
    head, loss = fit_head(values, right, names, config, trained)
    before = -share * math.log(share) - (1 - share) * math.log(1 - share)
    return TrainedJudge(head, len(right), share, loss, before)


def collect_features(cases: Sequence[Case], names: Sequence[str]) -> Tensor:
    """Return the features of every step of every trace, concatenated. [steps, F]"""
    traces = [case.trace for case in cases]
    return torch.cat(read_traces(traces, lambda beliefs, states: features(beliefs, states, names)))


def collect_labels(cases: Sequence[Case]) -> Tensor:
    """Return for each step whether a commit gives the full decoding's answer. [steps]"""
    return torch.tensor([same for case in cases for same in _label_steps(case)])


def _label_steps(case: Case) -> list[bool]:
    """Label the steps of one case; a draft that repeats is extracted only once."""
    drafts, known = [tuple(draft) for draft in case.trace.tokens.tolist()], dict[tuple[int, ...], bool]()
    for step, draft in enumerate(drafts):
        if draft not in known:
            known[draft] = case.answer_at(step)[0] == case.record.answer
    return [known[draft] for draft in drafts]


def fit_head(
    values: Tensor, right: Tensor, names: Sequence[str], config: JudgeConfig, trained: Mapping[str, Any]
) -> tuple[Head, float]:
    """Return the head with the least penalised log loss, and its log loss."""
    mean, scale = values.mean(dim=0), values.std(dim=0)
    scale = torch.where(scale > 1e-6, scale, 1.0)  # constant features carry no information
    inputs, wanted = (values - mean) / scale, right.float()
    generator = torch.Generator().manual_seed(config.seed)
    sizes = [len(names), *([config.hidden] if config.hidden else []), 1]
    layers = [
        (torch.randn(after, before, generator=generator) / math.sqrt(before), torch.zeros(after))
        for before, after in pairwise(sizes)
    ]
    weights = [part.requires_grad_() for layer in layers for part in layer]
    optimiser = torch.optim.LBFGS(weights, max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def compute_loss() -> Tensor:
        hidden = inputs
        for index, (weight, bias) in enumerate(layers):
            hidden = (hidden.tanh() if index else hidden) @ weight.T + bias
        return F.binary_cross_entropy_with_logits(hidden.squeeze(1), wanted)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = compute_loss() + config.penalty * sum((weight**2).sum() for weight, _ in layers)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    done = tuple((weight.detach(), bias.detach()) for weight, bias in layers)
    return Head(tuple(names), mean, scale, done, trained), float(compute_loss().detach())


def measure_importance(head: Head, values: Tensor, right: Tensor, seed: int = 0) -> dict[str, float]:
    """Return how much the log loss on steps [steps, F] rises when a feature is shuffled (permutation importance).

    Redundant features all score low, because one can be shuffled while the other stays.
    """
    generator, wanted = torch.Generator().manual_seed(seed), right.float()

    def loss(inputs: Tensor) -> float:
        return float(F.binary_cross_entropy_with_logits(head(inputs), wanted))

    found, baseline = {}, loss(values)
    for index, name in enumerate(head.names):
        mixed = values.clone()
        mixed[:, index] = values[torch.randperm(len(values), generator=generator), index]
        found[name] = loss(mixed) - baseline
    return found
