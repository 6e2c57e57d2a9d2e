"""Masked LMs over antibody sequences, trained by others: downloaded from the package index and converted.

Sapiens (Merck, MIT licence, package `sapiens` 1.0.5) is stored by fairseq; AntiBERTy (MIT licence, package `antiberty`
0.1.3) as a pickle. Neither package is installed or run: the wheels are opened as archives, weights are read as tensors
only, and the result is a folder with config.json, model.safetensors and a tokenizer of one token per residue.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from foretell.errors import RequestError, StorageError

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
SAPIENS = ("<s>", "<pad>", "</s>", "<unk>", *RESIDUES, "<mask>")
ANTIBERTY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *RESIDUES)
CHAINS = {"sapiens-vh": "heavy", "sapiens-vl": "light", "antiberty": "heavy"}
# fairseq's names of RoBERTa's tensors, and transformers'.
FAIRSEQ = (
    (r"decoder\.sentence_encoder\.embed_tokens", "roberta.embeddings.word_embeddings"),
    (r"decoder\.sentence_encoder\.embed_positions", "roberta.embeddings.position_embeddings"),
    (r"decoder\.sentence_encoder\.emb_layer_norm", "roberta.embeddings.LayerNorm"),
    (r"decoder\.sentence_encoder\.layers\.", "roberta.encoder.layer."),
    (r"\.self_attn\.q_proj", ".attention.self.query"),
    (r"\.self_attn\.k_proj", ".attention.self.key"),
    (r"\.self_attn\.v_proj", ".attention.self.value"),
    (r"\.self_attn\.out_proj", ".attention.output.dense"),
    (r"\.self_attn_layer_norm", ".attention.output.LayerNorm"),
    (r"\.fc1", ".intermediate.dense"),
    (r"\.fc2", ".output.dense"),
    (r"\.final_layer_norm", ".output.LayerNorm"),
    (r"decoder\.lm_head", "lm_head"),
)


def find_model(name: str, models: Path | None, work: Path) -> Path:
    """Return the folder of a model: below `models` if it is there, otherwise downloaded to `work` and converted."""
    if name not in CHAINS:
        raise RequestError(f"unknown model {name!r} (available: {', '.join(CHAINS)})")
    if models is not None and (models / name / "config.json").is_file():
        return models / name
    folder = work / name
    if not (folder / "tokenizer.json").is_file():  # written last
        folder.mkdir(parents=True, exist_ok=True)
        (_convert_antiberty if name == "antiberty" else _convert_sapiens)(name, folder)
    return folder


def _convert_sapiens(name: str, folder: Path) -> None:
    chain = name.removeprefix("sapiens-")
    with tempfile.TemporaryDirectory() as temporary:
        file = _extract("sapiens==1.0.5", f"sapiens/models/v1/checkpoint_{chain}.pt", Path(temporary))
        with torch.serialization.safe_globals([argparse.Namespace]):
            stored = torch.load(file, map_location="cpu", weights_only=True)
    tensors = {_rename(old): tensor for old, tensor in stored["model"].items() if not old.endswith("lm_head.weight")}
    positions, width = tensors["roberta.embeddings.position_embeddings.weight"].shape
    tensors["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, width)  # fairseq has no token types
    made = vars(stored["args"])
    config = {
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        "vocab_size": len(SAPIENS),
        "hidden_size": width,
        "num_hidden_layers": made["encoder_layers"],
        "num_attention_heads": made["encoder_attention_heads"],
        "intermediate_size": made["encoder_ffn_embed_dim"],
        "max_position_embeddings": positions,
        "type_vocab_size": 1,
        "hidden_act": made["activation_fn"],
        "layer_norm_eps": 1e-5,
        "pad_token_id": SAPIENS.index("<pad>"),
        "mask_token_id": SAPIENS.index("<mask>"),
    }
    _write(folder, config, tensors, SAPIENS, ("<s>", "</s>"), "<unk>")


def _convert_antiberty(name: str, folder: Path) -> None:
    inside = "antiberty/trained_models/AntiBERTy_md_smooth"
    with tempfile.TemporaryDirectory() as temporary:
        file = _extract(f"{name}==0.1.3", f"{inside}/pytorch_model.bin", Path(temporary))
        stored = torch.load(file, map_location="cpu", weights_only=True)
        config = json.loads(_extract(f"{name}==0.1.3", f"{inside}/config.json", Path(temporary)).read_bytes())
    extra = ("position_ids", "cls.species", "cls.chain", "cls.graft", "bert.pooler")  # other heads than the masked LM's
    tensors = {old: tensor for old, tensor in stored.items() if not any(part in old for part in extra)}
    config |= {"architectures": ["BertForMaskedLM"], "mask_token_id": ANTIBERTY.index("[MASK]")}
    _write(folder, config, tensors, ANTIBERTY, ("[CLS]", "[SEP]"), "[UNK]")


def _extract(package: str, member: str, folder: Path) -> Path:
    """Return one file of a package's wheel, which is downloaded unless `folder` has it."""
    name = package.partition("==")[0]
    if not (wheels := list(folder.glob(f"{name}-*.whl"))):
        print(f"downloading {package}", flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
        if subprocess.run(command, check=False).returncode:
            raise StorageError(f"pip could not download {package}; give a folder of models with --models")
        wheels = list(folder.glob(f"{name}-*.whl"))
    with zipfile.ZipFile(wheels[0]) as archive:
        return Path(archive.extract(member, folder))


def _rename(name: str) -> str:
    for old, new in FAIRSEQ:
        name = re.sub(old, new, name)
    return name


def _write(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], words: tuple[str, ...], ends: Any, unknown: str
) -> None:
    """Write a checkpoint folder with a tokenizer of one token per residue."""
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(
        {name: tensor.float().contiguous().clone() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[A-Z]"), "removed", invert=True)
    tokenizer.decoder = decoders.Fuse()
    first, last = ends
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(first, ids[first]), (last, ids[last])]
    )
    tokenizer.add_special_tokens([word for word in words if len(word) > 1])
    mask = next(word for word in words if "mask" in word.lower())
    names = {"mask_token": mask, "sep_token": last, "cls_token": first, "unk_token": unknown}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    tokenizer.save(str(folder / "tokenizer.json"))
