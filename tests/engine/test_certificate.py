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
from foretell.engine.certificate import Certificate, model_hash, read_certificate, stop_of
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
        confidence=0.95, empirical_risk=0.0, upper_bound=0.007, speedup=2.5, family="prophet", setting=1.5,
        version="0.1.0",
    )  # fmt: skip


@pytest.fixture
def file(certificate: Certificate, tmp_path: Path) -> Path:
    certificate.save(tmp_path / "rule.json")
    return tmp_path / "rule.json"


def test_reads_back(certificate: Certificate, file: Path) -> None:
    assert read_certificate(file) == certificate
    assert json.loads(file.read_text())["stop"] == EAGER
    bare = replace(certificate, answer=None, pins=None, task=None, dtype=None, setting=None)
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
    replace(certificate, stop=combined.format(format_value(Judge(judge, 2.5)))).save(here / "rule.json")
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
        with pytest.raises(RequestError, match=r"rule\.json' names a file, and a request may not open files"):
            engine.template(stop=str(file), **ASKED)
        with pytest.raises(RecipeError, match="judge needs all 12 digits"):
            engine.template(stop=f"judge({judge!r})", **ASKED)
        with pytest.raises(StorageError, match="may not open files"):
            engine.template(recipe=f"full stop=judge({judge!r},sha256='0123456789ab')", **ASKED)
        assert engine.template(recipe="prophet", stop="sure(0.1)", **ASKED).recipe.stop == Sure(0.1)


def test_a_certificate_names_its_judge_with_all_digits(certificate: Certificate, judge: str, file: Path) -> None:
    """The user named the certificate, so its judge is opened, but nothing else."""
    replace(certificate, stop=format_value(Judge(judge))).save(file)
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


def broken(file: Path, **changes: Any) -> None:
    """Writes other values into a rule's file; None takes a key out."""
    whole = json.loads(file.read_text())
    for name, value in changes.items():
        home = whole if name in whole else whole["certificate"]
        home[name] = value
        if value is None:
            del home[name]
    file.write_text(json.dumps(whole))


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
