"""Hugging Face masked LMs give transformers' own logits, alone, left-padded and in part."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertTokenizerFast,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

import foretell
from foretell.engine.codec import Codec
from foretell.engine.options import WINDOW
from foretell.engine.request import Layout, Request, lay_out
from foretell.errors import ModelError, RequestError
from foretell.loop.decode import decode
from foretell.models.huggingface import MaskedLM, too_long
from foretell.models.load import load_model
from foretell.models.packed import pack_weights, packed_share
from foretell.models.tokenizer import read_tokenizer
from tests.helpers import HAS_ONEDNN
from tests.models.checkpoints import a_canvas, a_pass, all_logits

SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
}
KINDS: dict[str, Callable[[], Any]] = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SHAPE)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SHAPE, pad_token_id=1)),
    "albert": lambda: AlbertForMaskedLM(AlbertConfig(**SHAPE, embedding_size=16)),
    "modernbert": lambda: ModernBertForMaskedLM(
        ModernBertConfig(
            **SHAPE,
            local_attention=6,
            global_attn_every_n_layers=2,
            pad_token_id=1,
            eos_token_id=3,
            bos_token_id=2,
            cls_token_id=2,
            sep_token_id=3,
        )
    ),
    "distilbert": lambda: DistilBertForMaskedLM(
        DistilBertConfig(vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=24)
    ),
    "electra": lambda: ElectraForMaskedLM(ElectraConfig(**SHAPE, embedding_size=16)),
}


@pytest.fixture(params=list(KINDS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path, KINDS[request.param]())


def write(folder: Path, network: Any, mask_id: int | None = 4) -> Path:
    torch.manual_seed(3)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    network.tie_weights()
    network.config.mask_token_id = mask_id
    network.save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    words = {
        word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "sat"])
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"mask_token": "[MASK]", "sep_token": "[SEP]", "cls_token": "[CLS]", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))


def test_the_logits_are_transformers_own(folder: Path) -> None:
    model = load_model(folder)
    assert isinstance(model, MaskedLM)
    canvas = 5 + a_canvas(vocab=45)  # RoBERTa counts positions by what is not padding, so none of it
    with torch.no_grad():
        theirs = model.network(input_ids=canvas, attention_mask=torch.ones_like(canvas)).logits
    assert theirs.std() > 0.3
    torch.testing.assert_close(all_logits(model, a_pass(canvas)), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not HAS_ONEDNN, reason="torch has no oneDNN here")
def test_packed_matrices_give_the_same_logits(folder: Path) -> None:
    plain, packed = load_model(folder), load_model(folder)
    assert isinstance(plain, MaskedLM)
    assert isinstance(packed, MaskedLM)
    pack_weights(packed.network, True)
    assert (packed_share(plain.network), packed_share(packed.network)) == (0, 1)
    before, after = (all_logits(one, a_pass(a_canvas())) for one in (plain, packed))
    assert before.std() > 0.3
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    originals = packed.network.state_dict()
    for name, values in plain.network.state_dict().items():
        assert torch.equal(originals[name], values), "transformers' code may read the originals"


def test_padding_never_moves_a_row(folder: Path) -> None:
    model, canvas, padding = load_model(folder), a_canvas(length=20), (0, 3, 7)
    batch = all_logits(model, a_pass(canvas, padding))
    for row, pads in enumerate(padding):
        alone = all_logits(model, a_pass(canvas[row : row + 1, pads:]))
        torch.testing.assert_close(batch[row : row + 1, pads:], alone, atol=1e-5, rtol=1e-5)


def test_some_columns_are_the_same_as_all(folder: Path) -> None:
    model, inputs = load_model(folder), a_pass(a_canvas(), (0, 3, 7))
    asked = torch.tensor([[11, 2], [5, 4], [9, 11]])
    some = all_logits(model, inputs._replace(wanted=asked))
    whole = all_logits(model, inputs)
    torch.testing.assert_close(some, whole[torch.arange(3)[:, None], asked], atol=1e-5, rtol=1e-5)


def test_a_text_may_not_be_longer_than_its_positions(tmp_path: Path) -> None:
    model = load_model(write(tmp_path, KINDS["roberta"]()))
    all_logits(model, a_pass(a_canvas(length=22)))
    with pytest.raises(RequestError, match=r"23 tokens.*at most 22"):
        model(a_pass(a_canvas(length=23)))


def test_a_window_that_is_too_long_names_the_option(tmp_path: Path) -> None:
    """Whoever says nothing gets the default window, which few of these models have room for."""
    model = load_model(write(tmp_path, KINDS["roberta"]()))
    request = Request((5, 6), Layout(WINDOW))
    state = lay_out([request], model.mask_id)
    with pytest.raises(RequestError) as refused:
        next(decode(model, state, request.recipe))
    assert str(refused.value) == (
        "the text has 258 tokens (2 of the prompt with its padding and 256 of the window); this model supports at "
        "most 22: ask for a window of at most 20 with max_new_tokens (--max-new-tokens), which is 256 by default"
    )
    assert too_long(30, 40, 22).endswith("at most 22: the prompt alone is too long")


def test_the_engine_knows_the_context(tmp_path: Path) -> None:
    """RoBERTa counts positions from after its padding; a request that does not fit is refused when it is made."""
    for kind, context in (("roberta", 22), ("bert", 24), ("albert", 24), ("modernbert", 24), ("distilbert", 24)):
        folder = write(tmp_path / kind, KINDS[kind]())
        write_tokenizer(folder)
        engine = foretell.load(folder)
        assert engine.context == context
        template = engine.template(max_new_tokens=4)
        engine.request([5] * (context - 4), template)
        with pytest.raises(RequestError, match=f"exceed the context of {context} tokens"):
            engine.request([5] * (context - 3), template)


def configure(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000; it must be at most 1024"),
        ({"num_labels": 10**9}, "'num_labels' is 1000000000"),
        ({"max_position_embeddings": 10**30}, "'max_position_embeddings' is 1000"),
        ({"hidden_size": 2**24, "num_attention_heads": 2}, "describes .* parameters, and the weights have"),
        ({"vocab_size": 2**24}, "describes .* parameters, and the weights have"),
        ({"vocab_size": 51}, "cannot load it"),
        ({"layer_norm_eps": float("nan")}, "'layer_norm_eps' is nan; it must be a finite number"),
        ({"rope": {"theta": [float("inf")]}}, "'theta' is inf; it must be a finite number"),
        ({"is_decoder": True}, "'is_decoder' is true; it must be false or null"),
        ({"transformers_weights": "../x.safetensors"}, "'transformers_weights' is"),
        ({"_attn_implementation": "someone/kernel"}, "'_attn_implementation' is"),
        ({"hidden_act": "nonsense"}, "cannot load it"),
        ({"chunk_size_feed_forward": 7}, "transformers cannot run this model"),
        ({"mask_token_id": 50}, "'mask_token_id' is 50; it must be a token id from 0 to 49"),
    ],
)
def test_settings_that_cannot_be_run(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        load_model(configure(write(tmp_path, KINDS["bert"]()), **changes))


def test_an_embedding_smaller_than_the_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, KINDS["bert"]())
    monkeypatch.setattr(BertForMaskedLM, "get_input_embeddings", lambda _: torch.nn.Embedding(49, 2))
    with pytest.raises(ModelError, match="'vocab_size' is 50; it must be at most 49, the rows of the embedding"):
        load_model(folder)


def test_files_that_transformers_would_wait_for(tmp_path: Path) -> None:
    folder = write(tmp_path, KINDS["bert"]())
    os.mkfifo(folder / "generation_config.json")
    with pytest.raises(ModelError, match=r"generation_config\.json: it is not a regular file"):
        load_model(folder)
    (folder / "generation_config.json").unlink()
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="adapters are not supported"):
        load_model(folder)


def test_shards_outside_of_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", KINDS["bert"]())
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../model.safetensors"}}')
    with pytest.raises(ModelError, match=r"puts tensor x in '\.\./model\.safetensors'"):
        load_model(folder)


def test_there_is_no_cache(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="BertForMaskedLM has no cache"):
        load_model(write(tmp_path, KINDS["bert"]())).new_cache(1, 2)


def test_dtypes(tmp_path: Path) -> None:
    folder = write(tmp_path, KINDS["bert"]().half())
    for dtype, expected in ((None, torch.float32), ("bfloat16", torch.bfloat16)):
        model = load_model(folder, dtype=dtype)
        assert all_logits(model, a_pass(a_canvas())).dtype == expected


def test_the_mask_and_the_ends_come_from_the_tokenizer(tmp_path: Path) -> None:
    folder = write(tmp_path, KINDS["bert"](), mask_id=None)
    with pytest.raises(ModelError, match=r"neither config\.json's 'mask_token_id' nor a tokenizer names a mask"):
        load_model(folder)
    write_tokenizer(folder)
    assert load_model(folder).mask_id == 4
    codec = Codec.load(folder)
    assert (codec.mask_id, codec.end_ids, codec.template) == (4, (3,), None)
    albert = Codec.load(write(tmp_path / "albert", KINDS["albert"]()))
    assert albert.vocab_size == codec.vocab_size == 50, "not the embedding_size, which is the width of its rows"
    assert codec.encode("a cat sat", special=True) == [2, 5, 6, 7]
    assert codec.encode("a cat sat") == [5, 6, 7]


def test_a_model_without_a_masked_lm_head(tmp_path: Path) -> None:
    BertModel(BertConfig(**SHAPE)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ModelError, match="unknown model_type 'bert'"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "architectures": ["BertForMaskedLM"], "mask_token_id": 4})
    )
    with pytest.raises(ModelError, match=r"tensor cls\..* is missing"):
        load_model(tmp_path)


def test_pickles_and_broken_files_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, KINDS["bert"]())
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(ModelError, match="not a complete safetensors file"):
        load_model(folder)
    file.rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        load_model(folder)


@pytest.mark.parametrize(
    "names", [("pytorch_model.bin",), ("pytorch_model-1.bin", "pytorch_model-2.bin"), ("weight's.pt",)]
)
def test_the_command_that_converts_pickled_weights_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    folder = write(tmp_path, KINDS["bert"]())
    before = all_logits(load_model(folder), a_pass(a_canvas()))
    tensors = list(BertForMaskedLM.from_pretrained(folder).state_dict().items())  # the head is tied to the embedding
    tensors = [(name, weight.mT.contiguous().mT if weight.dim() == 2 else weight) for name, weight in tensors]
    (folder / "model.safetensors").unlink()
    for index, name in enumerate(names):
        torch.save(dict(tensors[index :: len(names)]), folder / name)
    torch.save({"learning_rate": 1}, folder / "training_args.bin")
    with pytest.raises(ModelError, match="without running code, run this in that folder: ") as refused:
        load_model(folder)
    python, flag, code = shlex.split(str(refused.value).partition("run this in that folder: ")[2])
    assert (python, flag) == ("python", "-c")
    monkeypatch.chdir(folder)
    exec(code, {})
    assert torch.equal(all_logits(load_model(folder), a_pass(a_canvas())), before)


def test_loading_prints_nothing(tmp_path: Path, checkpoint: Path) -> None:
    """Not the warnings of transformers and torchao, nor their progress bars, also where a tensor is unexpected."""
    network = KINDS["bert"]()
    network.register_buffer("leftover", torch.zeros(2))
    write_tokenizer(write(tmp_path, network))
    code = f"""
import foretell, logging
print(foretell.load({str(tmp_path)!r}).generate("a cat", max_new_tokens=2).steps)
foretell.load({str(checkpoint)!r}, quantize="int8")
from transformers.utils.logging import is_progress_bar_enabled
print(is_progress_bar_enabled(), logging.root.manager.disable)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["2", "True", "0"], "what was switched off is on again"


PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat ca ##t sat . , un ##able é ##é e ##e 中 文 C ##at a ##b <x> ' don t"
TEXTS = (
    "The cat sat.",
    "Cat unable, é É e\u0301",
    "[MASK] the [mask]cat<x>sat",
    "中文cat a\u0000b\tab\u200b zzz don't",
    "a" * 150,
    "",
)


def write_pieces(folder: Path, config: dict[str, Any] | None = None) -> Path:
    (folder / "vocab.txt").write_text("\n".join(PIECES.split()) + "\n", encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "config",
    [
        None,
        {"do_lower_case": False, "tokenizer_class": "BertTokenizer"},
        {"strip_accents": False, "tokenizer_class": "BertTokenizerFast"},
        {"do_lower_case": False, "strip_accents": True},
        {"tokenize_chinese_chars": False},
        {"added_tokens_decoder": {"24": {"content": "<x>", "normalized": False}}},
    ],
)
def test_word_pieces_are_those_of_transformers(tmp_path: Path, config: dict[str, Any] | None) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    ours = read_tokenizer(write_pieces(tmp_path, config), None, {})
    theirs = BertTokenizerFast.from_pretrained(tmp_path)
    assert ours.get_vocab() == theirs.get_vocab()
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text).ids == ids
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    plain = read_tokenizer(write_pieces(tmp_path, {}), None, {})
    assert config is None or any(plain.encode(text).ids != ours.encode(text).ids for text in TEXTS)


def test_a_folder_with_only_word_pieces_decodes(tmp_path: Path) -> None:
    write_pieces(write(tmp_path, KINDS["bert"](), mask_id=None))
    engine = foretell.load(tmp_path)
    assert (engine.codec.mask_id, engine.codec.end_ids, engine.codec.leading) == (4, (3,), (2,))
    assert engine.codec.encode("The cat sat .", special=True) == [2, 5, 6, 9, 10]
    assert len(engine.generate("The cat", max_new_tokens=4).tokens) == 4


@pytest.mark.parametrize(
    ("model_type", "config", "says"),
    [
        ("esm", None, "not for model_type 'esm'"),
        ("bert", {"tokenizer_class": "BertJapaneseTokenizer"}, "not for tokenizer_class 'BertJapaneseTokenizer'"),
        ("bert", {"do_lower_case": "no"}, "'do_lower_case' is \"no\"; it must be true or false"),
        ("bert", {"strip_accents": 2}, "'strip_accents' is 2; it must be null or true or false"),
        ("bert", {"cls_token": "<s>"}, r"vocab\.txt: has no <s>, which the tokenizer needs"),
    ],
)
def test_other_word_pieces_are_refused(
    tmp_path: Path, model_type: str, config: dict[str, Any] | None, says: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ModelError, match=says):
        read_tokenizer(write_pieces(tmp_path, config), None, {})


def test_padding_is_not_needed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert read_tokenizer(write_pieces(tmp_path, {"pad_token": "<p>"}), None, {}).encode("cat").ids == [2, 6, 3]


def test_word_pieces_are_utf8(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xe9\n")
    with pytest.raises(ModelError, match=r"vocab\.txt is not UTF-8 text: .* at byte 6"):
        read_tokenizer(tmp_path, None, {})
