"""Checkpoint folders: config, layouts, tokenizer, chat template, weights and index. What loads has to decode."""

from __future__ import annotations

import json
import shutil
import struct
from functools import cache
from pathlib import Path
from random import Random

import foretell
from foretell.errors import ForetellError
from foretell.models.dream import DREAM
from foretell.models.llada import LLADA
from tests.fuzz import world
from tests.fuzz.mutate import damage_file, mutate_bytes, mutate_value, write_json
from tests.models.checkpoints import write_dream, write_llada

TEMPLATES = (
    "{{ messages }}", "{% for m in messages %}{{ m.content }}{% endfor %}", "{{ 'x' * 10**9 }}", "{{ messages.x.y }}",
    "{% for i in range(10**9) %}x{% endfor %}", "{{ 10**10**8 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__ }}", "{% if %}", "{{ raise_exception('no') }}", "{% include 'x' %}", "{{ strftime_now('%Y') }}",
    "{{ messages | tojson }}", "{{ '%1000000000d' % 1 }}", "{{ 1 // 0 }}", "{{ [1] * 10**9 }}", "{{ lipsum(n=10**7) }}",
)  # fmt: skip


@cache
def _folders() -> tuple[Path, ...]:
    """LLaDA with text, LLaDA in shards, Dream with vocab.json and merges.txt, and a vocabulary of words."""
    whole = world.byte_model()
    sharded = write_llada(whole.parent / "shards", 2, d_model=8, n_heads=1, n_kv_heads=1, n_layers=1, mlp_hidden_size=8)
    dream = write_dream(
        whole.parent / "dream", hidden_size=8, num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=1, intermediate_size=8
    )
    letters = sorted(json.loads((whole / "tokenizer.json").read_text())["model"]["vocab"])[:40]
    (dream / "vocab.json").write_text(json.dumps({letter: at for at, letter in enumerate(letters)}))
    (dream / "merges.txt").write_text("#version: 0.2\n")
    (dream / "added_tokens.json").write_text(json.dumps({DREAM.mask: 49, DREAM.ends[0]: 48}))
    return whole, whole, sharded, dream, world.word_model()


def _damage_weights(rng: Random, data: bytes) -> bytes:
    """Change the header of a safetensors file, or its numbers."""
    (size,) = struct.unpack("<Q", data[:8])
    head, body = data[8 : 8 + size], data[8 + size :]
    kind = rng.randrange(4)
    if kind == 0:
        return mutate_bytes(rng, data)
    if kind == 1:
        number = rng.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\0\0\0\0"))
        at = 4 * rng.randrange(len(body) // 4)
        return data[: 8 + size] + (number * (len(body) // 4) if rng.random() < 0.3 else body[:at] + number + body[at + 4 :])
    head = write_json(rng, mutate_value(rng, json.loads(head)))
    length = rng.choice((len(head),) * 8 + (len(head) + 1, 2**63, 2**40, 0))
    return struct.pack("<Q", length) + head + body


def run(rng: Random) -> None:
    with world.scratch() as parent:
        folder = parent / "model"
        shutil.copytree(rng.choice(_folders()), folder)
        if rng.random() < 0.12:
            (folder / "chat_template.jinja").write_text(rng.choice(TEMPLATES) if rng.random() < 0.8 else LLADA.chat_template or "")
        else:
            path = rng.choice(sorted(folder.iterdir()))
            damage_file(rng, path, _damage_weights if path.suffix == ".safetensors" else None)
        engine = foretell.load(folder)
        given = {"max_new_tokens": 3, "steps": 2}
        template = engine.template(**given)
        for prompt in ([1, 2, 3], "one", [{"role": "user", "content": "7"}]):
            try:
                done = engine.generate(prompt, **given)  # type: ignore[call-overload]
            except ForetellError:
                if not isinstance(prompt, str) and rng.random() < 0.5:
                    raise
            else:
                world.check_completion(engine, None, template, done)
        _ = engine.fingerprint
