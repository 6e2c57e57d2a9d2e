"""Checkpoint folders: config, layouts, tokenizer, chat template, weights and index. What loads has to decode."""

from __future__ import annotations

import json
import shutil
import struct
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from transformers import BertConfig, BertForMaskedLM

import foretell
from foretell.errors import ForetellError
from foretell.models.dream import DREAM
from tests.fuzz import world
from tests.fuzz.mutate import damage_file, mutate_bytes, mutate_text, mutate_value, write_json
from tests.models import test_huggingface
from tests.models.checkpoints import write_dream, write_llada

TEMPLATES = (
    "{{ messages }}", "{% for m in messages %}{{ m.content }}{% endfor %}", "{{ 'x' * 10**9 }}", "{{ messages.x.y }}",
    "{% for i in range(10**9) %}x{% endfor %}", "{{ 10**10**8 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__ }}", "{% if %}", "{{ raise_exception('no') }}", "{% include 'x' %}",
    "{{ messages | tojson }}", "{{ '%1000000000d' % 1 }}", "{{ 1 // 0 }}", "{{ [1] * 10**9 }}", "{{ lipsum(n=10**7) }}",
    world.TEMPLATE,
)  # fmt: skip
NUMBERS = (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\0\0\0\0")  # NaN, infinity, the largest, 0
PROMPTS: tuple[Any, ...] = ([1, 2, 3], "one", [{"role": "user", "content": "7"}])


@cache
def folders() -> tuple[Path, ...]:
    """LLaDA with text, LLaDA in shards, Dream with vocab.json and merges.txt, words, and BERT."""
    whole = world.byte_model()
    root = whole.parent
    sharded = write_llada(root / "shards", 2, d_model=8, n_heads=1, n_kv_heads=1, n_layers=1, mlp_hidden_size=8)
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
    dream = write_dream(root / "dream", hidden_size=8, intermediate_size=8, **heads)
    letters = [*sorted(json.loads((whole / "tokenizer.json").read_text())["model"]["vocab"])[:40], "!!"]
    (dream / "vocab.json").write_text(json.dumps({letter: at for at, letter in enumerate(letters)}))
    (dream / "merges.txt").write_text("#version: 0.2\n! !\n")
    (dream / "added_tokens.json").write_text(json.dumps({DREAM.mask: 49, DREAM.ends[0]: 48}))
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    bert = BertForMaskedLM(BertConfig(vocab_size=50, max_position_embeddings=24, **size))
    pieces = test_huggingface.write_pieces(test_huggingface.write(root / "bert", bert, mask_id=None), {})
    return whole, whole, whole, sharded, dream, dream, world.word_model(), pieces


def _damage_weights(rng: Random, data: bytes) -> bytes:
    """Change the header of a safetensors file, or its numbers."""
    (size,) = struct.unpack("<Q", data[:8])
    head, body = data[8 : 8 + size], data[8 + size :]
    kind = rng.randrange(4)
    if kind == 0:
        return mutate_bytes(rng, data)
    if kind == 1:
        number, at = rng.choice(NUMBERS), 4 * rng.randrange(len(body) // 4)
        everywhere = rng.random() < 0.3
        return data[: 8 + size] + (number * (len(body) // 4) if everywhere else body[:at] + number + body[at + 4 :])
    head = write_json(rng, mutate_value(rng, json.loads(head)))
    length = rng.choice((*(len(head),) * 8, len(head) + 1, 2**63, 2**40, 0))
    return struct.pack("<Q", length) + head + body


def run(rng: Random) -> None:
    with world.scratch() as parent:
        folder = parent / "model"
        shutil.copytree(rng.choice(folders()), folder)
        if rng.random() < 0.12:
            template = rng.choice(TEMPLATES)
            template = mutate_text(rng, template) if rng.random() < 0.3 else template
            (folder / "chat_template.jinja").write_bytes(template.encode("utf8", "surrogatepass"))
        else:
            path = rng.choice(sorted(folder.iterdir()))
            damage_file(rng, path, _damage_weights if path.suffix == ".safetensors" else None)
        engine, given = foretell.load(folder), {"max_new_tokens": 3, "steps": 2}
        for prompt in PROMPTS:
            _decode(rng, engine, prompt, given)
        _ = engine.fingerprint


def _decode(rng: Random, engine: foretell.Engine, prompt: Any, given: dict[str, Any]) -> None:
    try:
        world.check_completion(engine, engine.template(**given), engine.generate(prompt, **given))
    except ForetellError:
        if rng.random() < 0.3:  # otherwise go on with another kind of prompt
            raise
