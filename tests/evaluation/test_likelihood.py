"""The Monte-Carlo likelihood equals the sum over all masks."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest

from foretell.errors import RequestError
from foretell.evaluation.harness.likelihood import log_likelihood, split_target
from tests.helpers import logits_of, network

PROMPT, TARGET = (3, 9, 4), (7, 2, 11)


def exact(model_seed: int) -> float:
    """Return the mean over k of the mean over subsets of size k of (n / k) x the sum of log p of the masked tokens."""
    model, size = network(model_seed), len(TARGET)
    total = 0.0
    for k in range(1, size + 1):
        for hidden in combinations(range(size), k):
            canvas = [*PROMPT, *(model.mask_id if i in hidden else token for i, token in enumerate(TARGET))]
            logs = logits_of(model, canvas, size).float().log_softmax(-1)
            total += size / k * sum(float(logs[i, TARGET[i]]) for i in hidden) / comb(size, k)
    return total / size


def test_it_estimates_the_sum_over_all_masks() -> None:
    model, truth = network(1), exact(1)
    assert log_likelihood(model, PROMPT, TARGET, samples=6000, batch_size=500) == pytest.approx(truth, rel=0.02)
    few = [log_likelihood(model, PROMPT, TARGET, seed=seed) for seed in range(40)]
    assert sum(few) / len(few) == pytest.approx(truth, rel=0.03)
    assert len(set(few)) > 1


def test_batches_do_not_change_it() -> None:
    model = network(2)
    values = {round(log_likelihood(model, PROMPT, TARGET, batch_size=size), 3) for size in (1, 7, 128)}
    assert len(values) == 1


def test_one_token_is_exact_with_one_sample() -> None:
    model = network(3)
    logs = logits_of(model, [*PROMPT, model.mask_id], 1).float().log_softmax(-1)
    assert log_likelihood(model, PROMPT, (5,)) == pytest.approx(float(logs[0, 5]), abs=1e-5)
    with pytest.raises(RequestError, match="no token"):
        log_likelihood(model, PROMPT, ())


def test_texts_are_split() -> None:
    assert split_target("What is it? ", "B") == ("What is it?", " B")
