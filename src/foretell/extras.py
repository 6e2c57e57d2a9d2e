"""The optional packages, and the check that one is installed before work that needs it starts."""

from __future__ import annotations

from importlib.util import find_spec

from foretell.errors import MissingExtraError

PACKAGES = {
    "decide": ("outlines_core", "a regular expression or a JSON schema"),
    "hf": ("transformers", "a Hugging Face masked LM"),
    "lab": ("scipy", "a report or a calibration"),
    "lm-eval": ("lm_eval", "the lm-evaluation-harness backend"),
    "parquet": ("pyarrow", "a table of prompts or results"),
    "plots": ("matplotlib", "a plot"),
    "quantize": ("torchao", "quantize"),
    "ray": ("ray", "work on more than one machine"),
    "server": ("starlette", "a server"),
}  # extra -> its package, and what needs it
MORE = {"server": ("prometheus_client", "uvicorn")}  # further packages of an extra


def is_installed(extra: str) -> bool:
    """Return whether the packages of this extra are installed, without importing them."""
    return all(find_spec(name) is not None for name in (PACKAGES[extra][0], *MORE.get(extra, ())))


def require_extra(extra: str) -> None:
    """Raise MissingExtraError unless the package of this extra is installed."""
    if not is_installed(extra):
        package, purpose = PACKAGES[extra]
        raise MissingExtraError(
            f"{purpose} needs {package}, which is not installed: pip install 'foretell[{extra}]'", name=package
        )
