"""The process that searches texts for regular expressions: `search` runs this file as a script.

Python's `re` cannot be interrupted from another thread, and some expressions, such as (a+)+$, run almost forever. Here
the kernel ends the process once a search has used up its CPU time, whatever the interpreter is doing. CPU time does not
depend on how busy the machine is.
"""

from __future__ import annotations

import json
import re
import signal
import sys

SECONDS = 0.2  # CPU time per search; usual searches take microseconds


def find_last(regex: str, group: int | None, text: str) -> tuple[int, int] | None:
    """Return where `group` of the last match of `regex` starts and ends; matches with an empty group do not count."""
    compiled = re.compile(regex)  # cached by `re`
    group = min(compiled.groups, 1) if group is None else group
    found = None
    for match in compiled.finditer(text):
        if match[group]:
            found = match.span(group)
    return found


def main() -> None:
    """Answer every line of stdin, the arguments of `find_last` in JSON, with a line on stdout."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the default action ends the process without running any Python
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    for line in sys.stdin:
        arguments = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        found = find_last(*arguments)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
