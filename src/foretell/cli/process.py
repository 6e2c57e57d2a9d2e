"""The process of the program: its standard streams, and SIGTERM, which ends a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
PIPE_CLOSED = 0  # who reads only the first lines (`| head -1`) has what they want


class Terminated(KeyboardInterrupt):
    """The process was sent SIGTERM."""


def prepare_process() -> None:
    """Raise `Terminated` at SIGTERM, and open standard streams that are closed."""
    signal.signal(signal.SIGTERM, _raise_terminated)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Takes the number of the closed stream, which the next file would otherwise get, and messages with it.
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


def _raise_terminated(*_: object) -> NoReturn:
    raise Terminated


@contextmanager
def quiet_pipes() -> Iterator[None]:
    """End the program quietly if the reader of its output (e.g. `head`) has exited."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here: an error at exit could not be caught
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # the flush at exit would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SystemExit(PIPE_CLOSED) from None


def exit_code(stop: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
