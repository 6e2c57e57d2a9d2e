"""A certified rule reads back as it was written, a broken one says what is wrong, and a misused one says so."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import foretell
from foretell.engine.certificate import NO_DIGEST, Certificate, _digest, model_hash, read_certificate, stop_of
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
RANKED = "prophet(tau=linear(start=0.9,end=0.9),reduce=min,scale=ranks(q10=0.1))"


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> foretell.Engine:
    return foretell.load(checkpoint)


@pytest.fixture
def certificate(engine: foretell.Engine) -> Certificate:
    """For exactly what `ASKED` decodes."""
    order = engine.template(**ASKED)
    return Certificate(
        stop=EAGER, certified=True, says="it holds", recipe=str(order.recipe),
        against=str(order.recipe), window=16, answer=[14, 2],
        pins=[list(pin) for pin in order.layout.pins], model="random", model_sha256=engine.fingerprint,
        dtype="float32", task="word", examples_sha256="0" * 64, examples=400, seed=3, loss="consistency", risk=0.01,
        confidence=0.95, empirical_risk=0.0, upper_bound=0.007, speedup=2.5, family="prophet", setting=0.0,
        version="0.2.0",
    )  # fmt: skip


@pytest.fixture
def file(certificate: Certificate, tmp_path: Path) -> Path:
    certificate.save(tmp_path / "rule.json")
    return tmp_path / "rule.json"


def test_reads_back(certificate: Certificate, file: Path) -> None:
    assert read_certificate(file) == certificate
    assert json.loads(file.read_text())["stop"] == EAGER
    bare = replace(certificate, answer=None, pins=None, task=None, dtype=None)
    bare.save(file)
    assert read_certificate(file) == bare
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
    assert full.notes == (*warned.notes, "so the rule is not used, and every step is taken (on_mismatch=full)")
    with pytest.raises(RequestError, match=r"does not hold here.*steps is 12, not none"):
        engine.template(on_mismatch="fail", **other)


def test_a_rule_that_never_stops_fails_nowhere(engine: foretell.Engine, certificate: Certificate) -> None:
    none = replace(certificate, certified=False, stop="never", says="too few", setting=None)
    assert engine.template(stop=none, on_mismatch="fail", steps=12).notes == ("this rule never stops: too few",)


def test_what_to_do_on_a_mismatch_needs_a_certificate(engine: foretell.Engine, file: Path) -> None:
    with pytest.raises(RequestError, match=r"on_mismatch=fail needs the file of a certified rule: stop=rule\.json"):
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
    none = replace(certificate, certified=False, stop="never", says="5 examples are too few", setting=None)
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
    replace(certificate, stop=combined.format(format_value(Judge(judge, 2.5))), family="mine").save(here / "rule.json")
    here.rename(there)
    found = read_certificate(there / "rule.json")
    assert found.stop == combined.format(format_value(Judge(str(there / "j.json"), 2.5)))
    assert f"path={'j.json'!r}" in json.loads((there / "rule.json").read_text())["stop"]
    found.save(tmp_path / "rule.json")
    assert read_certificate(tmp_path / "rule.json") == found


def test_a_rule_without_its_judge_is_refused(engine: foretell.Engine, certificate: Certificate, judge: str) -> None:
    """When it is read, and when it is used."""
    judged, file = (
        replace(certificate, stop=f"any(never,{format_value(Judge(judge))})"),
        Path(judge).parent / "rule.json",
    )
    judged.save(file)
    Path(judge).write_text(head(("gap_mean",)).text())
    with pytest.raises(StorageError, match=r"rule\.json is not a stopping rule .*j\.json has changed"):
        read_certificate(file)
    Path(judge).unlink()
    with pytest.raises(StorageError, match=r"rule\.json is not a stopping rule .*cannot read the judge .*j\.json"):
        read_certificate(file)
    with pytest.raises(StorageError, match=r"^cannot read the judge .*j\.json"):
        engine.template(stop=judged, **ASKED)


def test_a_request_may_not_name_a_file(engine: foretell.Engine, file: Path, judge: str) -> None:
    with untrusted():
        with pytest.raises(RequestError, match=r"stop=.* names a file, and a request may not open files"):
            engine.template(stop=str(file), **ASKED)
        with pytest.raises(RecipeError, match="judge needs all 12 digits"):
            engine.template(stop=f"judge({judge!r})", **ASKED)
        with pytest.raises(StorageError, match="may not open files"):
            engine.template(recipe=f"full stop=judge({judge!r},sha256='0123456789ab')", **ASKED)
        assert engine.template(recipe="prophet", stop="sure(0.1)", **ASKED).recipe.stop == Sure(0.1)


def test_a_certificate_names_its_judge_with_all_digits(certificate: Certificate, judge: str, file: Path) -> None:
    """The user named the certificate, so its judge is opened, but nothing else."""
    replace(certificate, stop=format_value(Judge(judge)), family="judge", setting=3.0).save(file)
    assert read_certificate(file).rule == Judge(judge)
    broken(file, stop=f"judge({judge!r})")
    with pytest.raises(StorageError, match="judge needs all 12 digits"):
        read_certificate(file)
    broken(file, stop=EAGER, against=f"full stop=judge({judge!r})")
    with pytest.raises(StorageError, match="judge needs all 12 digits"):
        read_certificate(file)
    broken(file, against="full", recipe=f"full stop=judge({judge!r})")
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
    """Writes other values into a rule's file, and their digest if `sealed`; None takes out all keys but `setting`."""
    whole = json.loads(file.read_text())
    for name, value in changes.items():
        home = whole if name in whole else whole["certificate"]
        home[name] = value
        if value is None and name != "setting":
            del home[name]
    if sealed:
        whole["sha256"] = _digest({name: value for name, value in whole.items() if name != "sha256"})
    file.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": "sure(5.0)"}, {"risk": 1e-6}, {"setting": 1.0}, {"model_sha256": "0" * 64}, {"says": "it is safe"},
        {"answer": [13, 2]}, {"pins": []}, {"version": "0.1.0"}, {"stop": EAGER + " "}, {"sha256": "0" * 64},
    ],
    ids=str,
)  # fmt: skip
def test_an_edited_file_is_refused(file: Path, changes: dict[str, Any]) -> None:
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
    holds = (old.holds_for, Layout(16, tuple((at, token) for at, token in certificate.pins or []), (14, 2)))
    assert certificate.remarks(*holds) == ()
    assert old.remarks(*holds) == (NO_DIGEST,)
    assert [note[:15] for note in old.remarks(*holds, model_sha256="0")] == [NO_DIGEST[:15], "the certificate"]
    assert old.differences(*holds) == []
    old.save(file)
    assert read_certificate(file) == old  # saving does not add what cannot be known
    broken(file, sealed=False, stop="sure(5.0)")
    with pytest.raises(StorageError, match=r"the rule is not the one that the family prophet has at 0"):
        read_certificate(file)


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({"family": "prophet-min"}, False),
        ({"setting": 1.0}, False),
        ({"stop": "prophet", "setting": 1.0}, True),
        ({"stop": "prophet(clock=tokens)", "setting": 1.0}, False),
        ({"stop": "prophet(clock=tokens)", "setting": 1.0, "recipe": "threshold"}, True),
        ({"stop": "prophet", "setting": 1.0, "recipe": "threshold"}, False),
        ({"family": "entropy", "stop": "sure(0.1)", "setting": 0.1}, True),
        ({"family": "entropy", "stop": "sure(5.0)", "setting": 0.1}, False),
        ({"family": "persistence", "stop": "persistent(8)", "setting": 8}, True),
        ({"family": "judge", "stop": "JUDGE", "setting": 2.5}, True),
        ({"family": "judge", "stop": "JUDGE", "setting": 3.0}, False),
        ({"family": "judge", "stop": "sure(0.1)", "setting": 0.1}, False),
        ({"family": "ranks", "stop": RANKED, "setting": 0.9}, True),
        ({"family": "ranks", "stop": RANKED, "setting": 0.99}, False),
        ({"family": "ranks", "stop": "prophet", "setting": 0.9}, False),
        ({"family": "my own", "stop": "sure(5.0)", "setting": 0.1}, True),
    ],
    ids=str,
)
def test_the_rule_is_the_family_s_at_its_setting(file: Path, judge: str, changes: dict[str, Any], right: bool) -> None:
    if changes.get("stop") == "JUDGE":
        changes = changes | {"stop": format_value(Judge(judge, 2.5))}
    broken(file, **changes)
    if right:
        assert read_certificate(file).certified
    else:
        with pytest.raises(StorageError, match="the rule is not the one that the family"):
            read_certificate(file)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"foretell_rule": None}, 'expected an object with "foretell_rule"'),
        ({"foretell_rule": 2}, f"its format is 2; foretell {foretell.__version__} reads format 1"),
        ({"certificate": [1]}, "'certificate' must be an object, got [1]"),
        ({"stop": None}, "'stop' is missing"),
        ({"stop": 1}, "'stop' must be a text, got 1"),
        ({"stop": "profet"}, "did you mean 'prophet'"),
        ({"stop": "never"}, "certified is true, but the rule is never"),
        ({"certified": False}, "certified is false, but the rule is prophet"),
        ({"setting": None}, "certified is true, but there is no setting"),
        ({"certified": 1}, "'certified' must be true or false, got 1"),
        ({"risk": None}, "'risk' is missing"),
        ({"risk": "1%"}, "'risk' must be a number, got '1%'"),
        ({"risk": 5}, "risk must be from 0 to 1, got 5"),
        ({"confidence": True}, "'confidence' must be a number"),
        ({"examples": 1.5}, "'examples' must be a whole number"),
        ({"examples": 0}, "examples must be at least 1"),
        ({"speedup": -0.5}, "speedup must be at least 0"),
        ({"loss": "acuracy"}, "unknown loss 'acuracy'"),
        ({"window": 0}, "window must be at least 1"),
        ({"answer": [1, 2, 3]}, "'answer' must be a list of length <= 2, got [1, 2, 3]"),
        ({"pins": [[1, "a"]]}, "'pins[0][1]' must be a whole number, got 'a'"),
        ({"task": 7}, "'task' must be a text or null, got 7"),
        ({"setting": "x"}, "'setting' must be a number or null, got 'x'"),
        ({"recipe": "ful"}, "did you mean 'full'"),
        ({"recipe": "prophet"}, "recipe must leave the stopping rule out"),
        ({"against": "prophet"}, "against must be a recipe that never stops early, got prophet"),
        ({"rsik": 3}, "unknown key 'rsik'; did you mean 'risk'"),
    ],
)
def test_a_malformed_file_is_refused(engine: foretell.Engine, file: Path, changes: dict[str, Any], says: str) -> None:
    broken(file, **changes)
    with pytest.raises(StorageError) as raised:
        engine.template(stop=file)
    assert "rule.json is not a stopping rule that calibrate wrote" in str(raised.value)
    assert says in str(raised.value)


def test_what_is_no_rule_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rule.json").write_text('{"stop": ')
    with pytest.raises(StorageError, match=r"rule\.json is not valid JSON"):
        stop_of(tmp_path / "rule.json")
    with pytest.raises(StorageError, match=r"cannot read the stopping rule .*none\.json"):
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
