"""Training a judge: from full decodings with traces, would committing at this step have given the final answer?

The label is interventional: the draft of every step is committed, its answer is extracted as it would be in earnest,
and compared with the full decoding's. No right answers are needed.
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
from foretell.certify.outcomes import together
from foretell.certify.replay import Case, studied
from foretell.engine.folder import folder_of
from foretell.errors import RequestError, one_of, whole, within
from foretell.evaluation.benchmarks.prompts import Given
from foretell.evaluation.run import Evaluation, PreparedEvaluation, Watch
from foretell.policies.cache.off import Off
from foretell.policies.stop.features import ANSWER, FEATURES, features
from foretell.policies.stop.head import Head
from foretell.policies.stop.sure import Sure
from foretell.recipes.text import format_value
from foretell.storage import write_file

LOOKS: Mapping[str, tuple[str, ...]] = {"answer": tuple(ANSWER), "text": tuple(FEATURES)}
ROUNDS = 200  # of L-BFGS, each over all steps of all traces


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """How a head is trained."""

    look: str = "text"  # at the answer alone, or at the masks around it too
    hidden: int = 16  # units between the features and the score; 0 is a logistic regression
    penalty: float = 1e-3  # on squared weights
    seed: int = 0  # of the first weights

    def __post_init__(self) -> None:
        one_of("look", self.look, LOOKS, RequestError)
        whole("hidden", self.hidden, 0, 256, RequestError)
        within("penalty", self.penalty, 0.0, error=RequestError)
        whole("seed", self.seed, 0, error=RequestError)


@dataclass(frozen=True, slots=True)
class TrainedJudge:
    """A trained head, and how well it tells the steps apart that it was trained on."""

    head: Head
    steps: int
    share: float  # of the steps at which the final answer would have been emitted
    loss: float  # log loss, in nats
    before: float  # that of someone who knows nothing but the share

    def save(self, path: str | Path) -> None:
        """Write the head; a reader sees the old file or the whole new one."""
        write_file(path, self.head.text())


@dataclass(frozen=True, slots=True)
class JudgeTraining:
    """Training made ready: what is decoded in full, and how the head is fitted to it."""

    bench: PreparedEvaluation
    lesson: JudgeConfig

    @classmethod
    def prepare(cls, what: Evaluation, lesson: JudgeConfig) -> JudgeTraining:
        """Everything that can be wrong is found here."""
        bench, orders = without_stopping(what, Sure())
        cache = orders[0].recipe.cache
        if lesson.look == "text" and cache != Off():
            raise RequestError(
                f"a judge that looks at the text cannot learn from cache={format_value(cache)}, which leaves masks "
                'uncomputed; let it look at the answer (look="answer"), or teach it without a cache'
            )
        return cls(bench, lesson)

    def run(self, watch: Watch | None = None) -> TrainedJudge:
        """Decode what is not there yet, and train."""
        what = self.bench.what
        named = {"model": folder_of(what.model).name, "model_sha256": self.bench.engine.fingerprint, "task": what.task}
        return taught(studied(self.bench, watch).cases, self.lesson, named)


def train_judge(
    model: str,
    *,
    task: str | None = None,
    prompts: str | Path | Sequence[Given] | None = None,
    recipe: str = "full",
    lesson: JudgeConfig | None = None,
    out: str | Path | None = None,
    work: str | Path | None = None,
    watch: Watch | None = None,
    options: Mapping[str, Any] | None = None,
    **evaluation: Any,
) -> TrainedJudge:
    """A judge trained on a task or on prompts, written to `out`; see `calibrate` for the rest."""
    what = evaluation_for(model, task, prompts, recipe, out, work, options or {}, **evaluation)
    made = JudgeTraining.prepare(what, lesson or JudgeConfig()).run(watch)
    if out is not None:
        made.save(out)
    return made


def taught(cases: Sequence[Case], lesson: JudgeConfig, named: Mapping[str, Any] | None = None) -> TrainedJudge:
    """A head fitted to some full decodings; the file will say `named` of them."""
    names = LOOKS[lesson.look]
    values, right = seen(cases, names), labels(cases)
    share = float(right.float().mean())
    if share in (0.0, 1.0):
        ever = "always" if share else "never"
        raise RequestError(f"the final answer stood there {ever} in these decodings, so there is nothing to learn")
    trained = {
        **(named or {}),
        "recipe": str(cases[0].trace.request.recipe),
        "steps": len(right),
        "examples": [example_key(case.example) for case in cases],
    }
    head, loss = fitted(values, right, names, lesson, trained)
    before = -share * math.log(share) - (1 - share) * math.log(1 - share)
    return TrainedJudge(head, len(right), share, loss, before)


def seen(cases: Sequence[Case], names: Sequence[str]) -> Tensor:
    """The features of every step of every trace, one behind the other. [steps, F]"""
    rows = together([case.trace for case in cases])
    return torch.cat([features(beliefs, states, names) for _, beliefs, states in rows])


def labels(cases: Sequence[Case]) -> Tensor:
    """Whether a commit at each step emits the full decoding's answer. [steps]"""
    return torch.tensor([same for case in cases for same in _same(case)])


def _same(case: Case) -> list[bool]:
    """Drafts repeat, and each is read only once."""
    drafts, known = [tuple(draft) for draft in case.trace.tokens.tolist()], dict[tuple[int, ...], bool]()
    for step, draft in enumerate(drafts):
        if draft not in known:
            known[draft] = case.emitted(step)[0] == case.record.answer
    return [known[draft] for draft in drafts]


def fitted(
    values: Tensor, right: Tensor, names: Sequence[str], lesson: JudgeConfig, trained: Mapping[str, Any]
) -> tuple[Head, float]:
    """The head of least penalised log loss, and its log loss."""
    mean, scale = values.mean(dim=0), values.std(dim=0)
    scale = torch.where(scale > 1e-6, scale, 1.0)  # what never varies says nothing
    inputs, wanted = (values - mean) / scale, right.float()
    maker = torch.Generator().manual_seed(lesson.seed)
    sizes = [len(names), *([lesson.hidden] if lesson.hidden else []), 1]
    layers = [
        (torch.randn(after, before, generator=maker) / math.sqrt(before), torch.zeros(after))
        for before, after in pairwise(sizes)
    ]
    weights = [part.requires_grad_() for layer in layers for part in layer]
    search = torch.optim.LBFGS(weights, max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def scored() -> Tensor:
        hidden = inputs
        for index, (weight, bias) in enumerate(layers):
            hidden = (hidden.tanh() if index else hidden) @ weight.T + bias
        return F.binary_cross_entropy_with_logits(hidden.squeeze(1), wanted)

    def closure() -> Tensor:
        search.zero_grad()
        loss = scored() + lesson.penalty * sum((weight**2).sum() for weight, _ in layers)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    search.step(closure)  # type: ignore[no-untyped-call]
    done = tuple((weight.detach(), bias.detach()) for weight, bias in layers)
    return Head(tuple(names), mean, scale, done, trained), float(scored().detach())


def importance(head: Head, values: Tensor, right: Tensor, seed: int = 0) -> dict[str, float]:
    """How much the log loss on steps [steps, F] rises when one feature is shuffled among them (permutation importance).

    Features that say the same share what they are worth: each can be shuffled while the other stays.
    """
    maker, wanted = torch.Generator().manual_seed(seed), right.float()

    def loss(inputs: Tensor) -> float:
        return float(F.binary_cross_entropy_with_logits(head(inputs), wanted))

    found, usual = {}, loss(values)
    for index, name in enumerate(head.names):
        mixed = values.clone()
        mixed[:, index] = values[torch.randperm(len(values), generator=maker), index]
        found[name] = loss(mixed) - usual
    return found
