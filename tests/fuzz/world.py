"""The valid inputs that cases damage: checkpoints with the smallest networks, and files that they wrote."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import foretell
from foretell.engine.certificate import WINDOW_OPTIONS, Certificate
from foretell.engine.completion import Completion
from foretell.engine.engine import Engine
from foretell.engine.options import RequestTemplate
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Denoiser, Inputs, Readout
from foretell.models.llada import LLADA, save_llada
from foretell.models.load import BUNDLED, load_model
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.policies.stop.head import Head

CONTEXT = 256
WINDOW: dict[str, Any] = {"max_new_tokens": 8, "block_length": 4}
ANSWERED = WINDOW | {"suffix": "is", "answer_length": 2}
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}<|eot_id|>{% endfor %}"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@cache
def _root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzz-")  # deleted when this process ends


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder for the files of one case."""
    folder = Path(tempfile.mkdtemp(dir=_root().name))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _folder(name: str) -> Path:
    folder = Path(_root().name) / name
    folder.mkdir()
    return folder


def make_network(vocabulary: int, mask_id: int, size: int = 8) -> Transformer:
    """Return a random network whose logits differ enough for stopping rules to fire."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocabulary, mask_id, size, layers=1, heads=1, kv_heads=1, hidden=size))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return model


@cache
def byte_model() -> Path:
    """A checkpoint whose tokenizer reads any text, with a chat template and layouts of its own."""
    folder = _folder("bytes")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(sorted(LLADA.special))
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = tokenizer.get_vocab()
    end = ids["<|endoftext|>"]
    network = make_network(tokenizer.get_vocab_size(), ids["<|mdm_mask|>"])
    save_llada(network, folder, eos_token_id=end, pad_token_id=end, max_sequence_length=CONTEXT)
    named = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(named))
    (folder / "tokenizer_config.json").write_text(json.dumps(named | {"chat_template": TEMPLATE}))
    layouts = {"short": {"max_new_tokens": 6, "block_length": 3}, "answer": ANSWERED}
    (folder / "foretell.json").write_text(json.dumps({"default": "short", "layouts": layouts}))
    return folder


@cache
def word_model() -> Path:
    """A checkpoint with the bundled model's vocabulary, which reads only the words of the bundled tasks."""
    folder = _folder("words")
    for name in TOKENIZER:
        shutil.copy(BUNDLED / "tiny" / name, folder)
    save_llada(make_network(126, 3), folder, eos_token_id=2, pad_token_id=2, max_sequence_length=CONTEXT)
    return folder


@cache
def engine() -> Engine:
    return foretell.load(byte_model())


@cache
def word_engine() -> Engine:
    return foretell.load(word_model())


@cache
def double_engine() -> Engine:
    """In float64 no rounding decides between two positions, so a batch must equal its single requests."""
    model = load_model(byte_model())
    assert isinstance(model, Transformer)
    return Engine(model.double(), engine().codec, engine().layouts)


@dataclass(frozen=True)
class Broken:
    """A denoiser that overwrites some of its logits."""

    inner: Denoiser
    value: float
    share: float
    seed: int

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        readout, noise = self.inner(inputs), torch.Generator().manual_seed(self.seed)

        def read(row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            logits = readout(row, at)
            return logits.masked_fill(torch.rand(logits.shape, generator=noise) < self.share, self.value)

        return read

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)


def broken_engine(rng: Random) -> Engine:
    value, share = rng.choice((torch.nan, torch.inf, -torch.inf, 1e38)), rng.choice((0.001, 0.1, 1.0))
    return Engine(Broken(engine().model, value, share, rng.randrange(99)), engine().codec, engine().layouts)


@cache
def judge_file() -> Path:
    names = ("gap_min", "gap_mean")
    head = Head(names, torch.zeros(2), torch.ones(2), ((torch.ones(1, 2), torch.zeros(1)),))
    file = _folder("judge") / "judge.json"
    file.write_text(head.text())
    return file


@cache
def certificate_file() -> Path:
    order = engine().template(**ANSWERED)
    rungs = [f"{order.recipe} stop=persistent({steps})" for steps in (3, 2, 1)]
    window = {name: value for name, value in ANSWERED.items() if name in WINDOW_OPTIONS}
    certificate = Certificate(
        recipe=rungs[1], certified=True, says="it holds", against=str(order.recipe), fills=False, window=8,
        answer=[6, 2], pins=[list(pin) for pin in order.layout.pins], options=window, model="bytes",
        **asdict(engine().backend), task=None, examples_sha256="0" * 64, examples=400, pilot=9, seed=3, loss="answer",
        risk=0.01, confidence=0.95, look=1, delta=0.05, empirical_risk=0.0, upper_bound=0.007, cost="steps",
        speedup=2.5, ladder="persistence", rungs=rungs, rung=1, version="0.2.0", report={"tried": [1, {"a": None}]},
    )  # fmt: skip
    folder = _folder("certificate")
    shutil.copy(judge_file(), folder / "judge.json")
    certificate.save(folder / "plain.json")
    mixed = "any(sure,prophet(tau=staged(high=0.5,mid=0.4,low=0.3),reduce=min))"
    _with_rule(certificate, mixed).save(folder / "mixed.json")
    judged = f"judge(path={str(folder / 'judge.json')!r})"
    _with_rule(certificate, judged).save(folder / "judged.json")
    shutil.copy(Path(__file__).parents[1] / "stored" / "0.1.0" / "rule.json", folder / "old.json")
    return folder / "plain.json"


def _with_rule(certificate: Certificate, rule: str) -> Certificate:
    recipe = f"{certificate.against} stop={rule}"
    return replace(certificate, recipe=recipe, rungs=[recipe], rung=0)


@cache
def trace_file() -> Path:
    sought = "prophet region=delimiter(marker='is') stop=prophet(tau=staged(high=0.5,mid=0.4,low=0.3))"
    asked: list[dict[str, Any]] = [
        ANSWERED | {"recipe": "prophet"},
        ANSWERED | {"recipe": sought, "seed": 5},
        WINDOW | {"recipe": "threshold", "temperature": 0.7},
    ]
    made = [engine().generate("one two", trace=True, **one).trace for one in asked]
    file = _folder("traces") / "traces.npz"
    foretell.save_traces(file, [trace for trace in made if trace is not None])
    return file


@cache
def expected_text() -> str:
    """What the byte model writes after the tokens 1 and 2, in full."""
    return engine().generate([1, 2], recipe="full", layout="short").text


def check_completion(engine: Engine, template: RequestTemplate, done: Completion) -> None:
    """Assert what holds for every finished text."""
    assert len(done.tokens) == template.layout.length
    assert engine.model.mask_id not in done.tokens, "a mask is left"
    assert all(0 <= token < engine.codec.vocab_size for token in done.tokens)
    assert all(done.tokens[offset] == token for offset, token in template.layout.pins)
    assert "<|mdm_mask|>" not in done.text
    assert 0 < done.steps <= done.budget + template.recipe.verify.passes
    assert done.forwards >= done.steps
    assert 0 <= done.response_tokens <= len(done.tokens)
