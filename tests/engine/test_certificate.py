"""A certificate reads back as it was written, a broken one says what is wrong, and a misused one says so."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import foretell
from foretell.engine.certificate import (
    NO_DIGEST,
    Backend,
    Certificate,
    _digest,
    model_hash,
    read_certificate,
    recipe_of,
    stop_of,
)
from foretell.engine.codec import Codec
from foretell.engine.request import Layout
from foretell.errors import ForetellError, RecipeError, RequestError, StorageError
from foretell.policies.stop.head import Head
from foretell.policies.stop.judge import Judge
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Staged
from foretell.policies.stop.sure import Sure
from foretell.recipes.text import format_value, untrusted

PROMPT = "Tom has 3 boxes with 4 apples each."
ASKED: dict[str, Any] = {"max_new_tokens": 16, "block_length": 8, "suffix": "The answer is", "answer_length": 2}
EAGER = "prophet(tau=staged(high=0.0,mid=0.0,low=0.0))"
WINDOW = {name: value for name, value in ASKED.items() if name != "block_length"}
MASKED = "Tom has [MASK] boxes with [MASK] apples ."


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> foretell.Engine:
    return foretell.load(checkpoint)


@pytest.fixture
def certificate(engine: foretell.Engine) -> Certificate:
    """For exactly what `ASKED` decodes."""
    order = engine.template(**ASKED)
    rungs = [f"{order.recipe} stop={rule}" for rule in ("prophet", EAGER, "sure")]
    return Certificate(
        recipe=rungs[1], certified=True, says="it holds", against=str(order.recipe), fills=False, window=16,
        answer=[14, 2], pins=[list(pin) for pin in order.layout.pins], options=WINDOW, model="random",
        **asdict(engine.backend), task="word", examples_sha256="0" * 64, examples=400, pilot=100, seed=3,
        loss="answer", risk=0.01, confidence=0.95, look=2, delta=0.025, empirical_risk=0.0, upper_bound=0.007,
        cost="forwards", speedup=2.5, ladder="prophet", rungs=rungs, rung=1, version=foretell.__version__,
    )  # fmt: skip


def with_recipe(certificate: Certificate, recipe: str, **changes: Any) -> Certificate:
    return replace(certificate, recipe=recipe, rungs=[recipe], rung=0, **changes)


def with_rule(certificate: Certificate, rule: str) -> Certificate:
    return with_recipe(certificate, f"{certificate.against} stop={rule}")


def uncertified(certificate: Certificate, says: str) -> Certificate:
    return replace(certificate, recipe=certificate.against, certified=False, says=says, rung=None)


@pytest.fixture
def file(certificate: Certificate, tmp_path: Path) -> Path:
    certificate.save(tmp_path / "rule.json")
    return tmp_path / "rule.json"


def test_reads_back(certificate: Certificate, file: Path) -> None:
    assert read_certificate(file) == certificate
    assert json.loads(file.read_text())["recipe"] == f"full block_length=8 stop={EAGER}"
    bare = replace(certificate, window=None, answer=None, pins=None, task=None, dtype=None, options={})
    for other in (bare, with_recipe(certificate, "prophet"), uncertified(certificate, "too few")):
        other.save(file)
        assert read_certificate(file) == other
    with pytest.raises(StorageError, match="cannot write"):
        certificate.save(file / "nowhere" / "rule.json")


def test_it_is_an_ordinary_rule(engine: foretell.Engine, certificate: Certificate, file: Path) -> None:
    """In every spelling, with whatever recipe: the recipe's text knows the rule alone."""
    for given in (file, str(file), certificate, EAGER, Prophet(Staged(0, 0, 0))):
        order = engine.template(recipe="prophet", stop=given, **ASKED)
        assert order.recipe.stop == Prophet(Staged(0.0, 0.0, 0.0))
        assert foretell.parse(str(order.recipe)) == order.recipe
        assert order.notes == ()
    done = engine.generate(PROMPT, recipe="prophet", stop=file, **ASKED)
    assert (done.steps, done.finish, done.notes) == (1, "settled", ())
    assert engine.generate(PROMPT, recipe="full", stop=file, **ASKED).steps == 1
    assert engine.generate(PROMPT, recipe="prophet", stop="never", **ASKED).steps > 1


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"steps": 4}, "steps is 4, not none"),
        ({"block_length": 16}, "block_length is 16, not 8"),
        ({"remasking": "margin"}, "score is margin, not confidence"),
        ({"temperature": 0.5}, r"sample is gumbel\(temperature=0.5\), not greedy"),
        ({"cfg_scale": 1.0}, "guidance is 1.0, not 0.0"),
        ({"recipe": "prophet block_length=8 region=masked"}, "region is masked, not fixed"),
        ({"recipe": "prophet block_length=8 transfer=timesteps"}, "transfer is timesteps, not quota"),
        ({"max_new_tokens": 20}, "window has 20 positions, not 16.*18, not 2 tokens at 14; other tokens"),
        ({"answer_length": 3}, "the answer is 3 tokens at 13, not 2 tokens at 14"),
        ({"suffix": "", "answer_length": None}, "the answer is not declared, not 2 tokens at 14"),
        ({"suffix": "answer is The"}, "other tokens are pinned"),
    ],
)
def test_another_recipe_is_noted(engine: foretell.Engine, file: Path, changed: dict[str, Any], says: str) -> None:
    asked = {"recipe": "prophet"} | ASKED | changed
    notes = engine.generate(PROMPT, stop=file, **asked).notes
    assert "does not hold here" in notes[-1]
    assert re.search(says, notes[-1])
    streamed = [frame.completion for frame in engine.stream(PROMPT, stop=file, **asked)][-1]
    assert streamed is not None
    assert streamed.notes == notes


def test_another_model_is_noted(checkpoint: Path, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    with (other / "config.json").open("a") as config:
        config.write("\n")
    (note,) = foretell.load(other).generate(PROMPT, recipe="prophet", stop=file, **ASKED).notes
    assert "the model is not random" in note
    (note,) = foretell.load(checkpoint, dtype="bfloat16").generate(PROMPT, recipe="prophet", stop=file, **ASKED).notes
    assert "the model runs in bfloat16, not float32" in note


def test_rounded_weights_are_noted(checkpoint: Path, file: Path) -> None:
    pytest.importorskip("torchao", reason="int8 weights need torchao")
    rounded = foretell.load(checkpoint, quantize="int8")
    (note,) = rounded.generate(PROMPT, recipe="prophet", stop=file, **ASKED).notes
    assert "the model runs in float32+int8, not float32" in note


def test_a_mismatch_decodes_in_full_or_fails_as_the_user_chose(engine: foretell.Engine, file: Path) -> None:
    asked: dict[str, Any] = {"recipe": "prophet", "stop": file} | ASKED
    other = asked | {"steps": 12}
    for choice in ("warn", "full", "fail"):
        same = engine.generate(PROMPT, on_mismatch=choice, **asked)
        assert (same.steps, same.notes) == (1, ())
    warned = engine.generate(PROMPT, on_mismatch="warn", **other)
    assert warned == replace(engine.generate(PROMPT, **other), seconds=warned.seconds)
    assert (warned.steps, len(warned.notes)) == (1, 1)
    full = engine.generate(PROMPT, on_mismatch="full", **other)
    assert full.finish == "complete"
    assert full.tokens == engine.generate(PROMPT, **(ASKED | {"steps": 12})).tokens
    assert full.notes == (*warned.notes, "so the rule is not used, and decoding does not stop early (on_mismatch=full)")
    with pytest.raises(RequestError, match=r"does not hold here.*steps is 12, not none"):
        engine.template(on_mismatch="fail", **other)


def test_a_rule_that_never_stops_fails_nowhere(engine: foretell.Engine, certificate: Certificate) -> None:
    none = uncertified(certificate, "too few")
    assert engine.template(stop=none, on_mismatch="fail", steps=12).notes == ("this rule never stops: too few",)


def test_what_to_do_on_a_mismatch_needs_a_certificate(engine: foretell.Engine, file: Path) -> None:
    with pytest.raises(RequestError, match=r"on_mismatch=fail needs the file of a certificate: recipe=tuned\.json or"):
        engine.template(recipe="prophet", on_mismatch="fail")
    with pytest.raises(RequestError, match=r"on_mismatch=full needs"):
        engine.template(stop="prophet", on_mismatch="full")
    with pytest.raises(RequestError, match=r"unknown on_mismatch 'fial'; did you mean 'fail'"):
        engine.template(stop=file, on_mismatch="fial")
    assert engine.template(on_mismatch="warn").notes == ()


def test_pins_that_change_with_the_example_are_not_compared(engine: foretell.Engine, certificate: Certificate) -> None:
    loose = replace(certificate, pins=None)
    assert engine.template(stop=loose, **(ASKED | {"pins": {0: "Tom"}})).notes == ()
    assert engine.template(stop=certificate, **(ASKED | {"pins": {0: "Tom"}})).notes != ()


def test_nothing_certified_never_stops_and_says_so(engine: foretell.Engine, certificate: Certificate) -> None:
    none = uncertified(certificate, "5 examples are too few")
    done = engine.generate(PROMPT, recipe="prophet", stop=none, **ASKED)
    assert done.finish == "complete"
    assert done.notes == ("this rule never stops: 5 examples are too few",)


def head(names: tuple[str, ...] = ("gap_min",)) -> Head:
    size = len(names)
    return Head(names, torch.zeros(size), torch.ones(size), ((torch.ones(1, size), torch.zeros(1)),))


@pytest.fixture
def judge(tmp_path: Path) -> str:
    """In a folder whose name takes the other quotes."""
    (tmp_path / "it's").mkdir()
    (tmp_path / "it's" / "j.json").write_text(head().text())
    return str(tmp_path / "it's" / "j.json")


@pytest.mark.parametrize("combined", ["{}", "any(never,all(prophet,{}))"])
def test_a_judge_moves_with_its_rule(certificate: Certificate, judge: str, combined: str, tmp_path: Path) -> None:
    here, there = tmp_path / "it's", tmp_path / "there"
    with_rule(certificate, combined.format(format_value(Judge(judge, 2.5)))).save(here / "rule.json")
    here.rename(there)
    found = read_certificate(there / "rule.json")
    assert format_value(found.rule) == combined.format(format_value(Judge(str(there / "j.json"), 2.5)))
    stored = json.loads((there / "rule.json").read_text())
    assert all(f"path={'j.json'!r}" in text for text in (stored["recipe"], *stored["rungs"]))
    found.save(tmp_path / "rule.json")
    assert read_certificate(tmp_path / "rule.json") == found


def test_a_rule_without_its_judge_is_refused(engine: foretell.Engine, certificate: Certificate, judge: str) -> None:
    """When it is read, and when it is used."""
    judged = with_rule(certificate, f"any(never,{format_value(Judge(judge))})")
    file = Path(judge).parent / "rule.json"
    judged.save(file)
    Path(judge).write_text(head(("gap_mean",)).text())
    with pytest.raises(StorageError, match=r"rule\.json is not a certified recipe .*j\.json has changed"):
        read_certificate(file)
    Path(judge).unlink()
    with pytest.raises(StorageError, match=r"rule\.json is not a certified recipe .*cannot read the judge .*j\.json"):
        read_certificate(file)
    with pytest.raises(StorageError, match=r"^cannot read the judge .*j\.json"):
        engine.template(stop=judged, **ASKED)


def test_a_request_may_not_name_a_file(engine: foretell.Engine, file: Path, judge: str) -> None:
    with untrusted():
        with pytest.raises(RequestError, match=r"stop=.* names a file, and a request may not open files"):
            engine.template(stop=str(file), **ASKED)
        for given in (file, str(file)):
            with pytest.raises(RequestError, match=r"recipe=.* names a file, and a request may not open files"):
                engine.template(recipe=given)
        with pytest.raises(RecipeError, match="judge needs all 12 digits"):
            engine.template(stop=f"judge({judge!r})", **ASKED)
        with pytest.raises(StorageError, match="may not open files"):
            engine.template(recipe=f"full stop=judge({judge!r},sha256='0123456789ab')", **ASKED)
        assert engine.template(recipe="prophet", stop="sure(0.1)", **ASKED).recipe.stop == Sure(0.1)


def test_a_certificate_names_its_judge_with_all_digits(certificate: Certificate, judge: str, file: Path) -> None:
    """The user named the certificate, so its judge is opened, but nothing else."""
    with_rule(certificate, format_value(Judge(judge))).save(file)
    assert read_certificate(file).rule == Judge(judge)
    short = f"full stop=judge({judge!r})"
    broken(file, recipe=short, rungs=[short])
    with pytest.raises(StorageError, match="judge needs all 12 digits"):
        read_certificate(file)
    broken(file, recipe="full stop=sure", rungs=["full stop=sure", short])
    with pytest.raises(StorageError, match="judge needs all 12 digits"):
        read_certificate(file)
    broken(file, rungs=["full stop=sure"], against=short)
    with pytest.raises(StorageError, match="judge needs all 12 digits"):
        read_certificate(file)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "added_tokens.json", "model.safetensors.index.json"])
def test_every_file_of_a_model_counts(name: str, checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    bare = model_hash(folder)
    (folder / name).write_text("{}")
    first = model_hash(folder)
    (folder / name).write_text("[]")
    assert len({bare, first, model_hash(folder)}) == 3
    (folder / name).unlink()
    (folder / "README.md").write_text("Hello.")
    assert model_hash(folder) == bare


def test_names_of_tokens_count_where_they_are_read(checkpoint: Path, tmp_path: Path) -> None:
    """The tokenizer's config goes before them."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    names, config = folder / "special_tokens_map.json", folder / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": "a", "mask_token": "b"}))
    names.unlink(missing_ok=True)
    bare = model_hash(folder)
    names.write_text(json.dumps({"eos_token": "c"}))
    assert model_hash(folder) == bare
    names.write_text(json.dumps({"eos_token": "c", "bos_token": "d"}))
    first = model_hash(folder)
    names.write_text(json.dumps({"eos_token": "c", "bos_token": "e"}))
    assert len({bare, first, model_hash(folder)}) == 3


def broken(file: Path, *, sealed: bool = True, **changes: Any) -> None:
    """Writes other values into a file, and their digest if `sealed`; None takes out all keys but `rung`."""
    whole = json.loads(file.read_text())
    for name, value in changes.items():
        home = whole if name in whole else whole["certificate"]
        home[name] = value
        if value is None and name != "rung":
            del home[name]
    if sealed:
        whole["sha256"] = _digest({name: value for name, value in whole.items() if name != "sha256"})
    file.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": "full stop=sure(5.0)"}, {"risk": 1e-6}, {"rung": 2}, {"model_sha256": "0" * 64},
        {"says": "it is safe"}, {"answer": [13, 2]}, {"pins": []}, {"version": "0.1.0"}, {"rungs": []},
        {"sha256": "0" * 64}, {"report": {"tables": 2}},
    ],
    ids=str,
)  # fmt: skip
def test_an_edited_file_is_refused(file: Path, changes: dict[str, Any]) -> None:
    replace(read_certificate(file), report={"tables": 1}).save(file)
    broken(file, sealed=False, **changes)
    with pytest.raises(
        StorageError, match=r"rule\.json .*it was edited: the digest of its content is \w{12}, not \w{12}"
    ):
        read_certificate(file)


def test_the_order_of_keys_and_white_space_are_no_edit(certificate: Certificate, file: Path) -> None:
    whole = json.loads(file.read_text())
    whole["certificate"] = dict(reversed(whole["certificate"].items()))
    file.write_text(json.dumps(whole, indent=4))
    assert read_certificate(file) == certificate


def test_a_digest_cannot_be_left_out(certificate: Certificate, file: Path) -> None:
    """Except in files of version 0.1.0, which had none: those open with a remark."""
    broken(file, sealed=False, sha256=None)
    with pytest.raises(StorageError, match=r"its digest \('sha256'\) is missing; calibrate again"):
        read_certificate(file)
    broken(file, sealed=False, version="0.1.0")
    old = read_certificate(file)
    assert old == replace(certificate, version="0.1.0", sealed=False)
    holds = (old.chosen, Layout(16, tuple((at, token) for at, token in certificate.pins or []), (14, 2)))
    assert certificate.remarks(*holds) == ()
    assert old.remarks(*holds) == (NO_DIGEST,)
    assert [note[:15] for note in old.remarks(holds[0], Layout(9))] == [NO_DIGEST[:15], "the certificate"]
    assert old.differences(*holds) == []
    old.save(file)
    assert read_certificate(file) == old  # saving does not add what cannot be known
    broken(file, sealed=False, recipe="full stop=sure(5.0)")
    with pytest.raises(
        StorageError, match=r"the recipe is not rung 1 of the ladder, which is full block_length=8 stop="
    ):
        read_certificate(file)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"foretell_tuned": None}, 'expected an object with "foretell_tuned"'),
        ({"foretell_tuned": 2}, f"its format is 2; foretell {foretell.__version__} reads format 1"),
        ({"certificate": [1]}, "'certificate' must be an object, got [1]"),
        ({"recipe": None}, "'recipe' is missing"),
        ({"recipe": 1}, "'recipe' must be a text, got 1"),
        ({"recipe": "profet"}, "did you mean 'prophet'"),
        ({"recipe": "prophet"}, "the recipe is not rung 1 of the ladder, which is full block_length=8 stop="),
        ({"rungs": "prophet"}, "'rungs' must be a list, got 'prophet'"),
        ({"rungs": ["prophet", "profet"]}, "did you mean 'prophet'"),
        ({"rungs": ["prophet"]}, "rung must be from 0 to 0, got 1"),
        ({"rung": -1}, "rung must be from 0 to 2, got -1"),
        ({"rung": 0}, "the recipe is not rung 0 of the ladder, which is full block_length=8 stop=prophet"),
        ({"rung": None}, "certified is true, but the rung is None"),
        ({"certified": False}, "certified is false, but the rung is 1"),
        ({"certified": False, "rung": None}, "nothing is certified, so the recipe must be full block_length=8, got"),
        ({"certified": 1}, "'certified' must be true or false, got 1"),
        ({"risk": None}, "'risk' is missing"),
        ({"risk": "1%"}, "'risk' must be a number, got '1%'"),
        ({"risk": 5}, "risk must be from 0 to 1, got 5"),
        ({"delta": -1}, "delta must be from 0 to 1, got -1"),
        ({"confidence": True}, "'confidence' must be a number"),
        ({"examples": 1.5}, "'examples' must be a whole number"),
        ({"examples": 0}, "examples must be at least 1"),
        ({"pilot": -1}, "pilot must be at least 0"),
        ({"look": 0}, "look must be at least 1"),
        ({"speedup": -0.5}, "speedup must be at least 0"),
        ({"cost": "step"}, "unknown cost 'step'; did you mean 'steps'"),
        ({"window": 0}, "window must be at least 1"),
        ({"answer": [1, 2, 3]}, "'answer' must be a list of length <= 2, got [1, 2, 3]"),
        ({"pins": [[1, "a"]]}, "'pins[0][1]' must be a whole number, got 'a'"),
        ({"options": {"steps": 3}}, "unknown key 'steps'"),
        (
            {"options": {"suffix": 1.5}},
            "'options[...]' must be true or false or a whole number or a text, got a number",
        ),
        ({"task": 7}, "'task' must be a text or null, got 7"),
        ({"against": "prophet"}, "against must be a recipe that never stops early, got prophet"),
        ({"rsik": 3}, "unknown key 'rsik'; did you mean 'risk'"),
        ({"report": {}}, "unknown key 'report'"),
    ],
)
def test_a_malformed_file_is_refused(engine: foretell.Engine, file: Path, changes: dict[str, Any], says: str) -> None:
    broken(file, **changes)
    for name in ("stop", "recipe"):
        given: dict[str, Any] = {name: file}
        with pytest.raises(StorageError) as raised:
            engine.template(**given)
        assert "rule.json is not a certified recipe or stopping rule" in str(raised.value)
        assert says in str(raised.value)


def write_old(file: Path, certificate: Certificate, **changes: Any) -> None:
    """Writes a certificate in the format that held a stopping rule."""
    new = ("recipe", "fills", "options", "device", "compile", "torch", "pilot", "look", "delta", "cost", "ladder")
    drop = (*new, "rungs", "rung", "sealed", "report")
    kept = {name: value for name, value in asdict(certificate).items() if name not in drop}
    old = {"recipe": certificate.against, "family": certificate.ladder, "setting": 0.0} | kept
    whole = {"foretell_rule": 1, "stop": format_value(certificate.rule), "certificate": old}
    file.write_text(json.dumps(whole))
    broken(file, **changes)


def test_a_file_with_only_a_rule_becomes_a_ladder_of_one(certificate: Certificate, judge: str, file: Path) -> None:
    unknown: dict[str, Any] = {"options": {}, "device": None, "compile": None, "torch": None}
    made: dict[str, Any] = {
        "rungs": [certificate.recipe],
        "rung": 0,
        "pilot": 0,
        "look": 1,
        "delta": 0.05,
        "cost": "steps",
    }
    write_old(file, certificate)
    assert read_certificate(file) == replace(certificate, **made, **unknown)
    judged = with_rule(certificate, format_value(Judge(judge)))
    write_old(file, judged, stop=f"judge('{Path(judge).name}',sha256='{Judge(judge).sha256}')")
    shutil.copy(judge, file.parent)
    assert read_certificate(file).rule == Judge(str(file.parent / Path(judge).name))
    none = replace(uncertified(certificate, "too few"), against="full block_length=16", recipe="full block_length=16")
    write_old(file, none, recipe="full steps=4")
    found = read_certificate(file)
    assert (found.certified, found.recipe, found.rungs, found.rung) == (False, "full block_length=16", [], None)
    found.save(file)
    assert read_certificate(file) == found
    assert json.loads(file.read_text())["foretell_tuned"] == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"foretell_rule": 2}, f"its format is 2; foretell {foretell.__version__} reads format 1"),
        ({"stop": "sure steps=3"}, "cannot read stop='sure steps=3'"),
        ({"recipe": "ful"}, "did you mean 'full'"),
        ({"confidence": "high"}, "'confidence' must be a number, got 'high'"),
        ({"family": 3}, "'family' must be a text, got 3"),
        ({"risk": None}, "'risk' is missing"),
        ({"rsik": 3}, "unknown key 'rsik'; did you mean 'risk'"),
    ],
)
def test_a_malformed_rule_is_refused(certificate: Certificate, file: Path, changes: dict[str, Any], says: str) -> None:
    write_old(file, certificate, **changes)
    with pytest.raises(StorageError) as raised:
        read_certificate(file)
    assert says in str(raised.value)
    write_old(file, certificate)
    broken(file, sealed=False, risk=0.5)
    with pytest.raises(StorageError, match="it was edited"):
        read_certificate(file)


def test_a_report_is_kept(certificate: Certificate, file: Path) -> None:
    """As it reads back: JSON has no tuples and no numbers as keys."""
    replace(certificate, report={"rows": [(1, 2.5)], "counts": {9: "a", 10: None}}).save(file)
    found = read_certificate(file)
    assert found.report == {"rows": [[1, 2.5]], "counts": {"9": "a", "10": None}}
    found.save(file)
    assert read_certificate(file) == found
    assert replace(found, report=None) == certificate


def test_it_is_a_recipe(engine: foretell.Engine, certificate: Certificate, file: Path) -> None:
    """Complete, with the window that it was certified for."""
    asked = engine.template(recipe=certificate.recipe, **WINDOW)
    for given in (file, str(file), certificate):
        assert engine.template(recipe=given) == asked
        done = engine.generate(PROMPT, recipe=given)
        assert (done.steps, done.finish, done.notes) == (1, "settled", ())
    assert recipe_of("prophet steps=3") == "prophet steps=3"
    with pytest.raises(RecipeError, match=r"takes no settings after its name.*settings='steps=16'"):
        engine.template(recipe=f"{file} steps=16")
    with pytest.raises(RequestError, match="recipe and stop are both files of certificates"):
        engine.template(recipe=file, stop=file)
    with pytest.raises(RequestError, match=r"recipe must be a recipe, its text, or the file of a certified one, got 3"):
        engine.template(recipe=3)  # type: ignore[arg-type]


def test_a_window_of_your_own_replaces_all_of_the_certified_one(
    engine: foretell.Engine, certificate: Certificate
) -> None:
    own = engine.template(recipe=certificate, max_new_tokens=16)
    assert own.layout == Layout(16)
    assert "the answer is not declared, not 2 tokens at 14; other tokens are pinned" in own.notes[-1]
    raw = replace(certificate, options=WINDOW | {"chat": False})
    assert engine.template(recipe=raw).chat is False
    assert engine.template(recipe=raw, chat=True).chat is True
    assert engine.template(recipe=raw, chat=True).layout == engine.template(recipe=certificate).layout
    assert engine.template(recipe=raw, max_new_tokens=16).chat is False


def test_a_model_s_layouts_do_not_change_a_certified_recipe(
    checkpoint: Path, certificate: Certificate, tmp_path: Path
) -> None:
    shutil.copytree(checkpoint, tmp_path / "model")
    layouts = {"a": {"max_new_tokens": 24, "block_length": 3, "answer_start": 5, "answer_length": 2}, "b": WINDOW}
    (tmp_path / "model" / "foretell.json").write_text(json.dumps({"default": "a", "layouts": layouts}))
    engine = foretell.load(tmp_path / "model")
    assert engine.template(recipe=certificate).notes == ()
    assert engine.template(recipe=replace(certificate, options={"layout": "b"})).notes == ()
    assert engine.template(recipe=certificate, layout="b").notes == ()
    bare = engine.template(recipe=replace(certificate, options={}))
    assert (bare.layout.length, bare.recipe.block_length) == (24, 8)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"steps": 4}, "steps is 4, not none"),
        ({"temperature": 0.5}, "sample is gumbel(temperature=0.5), not greedy"),
        ({"threshold": 0.5, "stop": "sure"}, f"transfer is threshold(value=0.5), not quota; stop is sure, not {EAGER}"),
        ({"stop": "sure"}, f"stop is sure, not {EAGER}"),
        (
            {"settings": "guidance=1.5 stop.tau.high=0.5"},
            "guidance is 1.5, not 0.0; stop is prophet(tau=staged(high=0.5",
        ),
    ],
)
def test_settings_next_to_a_file_are_a_mismatch(
    engine: foretell.Engine, file: Path, changed: dict[str, Any], says: str
) -> None:
    (note,) = engine.template(recipe=file, **changed).notes
    assert note.startswith("the certificate of this recipe does not hold here, so its risk is unknown")
    assert says in note
    with pytest.raises(RequestError, match="the certificate of this recipe does not hold here"):
        engine.template(recipe=file, on_mismatch="fail", **changed)


def test_full_is_what_the_recipe_was_compared_with(engine: foretell.Engine, certificate: Certificate) -> None:
    fast = with_recipe(certificate, f"full block_length=8 transfer=threshold stop={EAGER[:-1]},clock=tokens)")
    assert engine.template(recipe=fast, on_mismatch="full").recipe == fast.chosen
    other = engine.template(recipe=fast, max_new_tokens=20, on_mismatch="full")
    assert other.recipe == foretell.parse("full block_length=8")
    assert "the window has 20 positions, not 16" in other.notes[-2]
    assert other.notes[-1] == "so it is decoded with full block_length=8 instead (on_mismatch=full)"


def test_a_recipe_without_a_rule_can_be_certified(engine: foretell.Engine, certificate: Certificate) -> None:
    """As a rule it never stops, which is safe with any recipe."""
    alone = with_recipe(certificate, "full block_length=8 transfer=threshold")
    assert engine.template(recipe=alone).notes == ()
    assert engine.template(recipe=alone).recipe == alone.chosen
    order = engine.template(recipe="prophet", stop=alone, on_mismatch="fail", steps=12)
    assert order.recipe.stop == Never()
    assert order.notes == ("this rule never stops, because the certified recipe does not; use the file as a recipe",)


def test_nothing_certified_decodes_in_full(engine: foretell.Engine, certificate: Certificate) -> None:
    none = uncertified(certificate, "too few")
    order = engine.template(recipe=none, on_mismatch="fail", max_new_tokens=20)
    assert order.recipe == foretell.parse("full block_length=8")
    assert "nothing is certified: too few" in order.notes


def test_a_fill_has_its_own_certificates(engine: foretell.Engine, certificate: Certificate, file: Path) -> None:
    order = engine.fill_template(recipe="threshold")
    fills: dict[str, Any] = {"fills": True, "window": None, "answer": None, "pins": None, "options": {}}
    filled = with_recipe(certificate, str(order.recipe), **fills)
    filled.save(file)
    assert engine.fill_template(recipe=file, on_mismatch="full") == order
    assert engine.fill_template(recipe=replace(filled, window=16, pins=[])) == order, "each text is its own window"
    assert engine.fill(MASKED, recipe=file).notes == ()
    assert "does not hold here" in engine.fill_template(recipe=file, threshold=0.5).notes[-1]
    assert engine.template(recipe=file).notes[-1].endswith(": it is for texts with masks")
    wrong = engine.fill_template(recipe=certificate)
    assert wrong.notes[-1].endswith(": it is for windows after a prompt, not for masks")
    assert engine.fill_template(recipe=certificate, on_mismatch="full").recipe == certificate.compared_with


def test_examples_with_windows_of_their_own_are_not_compared(engine: foretell.Engine, certificate: Certificate) -> None:
    loose = replace(certificate, window=None, answer=None, pins=None)
    assert engine.template(recipe=loose, max_new_tokens=20, answer_length=3).notes == ()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model_sha256": "0"}, "the model is not random (sha256 "),
        ({"dtype": "bfloat16"}, "the model runs in bfloat16, not float32"),
        ({"device": "cuda"}, "the device is cuda, not cpu"),
        ({"compile": True}, "the model is compiled"),
    ],
)
def test_another_backend_is_noted(
    engine: foretell.Engine, certificate: Certificate, changed: dict[str, Any], says: str
) -> None:
    order = engine.template(recipe=certificate)
    asked, there = (order.recipe, order.layout), replace(engine.backend, **changed)
    for complete in (False, True):
        (found,) = certificate.differences(*asked, there, complete=complete)
        assert found.startswith(says)
        assert certificate.differences(*asked, complete=complete) == []
    silent = replace(certificate, dtype=None, device=None, compile=None)
    assert silent.differences(*asked, there) == ([] if "model_sha256" not in changed else [found])


def test_another_use_of_the_chat_template_is_noted(
    engine: foretell.Engine, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default it is applied to text if the model has one, as if chat=True were given."""
    says = "does not hold here, so its risk is unknown (tune or calibrate again): the chat template is "
    for own, applied, other in ((True, True, False), (False, False, True)):
        monkeypatch.setattr(Codec, "uses_template", lambda _, chat, own=own: own if chat is None else chat)
        for certified in (certificate, replace(certificate, options={**certificate.options, "chat": applied})):
            assert engine.template(recipe=certified).notes == ()
            assert engine.template(recipe=certified, chat=applied).notes == ()
            (note,) = engine.template(recipe=certified, chat=other).notes
            assert note.endswith(says + ("applied" if other else "left out"))
            instead = engine.template(recipe=certified, chat=other, on_mismatch="full")
            assert str(instead.recipe) == certificate.against
            (note,) = engine.template(**ASKED, stop=certified, chat=other).notes
            assert says in note


def test_a_compiled_model_is_told_from_the_others(
    certificate: Certificate, engine: foretell.Engine, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.engine.engine.compile_blocks", lambda _: None)
    assert foretell.load(checkpoint, compile=True).backend.compile
    compiled, order = replace(certificate, compile=True), engine.template(recipe=certificate)
    assert compiled.differences(order.recipe, order.layout, engine.backend) == ["the model is not compiled"]
    assert engine.backend == Backend(engine.fingerprint, "float32", "cpu", False, str(torch.__version__))


def test_other_versions_are_only_a_note(engine: foretell.Engine, certificate: Certificate) -> None:
    old = replace(certificate, torch="1.0", version="0.0.1")
    (note,) = engine.template(recipe=old, on_mismatch="fail").notes
    here = f"torch 1.0, not {torch.__version__} and foretell 0.0.1, not {foretell.__version__}"
    assert note == f"certified with {here}; in rare cases this changes a token"
    (note,) = engine.template(recipe=replace(old, torch=None), on_mismatch="fail").notes
    assert note.startswith("certified with foretell 0.0.1, not")


def test_what_is_no_rule_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rule.json").write_text('{"stop": ')
    with pytest.raises(StorageError, match=r"rule\.json is not valid JSON"):
        stop_of(tmp_path / "rule.json")
    with pytest.raises(StorageError, match=r"cannot read the certified recipe .*none\.json"):
        stop_of(str(tmp_path / "none.json"))
    with pytest.raises(RecipeError, match="did you mean 'prophet'"):
        stop_of("profet")
    with pytest.raises(RequestError, match=r"stop must be a rule.*got 3"):
        stop_of(3)
    assert stop_of(Never()) == Never()


def test_a_model_may_not_prefer_a_rule(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    (folder / "foretell.json").write_text(json.dumps({"layouts": {"a": {"stop": "prophet"}}}))
    with pytest.raises(ForetellError, match="unknown key 'stop'"):
        foretell.load(folder)


def test_an_answer_ends_where_the_text_does(engine: foretell.Engine) -> None:
    end, word = engine.codec.end_ids[0], engine.codec.encode("Tom")[0]

    def answer(tokens: list[int], layout: foretell.Layout) -> str | None:
        return engine.answer(tokens, foretell.Request((1,), layout, foretell.Recipe()))

    layout = foretell.Layout(4, (), (1, 3))
    assert answer([word, word, end, word], layout) == "Tom"
    assert answer([end, word, word, word], layout) == ""
    assert answer([word] * 4, foretell.Layout(4)) is None
    pinned = foretell.Layout(4, ((3, word),), (1, 2))
    assert answer([end, word, word, word], pinned) == engine.codec.decode([word] * 2)
