"""Search texts with Python's `re` under a limit of CPU time, in a process that is started when it is first needed."""

from __future__ import annotations

import json
import sys

from foretell.errors import RecipeError, show
from foretell.helper import HelperProcess
from foretell.policies.region import search_process
from foretell.policies.region.search_process import SECONDS

# -I and -S: neither the environment nor installed packages may change what is imported.
SEARCHER = HelperProcess(lambda: [sys.executable, "-I", "-S", search_process.__file__])


def find_last(regex: str, group: int | None, text: str) -> tuple[int, int] | None:
    """Return what `search_process.find_last` finds. Raises RecipeError if the search uses up its CPU time."""
    question = json.dumps([regex, group, text]).encode() + b"\n"
    try:
        answer = SEARCHER.ask(question) or SEARCHER.ask(question)  # again, because something else may have killed it
    except OSError as error:
        raise RecipeError(f"region=pattern searches in a separate process, which cannot start: {error}") from error
    if answer is None:
        raise RecipeError(
            f"the region's pattern {show(regex)} was given up: the search of a text of {len(text)} characters took "
            f"more than {SECONDS:g} seconds of CPU time; write it without nested repetition such as (a+)+"
        )
    start_end = json.loads(answer)
    return start_end and tuple(start_end)
