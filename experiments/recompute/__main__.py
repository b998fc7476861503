"""What a choice per layer gains over one policy for all layers, where memory is tight.

    python -m experiments.recompute --cases 40

Draws models, clusters, batches and strategies by a seed until so many cases are tight: with nothing
recomputed the plan misses the limit, with all layers recomputed in full it fits. `recompute = auto`
is compared with the fastest of the uniform choices that fit: one policy for all layers; and with
the fastest that recomputes the first N layers of every stage, which is a choice by hand.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice
from statistics import median
from typing import Any

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.files import write_text
from distir.metrics import iteration_seconds
from distir.transforms.recompute import POLICIES

MODELS = (
    *("gpt2-xl", "gpt3-2.7B", "gpt3-6.7B", "gpt3-13B", "llama2-7b", "llama3-8b", "qwen2.5-14b"),
    *("bert-large", "t5-large", "vit-h", "mixtral-8x7b"),
)
CLUSTERS = ("dgx-a100-40gb", "dgx-a100", "hgx-h100", "p3dn-v100-32gb")
DEVICES = (8, 16, 32)
SCHEDULES = ("1f1b", "1f1b", "gpipe", "interleaved", "zb-h1")
GAIN = 0.05
"""What is wanted of half of the cases."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a cluster, with a strategy that leaves recomputation to the plan."""

    model: str
    cluster: str
    batch_size: int
    strategy: Strategy


def drawn(seed: int) -> Case:
    """A case at random, tight or not, valid or not."""
    chance = random.Random(seed)
    devices, schedule = chance.choice(DEVICES), chance.choice(SCHEDULES)
    tp, pp = chance.choice((1, 2, 4, 8)), chance.choice((1, 2, 4, 8))
    dp, microbatches = devices // (tp * pp), chance.choice((1, 2, 4, 8, 16))
    strategy = Strategy(
        dp=max(dp, 1),
        tp=tp,
        pp=pp,
        microbatches=microbatches,
        schedule=schedule,
        chunks=2 if schedule == "interleaved" else 1,
        zero=chance.choice((0, 1)) if dp > 1 else 0,
        sequence_parallel=tp > 1 and chance.random() < 0.5,
        recompute="auto",
    )
    samples = max(dp, 1) * microbatches * chance.choice((1, 2, 4, 8))
    return Case(chance.choice(MODELS), chance.choice(CLUSTERS), samples, strategy)


@cache
def workload(model: str, batch_size: int) -> Workload:
    """The model with so many samples a step."""
    return Workload(model=load_model(model), batch_size=batch_size)


def seconds_of(simulator: Simulator, strategy: Strategy) -> float | None:
    """Seconds of an iteration; None if the strategy does not fit."""
    found = simulator.simulate(strategy)
    return found.metrics[iteration_seconds.name] if found.feasible else None


def compared(seed: int) -> dict[str, Any] | None:
    """Seconds of a case with each choice; None if it is not tight."""
    case = drawn(seed)
    own = workload(case.model, case.batch_size)
    simulator = Simulator(own, load_cluster(case.cluster, case.strategy.devices))
    none, full = (replace(case.strategy, recompute=policy) for policy in ("none", "full"))
    if simulator.explain(none) is not None or simulator.explain(full) is not None:
        return None
    if seconds_of(simulator, none) is not None or seconds_of(simulator, full) is None:
        return None
    clock = time.process_time()
    auto = seconds_of(simulator, case.strategy)
    took = time.process_time() - clock
    uniform = [seconds_of(simulator, replace(none, recompute=policy)) for policy in POLICIES]
    best = min(each for each in uniform if each is not None)
    stated = [each for each in _first_layers(simulator, full) if each is not None]
    return {
        "seed": seed,
        "model": case.model,
        "cluster": case.cluster,
        "batch_size": case.batch_size,
        "strategy": case.strategy.label,
        "auto_seconds": auto,
        "uniform_seconds": best,
        "first_layers_seconds": min(stated, default=None),
        "gain": None if auto is None else best / auto - 1,
        "took_cpu_seconds": took,
    }


def _first_layers(simulator: Simulator, full: Strategy) -> Iterator[float | None]:
    """Seconds with the first N layers of every stage recomputed, for every N that there may be."""
    layers = len(simulator.workload.program.layers)
    for recomputed in range(1, -(-layers // full.stages) + 1):
        stated = replace(full, recompute_layers=recomputed)
        if simulator.explain(stated) is None:
            yield seconds_of(simulator, stated)


def tight_cases(first: int) -> Iterator[dict[str, Any]]:
    """The tight cases of all seeds from the first on."""
    for seed in count(first):
        found = compared(seed)
        if found is not None:
            print(json.dumps(found), file=sys.stderr, flush=True)
            yield found


def summary(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What came out over all cases."""
    gains = [-1.0 if each["gain"] is None else each["gain"] for each in cases]
    stated = [
        each["first_layers_seconds"] / each["auto_seconds"] - 1
        for each in cases
        if each["first_layers_seconds"] is not None and each["auto_seconds"] is not None
    ]
    return {
        "cases": len(cases),
        "slower_than_uniform": sum(gain < 0 for gain in gains),
        "at_least_5_percent_faster": sum(gain >= GAIN for gain in gains),
        "median_gain": median(gains),
        "slower_than_first_layers": sum(gain < 0 for gain in stated),
        "median_gain_over_first_layers": median(stated) if stated else None,
        "median_cpu_seconds": median(each["took_cpu_seconds"] for each in cases),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a summary, or writes JSON; the exit status is 1 if a case is slower than with one
    policy, or fewer than half are faster by `GAIN`."""
    parser = argparse.ArgumentParser(prog="experiments.recompute", description=__doc__)
    parser.add_argument("--cases", type=int, default=40, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--json", metavar="FILE", help="write all cases as JSON")
    options = parser.parse_args(argv)
    cases = list(islice(tight_cases(options.first), options.cases))
    found = summary(cases)
    for name, value in found.items():
        print(f"{name.replace('_', ' ')}: {value:.3g}" if value is not None else f"{name}: none")
    if options.json:
        write_text(options.json, json.dumps({"summary": found, "cases": cases}, indent=2) + "\n")
    enough = 2 * found["at_least_5_percent_faster"] >= len(cases)
    return 0 if enough and not found["slower_than_uniform"] else 1


if __name__ == "__main__":
    sys.exit(main())
