"""Whether a space with generated lists loses against the same space without them, at equal numbers
of evaluations, over random problems.

    python -m experiments.axes.cases --cases 50 --json -
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from autotune.problem import Problem, load_problem
from autotune.prospects.prospects import ProblemProspects
from autotune.samplers import load_sampler
from autotune.study.study import Study
from autotune.study.trial import Trial
from distir.files import write_text

MODELS = ("mlp-4x1024", "mlp-8x4096", "gpt2-xs", "gpt2", "vit-b", "vit-l", "bert-base")
CLUSTERS = ("dgx-a100", "dgx-a100-40gb", "hgx-h100", "p3dn-v100-32gb")
DEVICES = (4, 8, 16)
BATCHES = (1, 2, 8)
"""Samples of a step, per device."""
SPACE = {"extends": "small", "pp": [1, 2], "zero": [0, 3], "sequence_parallel": "all"}
SAMPLER = "bounds"
EQUAL = 1e-9


def searched(problem: Problem, seed: int, trials: int) -> Trial | None:
    """The best plan that a search finds in a problem's space."""
    objective = problem.objective("throughput")
    prospects = ProblemProspects(problem, objective)
    sampler = load_sampler(SAMPLER, problem.space, seed, prospects)
    study = Study(problem.space, objective, sampler, objective.measure, seed)
    study.run(trials)
    return study.best


def case(seed: int, trials: int) -> dict[str, Any]:
    """One random problem, with and without generated lists."""
    chance = random.Random(seed)
    devices = chance.choice(DEVICES)
    stated: dict[str, Any] = {
        "model": chance.choice(MODELS),
        "cluster": chance.choice(CLUSTERS),
        "devices": devices,
        "batch_size": devices * chance.choice(BATCHES),
        "mode": chance.choice(("training", "training", "inference")),
    }
    named, generated = (
        searched(load_problem(**stated, space=SPACE, axis_lists=lists), seed, trials)
        for lists in (None, "auto")
    )
    found: dict[str, Any] = {**stated, "gain": None}
    for name, trial in (("named", named), ("generated", generated)):
        found[name] = None if trial is None else trial.label
    if named is not None and generated is not None:
        assert named.cost is not None
        assert generated.cost is not None
        found["gain"] = generated.cost / named.cost - 1  # costs are negative rates
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table, or writes JSON; the exit status is 1 if a case is worse with lists."""
    parser = argparse.ArgumentParser(prog="experiments.axes.cases", description=__doc__)
    parser.add_argument("--cases", type=int, default=50, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first case")
    parser.add_argument("--trials", type=int, default=50, metavar="N")
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE, or to stdout for -")
    options = parser.parse_args(argv)
    found: list[dict[str, Any]] = []
    for seed in range(options.first, options.first + options.cases):
        found.append(case(seed, options.trials))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    gains = [each["gain"] for each in found if each["gain"] is not None]
    summary = {
        "cases": len(found),
        "compared": len(gains),
        "worse": sum(gain < -EQUAL for gain in gains),
        "better": sum(gain > EQUAL for gain in gains),
        "gain_median": median(gains) if gains else None,
        "gain_most": max(gains, default=None),
        "found": found,
    }
    if options.json:
        text = json.dumps(summary, indent=2)
        print(text) if options.json == "-" else write_text(options.json, text + "\n")
    else:
        print({name: value for name, value in summary.items() if name != "found"})
    return 1 if summary["worse"] else 0


if __name__ == "__main__":
    sys.exit(main())
