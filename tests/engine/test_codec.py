"""Text and chats give the ids that transformers gives, from the checkpoint's own files or the documented fallbacks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from foretell.engine.codec import Codec
from foretell.errors import ModelError, RequestError, VocabularyError
from foretell.models.dream import DREAM
from foretell.models.llada import LLADA
from foretell.models.load import BUNDLED

TEXTS = [
    "What is 86+28=114, and 31-13?",
    "I'll can't WE'RE don't  two  blanks\tand tabs \n\n lines\r\n end ",
    "naïve café — 東京 🙂 Ωmega e\u0301 ﬁ",
    "def f(x):\n    return x**2  # ok\n\n\n",
    "",
    " ",
    "<|endoftext|>x <|im_start|>user\nhi<|im_end|>\n",
]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " How many? "},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "Sure?"},
]
LLADA_SPECIAL, DREAM_SPECIAL = sorted(LLADA.special), [*DREAM.special, "<|beginoftext|>"]


def trained(special: list[str]) -> Tokenizer:
    """A byte-level BPE of 400 tokens with `special` behind them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*TEXTS[:4], *(message["content"] for message in CHAT)] * 3, trainer)
    tokenizer.add_special_tokens(special)
    return tokenizer


def configured(folder: Path, model_type: str, **values: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 600, **values}))
    return folder


@pytest.fixture
def llada(tmp_path: Path) -> Path:
    tokenizer = trained(LLADA_SPECIAL)
    ids = {name: tokenizer.token_to_id(name) for name in LLADA_SPECIAL}
    folder = configured(
        tmp_path / "llada", "llada", mask_token_id=ids["<|mdm_mask|>"], eos_token_id=ids["<|endoftext|>"]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def dream(tmp_path: Path) -> Path:
    """What Dream ships: vocab.json, merges.txt, and added tokens in tokenizer_config.json; here with holes."""
    folder = configured(tmp_path / "dream", "Dream", mask_token_id=510)
    trained([]).model.save(str(folder))
    first = 500
    added = {
        str(first + 2 * at): {"content": name, "special": True, "normalized": False}
        for at, name in enumerate(DREAM_SPECIAL)
    }
    settings = {
        "added_tokens_decoder": added,
        "eos_token": {"content": "<|endoftext|>"},
        "tokenizer_class": "Qwen2Tokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def amended(folder: Path, **values: Any) -> Path:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return folder


def reference(folder: Path) -> Any:
    """transformers' Qwen2 over the same files, with contiguous added ids as it needs them."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary |= {entry["content"]: int(at) for at, entry in settings["added_tokens_decoder"].items()}
    merges = [tuple(line.split(" ")) for line in (folder / "merges.txt").read_text().splitlines()[1:]]
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": DREAM_SPECIAL})
    return tokenizer


def test_byte_pairs_are_qwen2s(dream: Path) -> None:
    codec, theirs = Codec.load(dream), reference(dream)
    for text in TEXTS:
        assert codec.encode(text) == theirs.encode(text, add_special_tokens=False)
        assert codec.decode(codec.encode(text)) == theirs.decode(codec.encode(text), skip_special_tokens=True)
    assert codec.encode("<|mask|><|im_end|>") == [506, 504]


def test_a_tokenizer_file_is_read_as_it_is(llada: Path) -> None:
    codec, theirs = Codec.load(llada), AutoTokenizer.from_pretrained(llada)
    for text in TEXTS:
        assert codec.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert codec.decode(codec.encode(TEXTS[2])) == TEXTS[2]


def test_special_ids(llada: Path, dream: Path) -> None:
    codec = Codec.load(llada)
    assert codec.mask_id == codec.tokenizer.token_to_id("<|mdm_mask|>")
    assert codec.end_ids == tuple(codec.tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<|eot_id|>"))
    assert (Codec.load(dream).mask_id, Codec.load(dream).end_ids) == (510, (500, 504))
    assert Codec.load(configured(dream, "Dream", mask_token_id=600)).mask_id == 600, "right after the vocabulary"
    with pytest.raises(ModelError, match="'mask_token_id' is 601; it must be a token id from 0 to 600"):
        Codec.load(configured(dream, "Dream", mask_token_id=601))
    configured(dream, "Dream", eos_token_id=[7, 500])
    assert (Codec.load(dream).mask_id, Codec.load(dream).end_ids) == (506, (7, 500, 504))


def test_documented_ids_where_the_vocabulary_is_the_documented_one(tmp_path: Path) -> None:
    folder = configured(tmp_path, "Dream", vocab_size=152064)
    trained([]).model.save(str(folder))
    codec = Codec.load(folder)
    assert (codec.mask_id, codec.end_ids) == (151666, (151643, 151645))
    assert codec.chat("hi")[:1] == [151644]
    assert not Codec.load(configured(folder, "Dream")).template, "the template's tokens are not in this vocabulary"


def test_the_documented_llada_chat(llada: Path) -> None:
    codec = Codec.load(llada)
    text = (
        "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nHow many?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert codec.chat("How many?") == codec.encode(text)
    assert codec.chat(CHAT) == apply(llada, LLADA.chat_template)


def test_the_documented_dream_chat(dream: Path) -> None:
    codec = Codec.load(dream)
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert codec.chat("How many?") == codec.encode(text)
    assert "helpful" not in codec.decode(codec.chat(CHAT))


def apply(folder: Path, template: str | None) -> Any:
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    return theirs.apply_chat_template(CHAT, chat_template=template, add_generation_prompt=True, return_dict=False)


BLANKS = """{{ bos_token }}{% for m in messages %}
    {% if m.role != 'system' %}
{{ m.content }}
    {%- endif %}
{% endfor %}{{ eos_token }}"""
TOOLS = """{% set n = namespace(k=0) %}{% for m in messages %}
{% if m.role == 'assistant' %}{% continue %}{% endif %}{% set n.k = n.k + 1 %}{{ m | tojson }}
{% endfor %}{{ n.k }}{{ strftime_now('%Y') }}{{ ['é<'] | tojson(indent=2) }}"""
MARKS = "{% for m in messages %}{% generation %}{{ m['content'] | trim }}{% endgeneration %}{% endfor %}"


@pytest.mark.parametrize("template", [BLANKS, TOOLS, MARKS])
def test_a_shipped_template_renders_as_in_transformers(llada: Path, template: str) -> None:
    expected = apply(llada, template)
    assert Codec.load(amended(llada, chat_template=template)).chat(CHAT) == expected
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
    assert Codec.load(amended(llada, chat_template=several)).chat(CHAT) == expected
    (llada / "chat_template.jinja").write_text(template)
    assert Codec.load(amended(llada, chat_template="another")).chat(CHAT) == expected


def test_templates_cannot_reach_out_of_the_sandbox(llada: Path) -> None:
    for template in ("{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ ''.__class__.__base__ }}"):
        with pytest.raises(ModelError, match="chat template fails"):
            Codec.load(amended(llada, chat_template=template)).chat("hi")


def test_templates_that_refuse_or_break(llada: Path) -> None:
    codec = Codec.load(amended(llada, chat_template="{{ raise_exception('no system line') }}"))
    with pytest.raises(RequestError, match=r"tokenizer_config\.json.*no system line"):
        codec.chat("hi")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json.*not valid Jinja"):
        Codec.load(amended(llada, chat_template="{% if %}")).chat("hi")


@pytest.mark.parametrize(
    ("messages", "part"),
    [
        ([], "no messages"),
        (["hi"], "message 0 is a str"),
        ([{"role": "user", "content": "a"}, {"role": "usr", "content": "a"}], "message 1.*'usr'; did you mean 'user'"),
        ([{"role": "user", "contents": "a"}], "'contents'; did you mean 'content'"),
        ([{"role": "user"}], "'content' is missing"),
        ([{"role": 3, "content": "a"}], "'role' is 3"),
        ([{"role": "user", "content": 3}], "message 0: 'content' is 3; it must be a string or a list of text parts"),
        ([{"role": "user", "content": []}], r"'content' is \[\]; it must be a string or a list of text parts"),
        ([{"role": "user", "content": ["a"]}], "message 0, part 0 is 'a'; it must be an object with type and text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 0, part 0: 'text' is None"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "x"}]}],
            "message 0, part 1: unknown type 'image_url' .available: text.",
        ),
        ([{"role": "user", "content": "a", "name": 3}], "'name' is 3; it must be a string"),
    ],
)
def test_bad_messages(llada: Path, messages: Any, part: str) -> None:
    with pytest.raises(RequestError, match=part):
        Codec.load(llada).chat(messages)


def test_text_parts_a_developer_and_names(llada: Path) -> None:
    """Parts are lines; a developer is the system unless the template knows better; a name is the template's to use."""
    codec = Codec.load(llada)
    parts = [{"type": "text", "text": "two"}, {"type": "text", "text": "three"}]
    for told in ({"content": parts}, {"content": tuple(parts), "name": "Ann"}):
        assert codec.chat([{"role": "user", **told}]) == codec.chat("two\nthree")
    said = {"content": "Be brief."}
    assert codec.chat([{"role": "developer", **said}]) == codec.chat([{"role": "system", **said}])
    template = "{% for m in messages %}{{ m.role }} {{ m.name }} {{ 'x' if m.role == 'developer' }};{% endfor %}"
    own = Codec.load(amended(llada, chat_template=template))
    assert own.decode(own.chat([{"role": "developer", "name": "Ann", **said}])) == "developer Ann x;"


def test_text_is_templated_by_the_folders_own_template_only(llada: Path) -> None:
    raw, text = Codec.load(llada), "How many?"
    assert raw.prompt(text) == raw.prompt(text, chat=False) == raw.encode(text, special=True)
    assert raw.prompt(text, chat=True) == raw.prompt([{"role": "user", "content": text}]) == raw.chat(text)
    own = Codec.load(amended(llada, chat_template="<{{ messages[0].content }}>"))
    assert own.prompt(text) == own.prompt(text, chat=True) == own.encode(f"<{text}>")
    assert own.prompt(text, chat=False) == own.encode(text, special=True)
    with pytest.raises(RequestError, match=r"chat=False \(--raw\) leaves out"):
        own.prompt([{"role": "user", "content": text}], chat=False)


def word_level(folder: Path) -> Codec:
    configured(folder, "llada", mask_token_id=1)
    names = ["<unk>", "<m>", "two", "and", "three"]
    tokenizer = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>", "<m>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return Codec.load(folder)


def test_words_that_the_vocabulary_lacks(tmp_path: Path) -> None:
    codec = word_level(tmp_path)
    assert codec.encode("two and three") == [2, 3, 4]
    assert codec.words() == ["two", "and", "three"]
    with pytest.raises(VocabularyError, match=r"no 'five', 'or', 'six'; .*foretell vocab"):
        codec.encode("two and five or six")
    assert codec.template is None
    with pytest.raises(RequestError, match="no chat template"):
        codec.chat("two")
    with pytest.raises(RequestError, match="must be a string"):
        codec.encode(3)  # type: ignore[arg-type]


def test_ids_that_the_embedding_lacks(tmp_path: Path) -> None:
    """A tokenizer may have grown after the model; prompts, suffixes and pins without such a token still work."""
    word_level(tmp_path)
    codec = Codec.load(configured(tmp_path, "llada", vocab_size=4, mask_token_id=1))
    assert codec.encode("two and") == [2, 3]
    with pytest.raises(ModelError, match="gives 'three' the id 4, but the model reads only ids from 0 to 3"):
        codec.encode("two three")


def test_pieces_are_printable_and_one_a_token(llada: Path) -> None:
    codec = Codec.load(llada)
    ids = [*codec.encode("two\n 🙂"), codec.mask_id or 0, 599]
    pieces = codec.pieces(ids)
    assert len(pieces) == len(ids)
    assert all(piece and piece.isprintable() for piece in pieces)
    assert "\\n" in "".join(pieces)
    assert pieces[-2:] == ["<|mdm_mask|>", "<599>"]
    assert codec.decode(ids) == "two\n 🙂"
    assert "<|mdm_mask|>" in codec.decode(ids, skip_special=False)
    assert len(codec.words()) == codec.tokenizer.get_vocab_size() - len(LLADA_SPECIAL)


def test_folders_without_a_tokenizer(tmp_path: Path, llada: Path) -> None:
    """They read token ids; a tokenizer that is incomplete or of another kind is still an error."""
    codec = Codec.load(configured(tmp_path / "a", "llada", mask_token_id=5, eos_token_id=[7]))
    assert (codec.mask_id, codec.end_ids, codec.leading, codec.vocab_size) == (5, (7,), (), 600)
    assert (codec.decode([1, 2]), codec.pieces([1, 2])) == ("", ["<1>", "<2>"])
    assert codec.spelling().text([1, 2]).string == "<1><2>"
    for read in (codec.encode, codec.chat, codec.prompt, lambda _: codec.words()):
        with pytest.raises(RequestError, match="a: has no tokenizer, so it cannot read text; give token ids"):
            read("two")
    published = Codec.load(configured(tmp_path / "b", "Dream", vocab_size=152064))
    assert (published.mask_id, published.end_ids) == (151666, (151643, 151645))
    (tmp_path / "b" / "vocab.json").write_text("{}")
    with pytest.raises(ModelError, match=r"vocab\.json with merges\.txt"):
        Codec.load(tmp_path / "b")
    (tmp_path / "a" / "tokenizer.model").write_text("")
    with pytest.raises(ModelError, match=r"tokenizer\.json: missing"):
        Codec.load(tmp_path / "a")
    (llada / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is not valid JSON"):
        Codec.load(llada)
    (llada / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        Codec.load(llada)


def test_a_family_by_name(llada: Path, dream: Path) -> None:
    assert Codec.load(configured(dream, "something new", mask_token_id=5), family="Dream").template
    with pytest.raises(RequestError, match="unknown family 'drem'; did you mean 'dream'"):
        Codec.load(llada, family="drem")


def test_transformers_is_not_imported(llada: Path) -> None:
    script = "import sys; from foretell.engine.codec import Codec; Codec.load(sys.argv[1]).chat('hi')"
    check = f"{script}; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", check, llada], check=True)


def test_a_text_is_put_together_from_tokens(llada: Path, tmp_path: Path) -> None:
    """As the tokenizer's own decoder writes it, with every letter where its token is."""
    codec = Codec.load(llada)
    words = codec.spelling()
    assert not words.spaced
    for text in TEXTS[:4]:
        made = words.text(codec.encode(text))
        assert made.string == text == codec.decode(codec.encode(text))
    ids = codec.encode("é🙂x")
    shared = words.text(ids).tokens(1, 2)
    assert len(shared) > 1  # the smile is several tokens
    assert codec.decode([ids[at] for at in shared]) == "🙂"
    assert word_level(tmp_path / "words").spelling().spaced
    assert word_level(tmp_path / "words").spelling().text([2, 3, 4]).string == "two and three"


def test_blanks_and_bytes_as_sentencepiece_writes_them(tmp_path: Path) -> None:
    configured(tmp_path, "llada", mask_token_id=1)
    names = ["<unk>", "<m>", "▁", "▁a", "b", "c", "<0xC3>", "<0xA9>", "<0x0A>"]
    tokenizer = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<m>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec = Codec.load(tmp_path)
    words = codec.spelling()
    assert not words.spaced
    assert words.text([3, 4, 2, 6, 7, 8]).string == " ab é\n"
    assert codec.pieces([3, 6, 8]) == [" a", "<0xC3>", "\\n"]


def test_unknown_words_are_named_with_near_ones(tmp_path: Path) -> None:
    """All of them up to a few, and the model by the name that a user types."""
    tiny = Codec.load(BUNDLED / "tiny")
    with pytest.raises(VocabularyError) as refused:
        tiny.encode("tom has 3 appels in zeppelin , tom flies")
    said = str(refused.value)
    assert said == (
        "the model's vocabulary has no 'tom' (did you mean 'Tom'?), 'appels' (did you mean 'apples'?), 'in', "
        "'zeppelin', 'flies'; list its words with: foretell vocab tiny"
    )
    with pytest.raises(VocabularyError, match="'qa', 'qb', 'qc', 'qd', 'qe' and 2 more words; "):
        tiny.encode("qa qb qc qd qe qf qg")
    copied = tmp_path / "tiny"
    shutil.copytree(BUNDLED / "tiny", copied)
    with pytest.raises(VocabularyError, match=f"foretell vocab {copied}$"):
        Codec.load(copied).encode("zeppelin")
