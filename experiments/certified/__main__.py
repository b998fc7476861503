"""`python -m experiments.certified [--grid]`: one line per model and cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from autotune.exhaustive.certified import certify
from autotune.exhaustive.grid import evaluate_grid
from autotune.problem import Problem, load_problem

CASES = (
    ("mlp-4x1024", "dgx2-v100", 8, "full"),
    ("gpt2", "dgx-a100", 16, "standard"),
    ("gpt2", "dgx-a100", 16, "full"),
    ("bert-large", "hgx-h100", 16, "standard"),
    ("llama3-8b", "hgx-h100", 32, "standard"),
    ("gpt3-13B", "dgx-a100", 64, "standard"),
    ("mixtral-8x7b", "hgx-h100", 64, "standard"),
    ("gpt3-175B", "dgx-a100", 1024, "standard"),
)
"""Model, cluster, devices, space."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; the exit status is 1 if exhaustive search finds another best."""
    parser = argparse.ArgumentParser(prog="experiments.certified", description=__doc__)
    parser.add_argument("--grid", action="store_true", help="compare with exhaustive search")
    parser.add_argument("--most", type=int, help="leave out cases of more devices")
    options = parser.parse_args(argv)
    agree = True
    for model, cluster, devices, space in CASES:
        if options.most is None or devices <= options.most:
            problem = load_problem(model, cluster, devices=devices, space=space)
            agree &= _case(problem, grid=options.grid)
    return 0 if agree else 1


def _case(problem: Problem, *, grid: bool) -> bool:
    objective = problem.objective("throughput")
    found = certify(problem, objective)
    share = found.evaluated / found.space_size
    print(f"{problem.title}, {problem.space_name}: {found.best.label if found.best else 'nothing'}")
    print(
        f"  evaluated {found.evaluated:,} of {found.space_size:,} ({100 * share:.2f} %), "
        f"{found.bounds:,} bounds, {found.seconds:.1f} s"
    )
    for reason, count in found.ruled_out.items():
        print(f"  {count:>10,} {reason}")
    if not grid:
        return True
    best = evaluate_grid(problem.space, objective, top=1).best
    same = (best and best.strategy) == (found.best and found.best.strategy)
    print(f"  exhaustive search finds {'the same' if same else best and best.label}")
    return same


if __name__ == "__main__":
    sys.exit(main())
