"""Run many cases, as `make fuzz` does, or repeat one: `python -m tests.fuzz --kind traces --seed 7 --only 123`."""

from __future__ import annotations

import argparse
import os
import secrets
import sys

from tests.fuzz.runner import CPU_SECONDS, Limits, print_summary, run_cases


def main() -> int:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads would not survive the fork
    from tests.fuzz.kinds import CASES, KINDS, prepare, share_out

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="may be repeated; default: all")
    parser.add_argument("--seed", default="0", help="a whole number, or `fresh` for a new one")
    parser.add_argument("--cases", type=int, help=f"in all; default: {CASES:,}, less if kinds are chosen")
    parser.add_argument("--only", type=int, help="the number of a single case")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cpu-seconds", type=float, default=CPU_SECONDS, help="limit per case")
    given = parser.parse_args()
    seed = secrets.randbelow(10**6) if given.seed == "fresh" else int(given.seed)
    kinds = given.kind or list(KINDS)
    if given.only is not None:
        cases = [(kind, given.only) for kind in kinds]
    else:
        cases = [(kind, number) for kind, count in share_out(kinds, given.cases).items() for number in range(count)]
    print(f"seed {seed}, {len(cases):,} cases", flush=True)
    prepare()
    limits = Limits(given.cpu_seconds)
    verdicts = run_cases({name: KINDS[name].run for name in kinds}, cases, seed, limits, given.workers)
    return print_summary(verdicts, seed)


if __name__ == "__main__":
    sys.exit(main())
