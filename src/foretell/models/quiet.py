"""Keeps the output of other libraries off the terminal while they are imported and load a model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide log messages below ERROR and Python warnings in this block."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Turn the progress bars of transformers off in this block."""
    from transformers.utils import logging as theirs  # noqa: PLC0415  an extra, and slow to import

    shown = theirs.is_progress_bar_enabled()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            theirs.enable_progress_bar()
