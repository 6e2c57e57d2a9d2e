"""`foretell calibrate`, and the use of its rule in other commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretell import load
from foretell.engine.certificate import read_certificate
from foretell.evaluation.manifest import read_manifest
from foretell.policies.stop.families import FACTORS
from tests.cli.conftest import WORDS, Run

PROMPTS = [f"Tom has {number} boxes with {number + 1} apples each ." for number in range(2, 18)]
GOAL = ("--risk", "0.3", "--confidence", "0.9", "--family", "prophet")


@pytest.fixture(scope="module")
def rule(run_once: Run, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rule")
    file, out = folder / "prompts.txt", folder / "rule.json"
    file.write_text("\n".join(PROMPTS))
    done = run_once("calibrate", checkpoint, "--prompts", file, "--out", out, *GOAL)
    assert "prophet on prompts, n = 16, loss: consistency" in done.stdout
    assert "fewer steps on the calibration set" in done.stdout
    assert "16/16  full in 21.0 steps" in done.stderr, "no accuracy where nothing is graded"
    assert (folder / "rule.work" / "manifest.json").is_file()
    return out


def test_the_table_shows_the_rules_near_the_chosen_one(run: Run, checkpoint: Path, rule: Path) -> None:
    words = ("calibrate", checkpoint, "--prompts", rule.parent / "prompts.txt", "--out", rule, *GOAL)
    near, whole = run(*words).stdout, run(*words, "--grid").stdout
    assert near.count("x  ") < whole.count("x  ") == len(FACTORS)
    fastest = [line.split() for line in whole.splitlines() if line.endswith(("yes  ", "yes"))][-1]
    assert float(fastest[0]) == read_certificate(rule).setting


def test_generate_uses_it(run: Run, checkpoint: Path, rule: Path) -> None:
    early = run("generate", checkpoint, WORDS, "--recipe", "prophet", "--stop", rule, "--json")
    done = load(checkpoint).generate(WORDS, recipe="prophet", stop=rule)
    assert json.loads(early.stdout)["steps"] == done.steps < done.budget
    assert "warning:" not in early.stderr
    other = run("generate", checkpoint, WORDS, "--recipe", "prophet", "--stop", rule, "--steps", "5", "--json")
    assert "warning: the certificate of this stopping rule does not hold here" in other.stderr
    assert "steps is 5, not none" in other.stderr
    plain = run("generate", checkpoint, WORDS, "--stop", "prophet(tau=linear(0,0))", "--json")
    assert json.loads(plain.stdout)["steps"] == 1
    wrong = run("generate", checkpoint, WORDS, "--stop", rule.parent / "none.json", code=2)
    assert "cannot read the stopping rule" in wrong.stderr


def test_a_mismatch_fails_or_decodes_in_full(run: Run, checkpoint: Path, rule: Path, tmp_path: Path) -> None:
    words = ("generate", checkpoint, WORDS, "--stop", rule, "--steps", "5", "--json")
    failed = run(*words, "--on-mismatch", "fail", code=2)
    assert "the certificate of this stopping rule does not hold here" in failed.stderr
    assert failed.stdout == ""
    full = run(*words, "--on-mismatch", "full")
    assert json.loads(full.stdout)["steps"] == 5
    assert "warning: so the rule is not used" in full.stderr
    assert "unknown on_mismatch 'never'" in run(*words, "--on-mismatch", "never", code=2).stderr
    graded = ("eval", checkpoint, "--task", "choice", "--limit", "2", "--stop", rule, "--on-mismatch")
    failed = run(*graded, "fail", "--out", tmp_path / "failed", code=2)
    assert "does not hold here" in failed.stderr
    assert not (tmp_path / "failed").exists()
    run(*graded, "full", "--out", tmp_path / "full")
    used = read_manifest(tmp_path / "full")["recipes"]
    assert used["prophet"]["recipe"] == used["full"]["recipe"] == "full block_length=16"


def test_eval_and_sweep_use_it(run: Run, checkpoint: Path, rule: Path, tmp_path: Path) -> None:
    words = ("--task", "choice", "--limit", "2", "--stop", rule)
    done = run("eval", checkpoint, *words, "--out", tmp_path / "eval")
    used = read_manifest(tmp_path / "eval")["recipes"]
    assert used["prophet"]["recipe"] == f"full block_length=16 stop={read_certificate(rule).stop}"
    assert used["full"]["recipe"] == "full block_length=16"
    assert "warning: this stopping rule was certified on a set of prompts, not choice" in done.stderr
    run("sweep", checkpoint, *words, "--vary", "steps=3,4", "--out", tmp_path / "sweep")
    swept = read_manifest(tmp_path / "sweep")["recipes"]
    assert all(read_certificate(rule).stop in one["recipe"] for one in swept.values())
    assert len(swept) == 3
    wrong = run("eval", checkpoint, *words, "--recipe", "full", "--out", tmp_path / "none", code=2)
    assert "none of full stops early" in wrong.stderr


def test_a_trace_is_replayed_with_it(run: Run, checkpoint: Path, rule: Path, tmp_path: Path) -> None:
    run("generate", checkpoint, WORDS, "--trace", tmp_path / "a.npz")
    run("generate", checkpoint, WORDS, "--block-length", "3", "--trace", tmp_path / "b.npz")
    steps = load(checkpoint).generate(WORDS, stop=rule).steps
    same, other = (run("trace", "replay", tmp_path / name, "--stop", rule) for name in ("a.npz", "b.npz"))
    assert f"step {steps} " in same.stdout
    assert "warning" not in same.stderr
    assert "block_length is 3, not 8" in other.stderr


def test_too_few_examples_are_reported_before_and_after(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "rule.json"
    done = run("calibrate", checkpoint, "--task", "choice", "--limit", "3", "--out", out)
    says = "3 examples cannot show a risk of at most 1% with confidence 0.95: at least 477 are needed"
    assert done.stderr.startswith(f"warning: {says}")
    assert f"Nothing is certified, so the rule never stops: {says}" in " ".join(done.stdout.split())
    assert read_certificate(out).stop == "never"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give a task or prompts"),
        (
            ("--task", "choice", "--family", "x"),
            "unknown family 'x' (available: all, entropy, linear, linear-min, log-odds, persistence",
        ),
        (("--task", "choice", "--risk", "2"), "risk must be a number above 0 and below 1 (1% is 0.01), got 2.0"),
        (("--task", "choice", "--loss", "x"), "unknown loss 'x' (available: consistency, success)"),
    ],
)
def test_mistakes_are_named(run: Run, checkpoint: Path, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    wrong = run("calibrate", checkpoint, "--out", tmp_path / "rule.json", *words, code=2)
    assert says in wrong.stderr
    assert [*tmp_path.iterdir()] == []


def test_a_judge_is_trained_and_calibrated(run: Run, checkpoint: Path, rule: Path, tmp_path: Path) -> None:
    prompts, judge, out = rule.parent / "prompts.txt", tmp_path / "judge.json", tmp_path / "rule.json"
    words = (checkpoint, "--prompts", prompts, "--work", rule.parent / "rule.work")
    trained = run("judge", *words, "--out", judge, "--hidden", "0", "--look", "answer")
    assert "336 steps of 16 examples" in trained.stdout
    assert "for always predicting that share" in trained.stdout
    refused = run("calibrate", *words, "--judge", judge, "--out", out, code=2)
    assert "trained on all these examples" in refused.stderr
    more = tmp_path / "more.txt"
    more.write_text(prompts.read_text().replace("Tom", "Ann") + "\n" + PROMPTS[0])
    done = run("calibrate", checkpoint, "--prompts", more, "--judge", judge, "--out", out, *GOAL[:4])
    assert "1 of 17 examples were used to train the judge and are left out" in done.stderr
    assert "judge on prompts, n = 16" in done.stdout
    found = read_certificate(out)
    live = run("generate", checkpoint, WORDS, "--recipe", "full", "--stop", out, "--json")
    assert json.loads(live.stdout)["steps"] == load(checkpoint).generate(WORDS, stop=found.stop).steps
    both = run(
        "calibrate", checkpoint, "--prompts", more, "--judge", judge, "--family", "entropy", "--out", out, *GOAL[:4]
    )
    assert "The fastest certified rule of each family" in both.stdout
    assert "2 families of rules were tried" in both.stdout
    assert read_certificate(out).family in ("entropy", "judge")


@pytest.mark.parametrize("command", ["eval", "calibrate"])
def test_raw_prompts_are_another_evaluation(run: Run, checkpoint: Path, tmp_path: Path, command: str) -> None:
    words = {"eval": ("--task", "choice", "--recipe", "full steps=2", "--out", tmp_path / "work"), "calibrate": (
        *("--prompts", tmp_path / "prompts.txt", "--recipe", "full steps=2", "--out", tmp_path / "rule.json"),
        *("--work", tmp_path / "work", *GOAL),
    )}  # fmt: skip
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS[:4]))
    run(command, checkpoint, *words[command], "--limit", "2", "--raw")
    (used,) = read_manifest(tmp_path / "work")["recipes"].values()
    assert used["options"]["chat"] is False
    again = run(command, checkpoint, *words[command], "--limit", "2", code=2)
    assert "options.chat: false before, nothing now" in again.stderr
