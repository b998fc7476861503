"""Whether a space with generated lists loses against the same space without them, at equal numbers
of evaluations, over random problems.

    python -m experiments.axes.cases --cases 50 --json -
    python -m experiments.axes.cases --record cases.jsonl --seconds 150    # and again: goes on

Problems are drawn until so many have been compared; one that takes longer than it may is left out,
and said so. Every winner is executed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from distir import Simulator
from distir.execute.verify import Verifier
from distir.files import write_text
from experiments.axes.problems import (
    OutOfTimeError,
    at_most,
    best_with_and_without_lists,
    gain,
    stated,
)

MODELS = (
    *("mlp-4x1024", "mlp-8x4096", "gpt2-xs", "gpt2", "vit-b", "vit-l", "bert-base"),
    *("small T5", "mixture", "U-net", "long sequence", "wide embedding"),
)
CLUSTERS = ("dgx-a100", "dgx-a100-40gb", "hgx-h100", "p3dn-v100-32gb")
DEVICES = (4, 8, 16)
BATCHES = (1, 2, 8)
"""Samples of a step, per device."""
SPACE = {"extends": "small", "pp": [1, 2], "zero": [0, 3], "sequence_parallel": "all"}
EQUAL = 1e-9
CASE_SECONDS = 40
"""What a case may take of a core."""


def case(seed: int, trials: int) -> dict[str, Any]:
    """One random problem, with and without generated lists."""
    chance = random.Random(seed)
    devices = chance.choice(DEVICES)
    found: dict[str, Any] = {
        "seed": seed,
        "model": chance.choice(MODELS),
        "cluster": chance.choice(CLUSTERS),
        "devices": devices,
        "batch_size": devices * chance.choice(BATCHES),
        "mode": chance.choice(("training", "training", "inference")),
    }
    statement = stated(**{name: value for name, value in found.items() if name != "seed"})
    found["gain"], clock = None, time.process_time()
    try:
        with at_most(CASE_SECONDS):
            _compared(found, statement, seed, trials)
    except OutOfTimeError:
        found["left_out"] = f"took more than {CASE_SECONDS} s of a core"
    found["took_seconds"] = time.process_time() - clock
    return found


def _compared(found: dict[str, Any], statement: dict[str, Any], seed: int, trials: int) -> None:
    (_, named), (problem, generated) = best_with_and_without_lists(SPACE, seed, trials, statement)
    found["named"] = None if named is None else named.label
    found["generated"] = None if generated is None else generated.label
    if generated is not None:
        assert isinstance(problem.simulator, Simulator)
        workload = problem.simulator.workload
        found["verified"] = Verifier(workload).verify(generated.strategy).passed
    if named is None or generated is None:
        found["left_out"] = "nothing that fits was found"
    else:
        found["gain"] = gain(named, generated)


def _known(path: Path | None) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return [json.loads(line) for line in lines]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table, or writes JSON; the exit status is 1 if a case is worse with lists, or if a
    winner computes other numbers."""
    parser = argparse.ArgumentParser(prog="experiments.axes.cases", description=__doc__)
    parser.add_argument("--cases", type=int, default=50, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first case")
    parser.add_argument("--trials", type=int, default=50, metavar="N")
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE, or to stdout for -")
    parser.add_argument("--record", type=Path, metavar="FILE", help="a line per case; goes on")
    parser.add_argument("--seconds", type=float, default=900.0, help="after which none begins")
    options = parser.parse_args(argv)
    found, begin = _known(options.record), time.perf_counter()
    known = {each["seed"] for each in found}
    for seed in count(options.first):
        compared = sum(each["gain"] is not None for each in found)
        if compared >= options.cases or time.perf_counter() - begin > options.seconds:
            break
        if seed not in known:
            found.append(case(seed, options.trials))
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
            if options.record is not None:
                with options.record.open("a") as record:
                    record.write(json.dumps(found[-1]) + "\n")
    gains = [each["gain"] for each in found if each["gain"] is not None]
    wrong = sum(each.get("verified") is False for each in found)
    summary = {
        "cases": len(found),
        "compared": len(gains),
        "wrong_numbers": wrong,
        "took_seconds": sum(each["took_seconds"] for each in found),
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
    return 1 if summary["worse"] or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
