"""The simulation against queues that can be computed by hand, queueing theory, and the real scheduler."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.scheduler import Scheduler
from foretell.errors import RequestError
from foretell.loop.decode import decode
from foretell.plan.costs import FEATURES, FittedCost, RooflineCost, features, fit
from foretell.plan.devices import device_named
from foretell.plan.passes import Pass, PassRecorder
from foretell.plan.roofline import Roofline
from foretell.plan.shapes import find_shape
from foretell.plan.simulate import (
    BatchStep,
    Finished,
    Job,
    RouteByKind,
    Server,
    Work,
    bursts,
    daily,
    job_of,
    poisson,
    route_by_load,
    route_randomly,
    simulate,
)
from foretell.recipes.presets import parse
from tests.helpers import network


def job(steps: int, kind: str = "a", prompt: int = 4) -> Job:
    return Job(kind, prompt, 8, ((steps, Work(whole=8)),))


def second(step: BatchStep) -> float:
    return 1.0


def per_row(step: BatchStep) -> float:
    return sum(one.rows for one in step.passes) + step.joined / 2 + step.left / 4


def times(done: list[Finished]) -> list[tuple[float, float]]:
    return [(one.started, one.finished) for one in done]


def test_a_single_row() -> None:
    (done,) = simulate([Server(second)], [job(5)], [2.5])
    assert (done.arrival, done.started, done.finished, done.latency) == (2.5, 2.5, 7.5, 5.0)


def test_a_full_batch_lets_the_next_one_in_when_a_row_leaves() -> None:
    server = Server(second, max_batch=2)
    done = simulate([server], [job(2), job(4), job(1)], [0, 0, 0])
    assert times(done) == [(0, 2), (2, 3), (0, 4)]
    assert (server.steps, server.busy_seconds, server.columns) == (4, 4, (2 + 2 + 2 + 1) * 12)


def test_a_request_joins_after_the_step_that_is_running() -> None:
    done = simulate([Server(second, max_batch=2)], [job(10), job(3)], [0, 4.2])
    assert times(done) == [(5, 8), (0, 10)]
    # One that arrives exactly between two steps joins at once.
    assert times(simulate([Server(second, max_batch=2)], [job(10), job(3)], [0, 4.0])) == [(4, 7), (0, 10)]


def test_groups_take_turns_and_share_the_slots() -> None:
    done = simulate([Server(second, max_batch=3)], [job(2), job(2, "b"), job(1, "b"), job(1)], [0] * 4)
    # a, b (a row leaves, and the last request joins a), a, b.
    assert [(one.job.kind, one.started, one.finished) for one in done] == [
        ("b", 0, 2),
        ("a", 0, 3),
        ("a", 2, 3),
        ("b", 0, 4),
    ]


def test_padding_is_computed_and_prompts_of_like_length_share_a_batch() -> None:
    jobs = [job(3, prompt=10), job(3, prompt=30), job(3, prompt=10)]
    server = Server(second, max_batch=2, lookahead=8)
    done = simulate([server], jobs, [0, 0, 0])
    assert [one.job.prompt for one in done] == [10, 10, 30]
    assert server.columns == 3 * 2 * 18 + 3 * 38
    first = Server(second, max_batch=2, lookahead=1)
    simulate([first], jobs, [0, 0, 0])
    assert first.columns == 3 * 2 * 38 + 3 * 18
    patient = Server(second, max_batch=2, lookahead=8, patience=0)
    simulate([patient], jobs, [0, 0, 0])
    assert patient.columns == first.columns


def test_passes_of_a_step() -> None:
    rows = [Job("a", 4, 8, ((1, Work(whole=8, read=3)),), stored=True)]
    rows += [Job("a", 6, 8, ((1, Work(part=2, commit=8, read=4)),), stored=True)]
    seen: list[BatchStep] = []

    def cost(step: BatchStep) -> float:
        seen.append(step)
        return 1.0

    simulate([Server(cost)], rows, [0, 0])
    passes = (
        Pass(rows=1, columns=14, attended=14, stored=True, whole=True, read=7),
        Pass(rows=1, columns=2, attended=14, stored=True, whole=False),
        Pass(rows=1, columns=14, attended=14, stored=False, whole=True),
    )
    assert seen == [BatchStep(passes, joined=2, left=2)]


@pytest.mark.parametrize("kinds", [1, 3])
def test_equal_steps_at_once_change_nothing(kinds: int) -> None:
    rng = np.random.default_rng(5)
    short = [job(int(rng.integers(1, 30)), f"{i % kinds}", int(rng.integers(1, 9))) for i in range(60)]
    single = [replace(one, runs=((1, one.runs[0][1]),) * one.steps) for one in short]
    arrivals = poisson(0.05, 60, rng).tolist()
    together, apart = Server(per_row, 4), Server(per_row, 4)
    done, expected = simulate([together], short, arrivals), simulate([apart], single, arrivals)
    assert [one.finished for one in done] == pytest.approx([one.finished for one in expected])
    assert [one.started for one in done] == pytest.approx([one.started for one in expected])
    assert (together.steps, together.columns) == (apart.steps, apart.columns)


def test_waiting_times_of_one_row_are_those_of_an_m_d_1_queue() -> None:
    service, load = 10, 0.7
    rng = np.random.default_rng(1)
    arrivals = poisson(load / service, 5000, rng).tolist()
    done = simulate([Server(second, max_batch=1)], [job(service)] * len(arrivals), arrivals)
    waited = np.mean([one.started - one.arrival for one in done])
    assert waited == pytest.approx(service * load / (2 * (1 - load)), rel=0.15)  # Pollaczek and Khinchine


@pytest.mark.parametrize("batch", [1, 3])
def test_a_server_that_is_always_busy_has_the_throughput_of_its_batch(batch: int) -> None:
    done = simulate([Server(second, max_batch=batch)], [job(10)] * 30, [0] * 30)
    assert len(done) / done[-1].finished == pytest.approx(batch / 10)


MIXES = [
    ("full", "full"),
    ("prophet stop.tau=linear(1,0.1) block_length=4", "full block_length=4"),
    ("full transfer=threshold(0.2) stop_at_eos=true block_length=4", "full transfer=threshold(0.3) block_length=4"),
    ("dual block_length=4", "dual stop=prophet(tau=staged(99,0,0)) block_length=4"),
    ("prefix block_length=4", "delayed transfer=threshold(0.2)"),
]


@pytest.mark.parametrize("recipes", MIXES)
def test_it_takes_the_steps_of_the_real_scheduler(recipes: tuple[str, ...]) -> None:
    model, rng = network(3), np.random.default_rng(4)
    requests = []
    for index in range(14):
        prompt = tuple(rng.integers(3, 24, size=int(rng.integers(2, 12))).tolist())
        requests.append(Request(prompt, Layout(16, answer=(12, 4)), parse(recipes[index % len(recipes)])))
    jobs = []
    for one in requests:
        recorder = PassRecorder(model)
        state = lay_out([one], model.mask_id, (2,))
        steps = [recorder.take() for _ in decode(recorder, state, one.recipe)]
        jobs.append(job_of(steps, one.kind, len(one.prompt), 16))
    assert len({one.steps for one in jobs}) > 1 or recipes == ("full", "full")
    commits = [work.commit for one in jobs for _, work in one.runs if work.commit]
    assert bool(commits) == ("staged" in recipes[1]), "a commit outside the computed block is a pass of its own"

    for batch in (3, 5):
        recorder = PassRecorder(model)
        scheduler = Scheduler(recorder, (2,), batch)
        for one in requests:
            scheduler.submit(one)
        order: list[int] = []
        seen: list[list[tuple[int, int, int, bool]]] = []
        while scheduler.busy:
            order += sorted(one.ticket for one in scheduler.step())
            seen.append([(one.rows, one.columns, one.attended, one.whole) for one in recorder.take()])
        simulated: list[BatchStep] = []

        def cost(step: BatchStep, simulated: list[BatchStep] = simulated) -> float:
            simulated.append(step)
            return 1.0

        # Runs of one step each, so that the simulation asks for the cost of every step.
        single = [replace(one, runs=tuple((1, w) for n, w in one.runs for _ in range(n))) for one in jobs]
        server = Server(cost, batch)
        done = simulate([server], single, [0] * len(single))
        assert server.steps == len(seen)
        assert server.columns == scheduler.usage.columns_computed
        assert [[(one.rows, one.columns, one.attended, one.whole) for one in step.passes] for step in simulated] == seen
        ended = sorted((one.finished, next(i for i, job in enumerate(single) if job is one.job)) for one in done)
        assert [ticket for _, ticket in ended] == order
        assert sum(step.joined for step in simulated) == sum(step.left for step in simulated) == len(jobs)


def test_routing_by_load_avoids_the_busy_replica() -> None:
    def spread(route: object) -> list[float]:
        rng = np.random.default_rng(7)
        arrivals = poisson(0.7 * 4 / 10, 3000, rng).tolist()
        done = simulate([Server(second, 1) for _ in range(4)], [job(10)] * 3000, arrivals, route, seed=1)  # type: ignore[arg-type]
        assert {one.server for one in done} == {0, 1, 2, 3}
        return [one.latency for one in done]

    assert np.mean(spread(route_by_load)) < 0.7 * np.mean(spread(route_randomly))


def test_routing_by_kind_keeps_kinds_apart_until_replicas_are_full() -> None:
    route = RouteByKind((("a", 0.5), ("b", 0.5)))
    jobs = [job(10, "ab"[i % 2]) for i in range(8)]
    servers = [Server(second, 2) for _ in range(4)]
    done = simulate(servers, jobs[:2], [0, 0], route)
    assert [(one.job.kind, one.server < 2) for one in done] in (
        [("a", True), ("b", False)],
        [("b", False), ("a", True)],
    )
    only = simulate([Server(second, 2) for _ in range(4)], [job(10)] * 6, [0] * 6, route)
    assert {one.server for one in only} >= {0, 1}
    assert max(one.started for one in only) == 0 or len({one.server for one in only}) > 2
    # Three kinds on two replicas: each has a replica, and the one in the middle has both.
    thirds = RouteByKind((("a", 1 / 3), ("b", 1 / 3), ("c", 1 / 3)))
    assert [thirds._span(kind, 2) for kind in "abc"] == [(0, 1), (0, 2), (1, 2)]
    assert [thirds._span(kind, 1) for kind in "abc"] == [(0, 1)] * 3
    with pytest.raises(RequestError, match="no replicas for the kind 'd'"):
        thirds(servers, job(1, "d"), 0.0, np.random.default_rng(0))


def test_a_row_that_is_leaving_counts_until_its_step_ends() -> None:
    server = Server(second, 2)
    server.submit(job(1), 0.0)
    server.step()
    assert (server.load(0.5), server.load(1.0), server.now) == (1, 0, 1.0)


def test_arrivals() -> None:
    rng = np.random.default_rng(2)
    for found in (poisson(4.0, 8000, rng), bursts(4.0, 8000, 10, rng), daily(4.0, 8000, 1.8, 100.0, rng)):
        assert len(found) == 8000
        assert found[-1] == pytest.approx(2000, rel=0.15)
        assert all(one <= other for one, other in pairwise(found))
    clustered = bursts(4.0, 100, 10, rng)
    assert len(set(clustered)) == 10
    phase = daily(4.0, 8000, 1.8, 100.0, rng) % 100
    assert np.mean(phase < 50) == pytest.approx(0.5 + 0.8 / np.pi, abs=0.03)
    with pytest.raises(RequestError, match="peak must be from 1 to 2"):
        daily(1.0, 10, 3.0, 10.0, rng)
    with pytest.raises(RequestError, match="2 jobs need as many arrivals, got 1"):
        simulate([Server(second)], [job(1)] * 2, [0])


TRUTH = FittedCost((1e-3, 2e-3, 3e-6, 0.0, 4e-6, 5e-6, 1e-8, 0.0, 4e-3, 5e-4, 6e-4))


def draw_steps(count: int, rng: np.random.Generator) -> list[BatchStep]:
    steps = []
    for _ in range(count):
        passes = []
        for _ in range(int(rng.integers(1, 3))):
            rows, columns, attended, read = rng.integers(1, 90, size=4).tolist()
            passes.append(Pass(rows, columns, attended, stored=True, whole=True, read=read))
        steps.append(BatchStep(tuple(passes), int(rng.integers(3)), int(rng.integers(3))))
    return steps


def test_a_fit_finds_the_coefficients() -> None:
    steps = draw_steps(200, np.random.default_rng(3))
    found = fit(steps, [TRUTH(one) for one in steps])
    assert len(FEATURES) == len(features(steps[0])) == len(found.coefficients)
    assert found.coefficients == pytest.approx(TRUTH.coefficients, rel=1e-3, abs=1e-9)
    with pytest.raises(RequestError, match="at least 11 steps, got 3"):
        fit(steps[:3], [1.0] * 3)


def test_noise_does_not_make_a_fit_too_low() -> None:
    rng = np.random.default_rng(4)
    steps = draw_steps(2000, rng)
    measured = [TRUTH(one) * float(rng.lognormal(sigma=0.5)) for one in steps]
    found = fit(steps, measured)
    assert sum(map(found, steps)) == pytest.approx(sum(measured), rel=0.03)


def test_the_cost_of_a_roofline() -> None:
    roofline = Roofline(find_shape("llada-8b"), device_named("h100"), torch.bfloat16)
    one = Pass(rows=2, columns=384, attended=384, stored=False, whole=True, read=40)
    step = BatchStep((one, one), 0, 0)
    assert RooflineCost(roofline)(step) == 2 * roofline.bound(one).seconds
    assert RooflineCost(roofline, 0.4)(step) == pytest.approx(5 * roofline.bound(one).seconds)
    with pytest.raises(RequestError, match="efficiency must be from 1e-06 to 1, got 2"):
        RooflineCost(roofline, 2.0)
