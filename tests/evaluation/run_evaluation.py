"""The evaluation of test_evaluate in a process of its own, to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from foretell.evaluation.run import evaluate
from tests.evaluation.test_evaluate import plan

if __name__ == "__main__":
    evaluate(plan(Path(sys.argv[1]), Path(sys.argv[2]), workers=int(sys.argv[3])))
