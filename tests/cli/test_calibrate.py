"""`foretell calibrate`, and the use of its rule in other commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foretell import load
from foretell.engine.certificate import read_certificate
from foretell.evaluation.manifest import read_manifest
from foretell.policies.stop.families import FACTORS, FAMILIES
from foretell.policies.stop.never import Never
from foretell.recipes.text import format_value
from tests.cli.conftest import WORDS, Run

PROMPTS = [f"Tom has {number} boxes with {number + 1} apples each ." for number in range(2, 18)]
GOAL = ("--risk", "0.3", "--confidence", "0.9", "--family", "prophet")


@pytest.fixture(scope="module")
def rule(run_once: Run, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rule")
    file, out = folder / "prompts.txt", folder / "rule.json"
    file.write_text("\n".join(PROMPTS))
    done = run_once("calibrate", checkpoint, "--prompts", file, "--out", out, *GOAL)
    assert "prophet on prompts, n = 16, loss: answer" in done.stdout
    assert "fewer steps on the calibration set" in done.stdout
    assert "16/16  full in 21.0 steps" in done.stderr, "no accuracy where nothing is graded"
    assert (folder / "rule.work" / "manifest.json").is_file()
    return out


def test_the_table_shows_the_rules_near_the_chosen_one(run: Run, checkpoint: Path, rule: Path) -> None:
    words = ("calibrate", checkpoint, "--prompts", rule.parent / "prompts.txt", "--out", rule, *GOAL)
    near, whole = run(*words).stdout, run(*words, "--grid").stdout
    assert near.count("x  ") < whole.count("x  ") == len(FACTORS)
    fastest = [line.split() for line in whole.splitlines() if line.endswith(("yes  ", "yes"))][-1]
    assert float(fastest[0]) == FAMILIES["prophet"].settings[read_certificate(rule).rung or 0]


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
    assert "cannot read the certified recipe" in wrong.stderr


def test_generate_uses_it_as_a_recipe(run: Run, checkpoint: Path, rule: Path) -> None:
    words = ("generate", checkpoint, WORDS, "--recipe", rule, "--json")
    early = run(*words)
    assert json.loads(early.stdout)["steps"] == load(checkpoint).generate(WORDS, stop=rule).steps
    assert "warning:" not in early.stderr
    changed = run(*words, "--set", "guidance=0.5", "--set", "stop.tau.high=0", "--steps", "5")
    assert "warning: the certificate of this recipe does not hold here" in changed.stderr
    assert "steps is 5, not none; guidance is 0.5, not 0.0; stop is prophet(tau=staged(high=0.0," in changed.stderr
    full = run(*words, "--temperature", "0.5", "--on-mismatch", "full")
    assert json.loads(full.stdout)["steps"] == 21
    assert "warning: so it is decoded with full block_length=8 instead" in full.stderr
    assert "does not hold here" in run(*words, "--steps", "5", "--on-mismatch", "fail", code=2).stderr
    text = run("generate", checkpoint, WORDS, "--recipe", f"{rule} steps=16", code=2)
    assert "a recipe's file takes no settings after its name" in text.stderr
    both = run(*words, "--stop", rule, code=2)
    assert "recipe and stop are both files of certificates" in both.stderr
    assert "cannot read the certified recipe" in run(*words[:4], rule.parent / "none.json", code=2).stderr
    watched = run("generate", checkpoint, WORDS, "--recipe", rule, "--watch")
    assert "rule.json" in watched.stdout
    filled = run("fill", checkpoint, "Tom has [MASK] boxes .", "--recipe", rule, "--json")
    assert "it is for windows after a prompt, not for masks" in filled.stderr


def test_it_is_shown_in_plain_words(run: Run, rule: Path, tmp_path: Path) -> None:
    found, shown = read_certificate(rule), " ".join(run("recipes", rule).stdout.split())
    assert f"rule.json certified at {found.speedup:.2f}x fewer steps {found.recipe}" in shown
    assert (
        "With confidence 0.9, it gives another answer than full decoding on at most 30% of examples like the 16"
        in shown
    )
    assert "for a window of 24 positions, the answer 2 tokens at 22 against full block_length=8" in shown
    assert "examples 16 of a set of prompts, seed 0 risk at most 0.3 (answer) with confidence 0.9; " in shown
    assert f"ladder prophet, rung {(found.rung or 0) + 1} of {len(FACTORS)} look 1, tested at delta = 0.08" in shown
    none = replace(found, certified=False, recipe=found.against, rung=None)
    replace(none, fills=True, pilot=7, compile=True, torch=None).save(tmp_path / "none.json")
    shown = " ".join(run("recipes", tmp_path / "none.json").stdout.split())
    assert shown.startswith("none.json nothing is certified full block_length=8 With confidence 0.9")
    assert "float32, cpu, compiled for texts with masks against" in shown
    assert "seed 0, after a pilot of 7" in shown
    assert "ladder" not in shown
    replace(found, window=None).save(tmp_path / "loose.json")
    assert "windows that differ from example to example" in run("recipes", tmp_path / "loose.json").stdout


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
    assert used["prophet"]["recipe"] == f"full block_length=16 stop={format_value(read_certificate(rule).rule)}"
    assert used["full"]["recipe"] == "full block_length=16"
    assert "warning: this stopping rule was certified on a set of prompts, not choice" in done.stderr
    run("sweep", checkpoint, *words, "--vary", "steps=3,4", "--out", tmp_path / "sweep")
    swept = read_manifest(tmp_path / "sweep")["recipes"]
    assert all(format_value(read_certificate(rule).rule) in one["recipe"] for one in swept.values())
    assert len(swept) == 3
    wrong = run("eval", checkpoint, *words, "--recipe", "full", "--out", tmp_path / "none", code=2)
    assert "none of full stops early" in wrong.stderr


def test_eval_uses_it_as_a_recipe(run: Run, checkpoint: Path, rule: Path, tmp_path: Path) -> None:
    words = ("eval", checkpoint, "--limit", "2", "--recipe", "full", "--recipe", rule, "--out")
    done = run(*words, tmp_path / "choice", "--task", "choice")
    assert "warning: rule.json was certified on a set of prompts, not choice" in done.stderr
    assert "the window has 32 positions, not 24" in done.stderr
    used = read_manifest(tmp_path / "choice")["recipes"]
    assert [*used] == ["full", "rule.json"]
    assert used["rule.json"]["recipe"] == read_certificate(rule).recipe, "not with the block length of the task"
    assert "rule.json" in done.stdout
    again = run(*words, tmp_path / "choice", "--task", "choice")
    assert "4/4" not in again.stderr, "nothing is decoded twice"
    mine = ("--task", "prompts", "--data", rule.parent / "prompts.txt")
    done = run(*words, tmp_path / "mine", *mine)
    assert "certified" not in done.stderr
    assert "does not hold" not in done.stderr
    used = read_manifest(tmp_path / "mine")["recipes"]
    assert used["full"]["recipe"] == "full block_length=8", "as the model prefers"
    extended = run("sweep", checkpoint, *mine, "--base", rule, "--vary", "steps=3", "--out", tmp_path / "s", code=2)
    assert "a recipe's file takes no settings after its name" in extended.stderr


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
    says = "3 examples cannot show a risk of at most 1% with confidence 0.95: at least 499 are needed"
    assert done.stderr.startswith(f"warning: {says}")
    assert f"Nothing is certified, so the rule never stops: {says}" in " ".join(done.stdout.split())
    assert read_certificate(out).rule == Never()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give a task, prompts"),
        (
            ("--task", "choice", "--family", "x"),
            "unknown family 'x' (available: all, entropy, linear, linear-min, log-odds, persistence",
        ),
        (("--task", "choice", "--risk", "2"), "risk must be a number above 0 and below 1 (1% is 0.01), got 2.0"),
        (
            ("--task", "choice", "--loss", "x"),
            "unknown loss 'x' (available: answer, success, text, tokens); a function of your own is mine.py:function",
        ),
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
    assert json.loads(live.stdout)["steps"] == load(checkpoint).generate(WORDS, stop=found.rule).steps
    both = run(
        "calibrate", checkpoint, "--prompts", more, "--judge", judge, "--family", "entropy", "--out", out, *GOAL[:4]
    )
    assert "The fastest certified rule of each family" in both.stdout
    assert "2 ladders were tested" in both.stdout
    assert read_certificate(out).ladder in ("entropy", "judge")


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
