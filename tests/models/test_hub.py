"""Models on the hub: what is downloaded, the cache, offline mode, and every way in which it can fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import foretell
from foretell.engine.folder import folder_of
from foretell.errors import ModelError, RequestError
from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.run import Evaluation
from foretell.models import hub as ours
from tests.models.hub_server import COMMIT, Hub, serve_hub

REPO = "lab/model"
UNREAD = {"README.md": b"# model", "modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle", "x.txt": b"x"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with serve_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def refused(model: str, *parts: str, revision: str | None = None) -> None:
    with pytest.raises(ModelError) as problem:
        folder_of(model, revision)
    message = str(problem.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_only_what_is_read_is_downloaded_and_the_cache_is_used(hub: Hub, checkpoint: Path) -> None:
    hub.add(REPO, checkpoint, more=UNREAD)
    hub.models[REPO, "main"]["onnx/model.safetensors"] = b"not for us"
    engine = foretell.load(REPO)
    folder = engine.codec.folder
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in checkpoint.iterdir())
    assert (folder / "model.safetensors").is_symlink()
    local = foretell.load(checkpoint)
    assert engine.fingerprint == local.fingerprint
    assert (engine.name, str(engine)) == (REPO, str(local).replace("random", REPO))
    hub.asked.clear()
    assert foretell.load(REPO).codec.folder == folder
    assert hub.asked == [f"GET /api/models/{REPO}?blobs=true"]


def test_results_and_certificates_name_the_hub_id(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    hub.add(REPO, checkpoint)
    what = Evaluation(REPO, "choice", ("full",), tmp_path / "out", limit=2, batch_size=1, workers=2)
    folder_of(REPO)
    hub.asked.clear()
    assert len(foretell.evaluate(what)) == 2
    assert len(hub.asked) == 1, "workers use the folder that was found"
    manifest = read_manifest(what.out)
    assert (manifest["model"], manifest["device"], manifest["dtype"]) == (REPO, "cpu", "float32")
    assert manifest["model_sha256"] == foretell.load(checkpoint).fingerprint
    made = foretell.calibrate(REPO, task="choice", limit=2, out=tmp_path / "rule.json")
    assert made.certificate.model == REPO


def test_a_shorter_name_for_advice(hub: Hub, checkpoint: Path) -> None:
    hub.add(REPO, checkpoint)
    with pytest.raises(RequestError, match=f"foretell vocab {REPO}"):
        foretell.load(REPO).generate("zeppelin")


def test_revisions(hub: Hub, checkpoint: Path, literate: Path) -> None:
    hub.add(REPO, checkpoint)
    hub.add(REPO, literate, revision="v2")
    main, second = folder_of(REPO), folder_of(f"{REPO}@v2")
    assert main.name == COMMIT
    assert (second / "config.json").read_text() == (literate / "config.json").read_text()
    assert folder_of(REPO, "v2") == folder_of(REPO, hub.commit("v2")) == second
    hub.models[REPO, "main"] = hub.models[REPO, "v2"]  # the branch moves on
    hub.commits["main"] = "f" * 40
    assert folder_of(REPO).name == "f" * 40


@pytest.mark.parametrize(("model", "revision"), [(f"{REPO}@v1", "v2"), (f"{REPO}@../../x", None), (REPO, "a b")])
def test_revisions_that_are_refused(model: str, revision: str | None) -> None:
    with pytest.raises(RequestError, match="revision"):
        folder_of(model, revision)


def test_a_local_folder_has_priority_and_no_revision(
    hub: Hub, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(checkpoint, tmp_path / REPO)
    monkeypatch.chdir(tmp_path)
    assert folder_of(REPO) == Path(REPO)
    assert foretell.load(REPO).name == "model"
    for model in (REPO, "tiny"):
        with pytest.raises(RequestError, match="a revision is for models on the hub"):
            folder_of(model, "main")
    assert hub.asked == []


@pytest.mark.parametrize("model", ["no-such-model", "./lab/model", "a/b/c", Path("lab/model")])
def test_what_is_not_a_hub_id_is_never_asked_for(hub: Hub, model: str | Path) -> None:
    with pytest.raises(ModelError, match=r"there is no folder .*; a model on the Hugging Face hub is owner/name"):
        folder_of(model)
    assert hub.asked == []


def test_offline(hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.add(REPO, checkpoint)
    folder = folder_of(REPO)
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert folder_of(REPO) == folder
    refused(f"{REPO}@v2", "lab/model is not in the cache", "HF_HUB_OFFLINE forbids downloading it")
    (folder / "model.safetensors").unlink()
    refused(REPO, "lab/model is only partly in the cache", "HF_HUB_OFFLINE")
    assert hub.asked == []


def test_without_a_connection_the_cached_copy_is_used(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from huggingface_hub import constants

    hub.add(REPO, checkpoint)
    folder = folder_of(REPO)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    assert folder_of(REPO) == folder
    assert "using the cached copy of lab/model" in caplog.text
    refused("lab/other", "the hub (http://127.0.0.1:9) cannot be reached", "lab/other is not in the cache")


def test_models_that_the_hub_does_not_give(hub: Hub, checkpoint: Path) -> None:
    hub.add(REPO, checkpoint)
    hub.add("lab/closed", checkpoint)
    hub.gated.add("lab/closed")
    hub.refused.add("lab/hidden")
    refused("lab/modle", "there is neither a folder 'lab/modle' here nor a model lab/modle on the hub", "tiny")
    refused("lab/closed", "lab/closed is gated: accept its terms at http", "HF_TOKEN")
    refused("lab/hidden", "HTTP 403", "check HF_TOKEN")
    refused(REPO, "has no revision 'v9'", revision="v9")
    refused("lab/-x-", "it is not a hub id")
    assert not any("resolve" in one for one in hub.asked)


def test_a_gated_model_that_was_downloaded_before_still_loads(hub: Hub, checkpoint: Path) -> None:
    hub.add(REPO, checkpoint)
    folder = folder_of(REPO)
    hub.gated.add(REPO)
    assert folder_of(REPO) == folder


def test_models_that_cannot_be_run_are_refused_before_their_weights_are_downloaded(hub: Hub, checkpoint: Path) -> None:
    hub.add(REPO, checkpoint)
    files = hub.models[REPO, "main"]
    weights = files.pop("model.safetensors")
    refused(REPO, "lab/model on the hub has no weights")
    files["pytorch_model.bin"] = b"pickle"
    refused(REPO, "only pickled weights (pytorch_model.bin)", "only safetensors are read")
    files["model.safetensors"] = weights
    files["config.json"] = json.dumps({"model_type": "gpt2"}).encode()
    refused(REPO, "unknown model_type 'gpt2'")
    del files["config.json"]
    refused(REPO, "no config.json")
    assert not any("safetensors" in one for one in hub.asked)


def test_a_full_disk_is_noticed_before_the_download(
    hub: Hub, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, checkpoint)
    hub.claimed = 16_000_000_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9_500_000_000))
    refused(REPO, "16.0 GB are missing, and 9.5 GB are free", str(tmp_path / "cache"), "HF_HOME")
    assert not any("resolve" in one for one in hub.asked)
    blobs = tmp_path / "cache" / "models--lab--model" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / "x.incomplete").open("wb") as begun:
        begun.truncate(7_000_000_000)  # sparse
    assert folder_of(REPO).name == COMMIT


def test_a_disk_that_fills_up(hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, checkpoint)

    def fail(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    refused(REPO, "the disk of", "is full")


def test_a_broken_transfer_continues_where_it_ended(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
    hub.add(REPO, checkpoint)
    hub.break_at = 1000
    folder = folder_of(REPO)
    assert (folder / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    (again,) = [one for one in hub.asked if "bytes=" in one]
    assert again.endswith("model.safetensors bytes=1000-")


def test_a_download_that_fails_can_be_repeated(hub: Hub, checkpoint: Path) -> None:
    hub.add(REPO, checkpoint)
    hub.lost.add("model.safetensors")
    refused(REPO, "the download of lab/model ended early", "load it again to continue")
    hub.lost.clear()
    hub.asked.clear()
    folder_of(REPO)
    assert not any("tokenizer.json" in one for one in hub.asked if "resolve" in one)


def test_shards_are_downloaded_without_a_single_file(hub: Hub, checkpoint: Path) -> None:
    names = ["a.safetensors", "b.safetensors", "onnx/c.safetensors", "model.safetensors"]
    assert ours._choose_files(REPO, ["config.json", *names])[1] == ["model.safetensors"]
    assert ours._choose_files(REPO, ["config.json", *names[:3]])[1] == names[:2]


def test_the_variables_of_huggingface_hub(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """In processes of their own, because the variables are read when huggingface_hub is imported."""
    hub.add(REPO, checkpoint)
    where = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}

    def generate(model: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "foretell", "generate", model, "Tom has 3 boxes", "--max-new-tokens", "4"]
        return subprocess.run(words, env=where | more, capture_output=True, text=True, check=False)

    first = generate(REPO)
    assert (first.returncode, first.stderr.splitlines()[0].split(":")[0]) == (0, REPO)
    assert "%" not in first.stderr, "a progress bar is for terminals"
    hub.asked.clear()
    again = generate(REPO, HF_HUB_OFFLINE="1")
    assert (again.returncode, hub.asked) == (0, [])
    assert again.stdout.splitlines()[0] == first.stdout.splitlines()[0]
