"""Verifiers (how an early commit is checked) by the name used in recipes and on the command line."""

from __future__ import annotations

from foretell.policies.verify.recheck import Recheck
from foretell.policies.verify.trust import Trust

VERIFIERS: dict[str, type] = {"recheck": Recheck, "trust": Trust}
