"""Find checkpoints on the Hugging Face hub by their id, and download what we read of them into the hub's cache."""

from __future__ import annotations

import errno
import logging
import re
import shutil
from dataclasses import dataclass
from fnmatch import fnmatch
from glob import escape
from pathlib import Path
from typing import Any

from foretell.errors import ModelError, RequestError
from foretell.models.family import Settings
from foretell.models.load import BUNDLED, family_of
from foretell.models.memory import format_bytes
from foretell.models.tokenizer import VOCABULARIES
from foretell.models.weights import INDEX, PICKLES, SINGLE

# Everything that is read of a checkpoint besides its weights; code and pickles are never downloaded.
SMALL_FILES = (
    *("config.json", "generation_config.json", "foretell.json", INDEX, *VOCABULARIES),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template*"),
)
MASKED_LM = "masked LM"
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[\w][\w./+-]*", re.ASCII)
_NO_CONFIG = "{} on the hub has no config.json; it is not a model that can be loaded"
_log = logging.getLogger("foretell")


def is_hub_id(text: str) -> bool:
    """Return whether this is `owner/name` or `owner/name@revision`."""
    return _ID.fullmatch(text.partition("@")[0]) is not None


def repo_of(folder: Path) -> str | None:
    """Return the hub id of a folder in the hub's cache, or None for any other folder."""
    snapshots = folder.absolute().parent
    repo = snapshots.parent.name
    if snapshots.name != "snapshots" or not repo.startswith("models--"):
        return None
    return repo.removeprefix("models--").replace("--", "/", 1)


def download(model: str, revision: str | None = None) -> Path:
    """Return the folder in the cache that holds `owner/name` or `owner/name@revision`; download what is missing.

    Asks the hub once if nothing is missing. Without a connection, or if the hub refuses, a complete cached copy is
    used. Raises ModelError if there is none.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415  slow to import

    repo, revision = _split(model, revision)
    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    except Exception as problem:  # the types depend on the HTTP library of huggingface_hub
        cached = _find_cached(repo, revision)
        if cached is None or not _is_complete(cached):
            raise _explain(repo, revision, problem, partly=cached is not None) from problem
        _log.warning("using the cached copy of %s: %s", repo, _first_line(problem))
        return cached
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    small, weights = _choose_files(repo, list(sizes))
    cached = _find_cached(repo, revision)
    if cached is not None and cached.name == info.sha and all((cached / name).exists() for name in small + weights):
        return cached
    return _fetch(repo, revision, small, weights, sizes)


def download_config(model: str, revision: str | None = None) -> Path:
    """Return the folder in the cache that holds config.json of `owner/name[@revision]`; download only this file."""
    from huggingface_hub import errors, hf_hub_download  # noqa: PLC0415

    repo, revision = _split(model, revision)
    try:
        return Path(hf_hub_download(repo, "config.json", revision=revision)).parent
    except errors.RemoteEntryNotFoundError as problem:
        raise ModelError(_NO_CONFIG.format(repo)) from problem
    except Exception as problem:  # the types depend on the HTTP library of huggingface_hub
        raise _explain(repo, revision, problem, partly=False) from problem


def _split(model: str, revision: str | None) -> tuple[str, str | None]:
    repo, _, stated = model.partition("@")
    if stated and revision is not None:
        raise RequestError(f"{model!r} names a revision, and so does revision={revision!r}; give one of them")
    revision = stated or revision
    if revision is not None and not _REVISION.fullmatch(revision):
        raise RequestError(f"{revision!r} is not a revision, which is a branch, a tag or a commit")
    return repo, revision


def _choose_files(repo: str, names: list[str]) -> tuple[list[str], list[str]]:
    """Return the small files and the weights to download. Raises ModelError if there is nothing that we can run."""
    top = [name for name in names if "/" not in name]
    small = [name for name in top if any(fnmatch(name, pattern) for pattern in SMALL_FILES)]
    weights = [SINGLE] if SINGLE in top else [name for name in top if name.endswith(".safetensors")]
    if "config.json" not in small:
        raise ModelError(_NO_CONFIG.format(repo))
    if not weights:
        pickles = [name for name in top if name.endswith(PICKLES)]
        found = f"only pickled weights ({', '.join(pickles[:3])}), which can run code when they are opened"
        raise ModelError(f"{repo} on the hub has {found if pickles else 'no weights'}; only safetensors are read")
    return small, weights


def _fetch(repo: str, revision: str | None, small: list[str], weights: list[str], sizes: dict[str, int]) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    _check_disk(repo, revision, {name: sizes[name] for name in small + weights})
    try:
        names = [*map(escape, small)]
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=names, tqdm_class=_bar(shown=False)))
        family_of(Settings.read(folder))  # refuse an unknown architecture before its weights are downloaded
        # Weights come last, so that a cached copy with weights has everything else too.
        names = [*map(escape, weights)]
        snapshot_download(repo, revision=folder.name, allow_patterns=names, tqdm_class=_bar(shown=True))
        return folder
    except ModelError:
        raise
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno == errno.ENOSPC:
            raise ModelError(f"cannot download {repo}: the disk of {cache_folder()} is full") from problem
        raise ModelError(
            f"the download of {repo} ended early ({_first_line(problem)}); load it again to continue where it ended"
        ) from problem


def _bar(*, shown: bool) -> Any:
    """Return huggingface_hub's progress bar, which is not shown if stderr is not a terminal."""
    from huggingface_hub.utils.tqdm import tqdm  # noqa: PLC0415

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            hidden = options.pop("disable", False) or not shown
            super().__init__(*args, disable=hidden or None, **options)  # type: ignore[no-untyped-call]

    return Bar


def _check_disk(repo: str, revision: str | None, sizes: dict[str, int]) -> None:
    """Raise ModelError if the files that are missing in the cache are larger than the free space of its disk."""
    cached = _find_cached(repo, revision)
    missing = sum(size for name, size in sizes.items() if cached is None or not (cached / name).exists())
    blobs = cache_folder() / f"models--{repo.replace('/', '--')}" / "blobs"
    begun = sum(path.stat().st_size for path in blobs.glob("*.incomplete")) if blobs.is_dir() else 0
    disk = next(path for path in (cache_folder(), *cache_folder().parents) if path.exists())
    free = shutil.disk_usage(disk).free
    if missing - begun > free:
        raise ModelError(
            f"cannot download {repo}: {format_bytes(missing - begun)} are missing, and {format_bytes(free)} are free "
            f"in {cache_folder()}; free some space, or set HF_HOME to a folder on a larger disk"
        )


def _find_cached(repo: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        config = try_to_load_from_cache(repo, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache of the Hugging Face hub."""

    name: str
    bytes: int
    family: str | None  # a name in FAMILIES or "masked LM"; None if it is of no supported family
    complete: bool  # whether its weights are there, as safetensors


def cached_models() -> list[CachedModel]:
    """Return the models in the cache, sorted by name. Nothing is downloaded."""
    from huggingface_hub import CacheNotFound, scan_cache_dir  # noqa: PLC0415

    try:
        repos = scan_cache_dir(cache_folder()).repos
    except CacheNotFound:
        return []
    found = [_describe(repo) for repo in repos if repo.repo_type == "model" and repo.revisions]
    return sorted(found, key=lambda one: one.name)


def _describe(repo: Any) -> CachedModel:
    latest = max(repo.revisions, key=lambda one: ("main" in one.refs, one.last_modified))
    folder = latest.snapshot_path
    try:
        known = family_of(Settings.read(folder))
    except ModelError:
        return CachedModel(repo.repo_id, repo.size_on_disk, None, _is_complete(folder))
    return CachedModel(
        repo.repo_id, repo.size_on_disk, MASKED_LM if known is None else known.name, _is_complete(folder)
    )


def _is_complete(folder: Path) -> bool:
    """Return whether a cached copy has weights, all of its shards if there are several."""
    from foretell.models.weights import Weights  # noqa: PLC0415

    try:
        Weights.locate(folder)
    except ModelError:
        return False
    return True


def cache_folder() -> Path:
    """Return the folder of the cache."""
    from huggingface_hub import constants  # noqa: PLC0415

    return Path(constants.HF_HUB_CACHE).expanduser()


def _explain(repo: str, revision: str | None, problem: Exception, *, partly: bool) -> ModelError:
    """Return the error for a model that the hub does not give us."""
    from huggingface_hub import constants, errors  # noqa: PLC0415

    hub = constants.ENDPOINT
    absent = f"{repo} is {'only partly' if partly else 'not'} in the cache ({cache_folder()})"
    status = getattr(getattr(problem, "response", None), "status_code", None)
    if isinstance(problem, errors.OfflineModeIsEnabled):
        says = f"{absent}, and HF_HUB_OFFLINE forbids downloading it"
    elif isinstance(problem, errors.GatedRepoError):
        says = f"{repo} is gated: accept its terms at {hub}/{repo}, and set HF_TOKEN to a token of your account"
    elif isinstance(problem, errors.RevisionNotFoundError):
        says = f"{repo} on the hub has no revision {revision!r}"
    elif isinstance(problem, errors.RepositoryNotFoundError):
        bundled = ", ".join(sorted(path.parent.name for path in BUNDLED.glob("*/model.safetensors")))
        says = (
            f"there is neither a folder {repo!r} here nor a model {repo} on the hub ({hub}); a private model needs "
            f"HF_TOKEN (bundled models: {bundled})"
        )
    elif isinstance(problem, errors.HFValidationError):
        says = f"there is no folder {repo!r}, and it is not a hub id: {_first_line(problem)}"
    elif status in (401, 403):
        says = f"the hub ({hub}) refuses {repo}: HTTP {status}; check HF_TOKEN"
    else:
        says = f"the hub ({hub}) cannot be reached ({_first_line(problem)}), and {absent}"
    return ModelError(says)


def _first_line(problem: Any) -> str:
    text = str(problem).strip()
    return text.splitlines()[0] if text else type(problem).__name__
