"""What the cost of one strategy depends on: `python -m experiments.speed.scaling`.

CPU milliseconds of a strategy that a new simulator has not seen, the least of several; the model
and its axes are there already.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from time import process_time

from distir import Simulator, Strategy, Workload, load_cluster, load_model

DEVICES, BATCH, REPEATS = 16384, 32768, 5

CASES: dict[str, list[tuple[str, Strategy]]] = {
    "dp (1, 8, 64, 1024)": [
        ("gpt3-175B", Strategy(dp=n, tp=2, pp=8, microbatches=16)) for n in (1, 8, 64, 1024)
    ],
    "tp (2, 4, 8, 16, 32)": [
        ("gpt3-175B", Strategy(dp=8, tp=n, pp=8, microbatches=16)) for n in (2, 4, 8, 16, 32)
    ],
    "cp (2, 4, 8, 16)": [
        ("gpt3-175B", Strategy(dp=8, tp=2, cp=n, pp=8, microbatches=16)) for n in (2, 4, 8, 16)
    ],
    "ep (2, 4, 8)": [
        ("mixtral-8x7B", Strategy(dp=8, ep=n, tp=2, pp=4, microbatches=16)) for n in (2, 4, 8)
    ],
    "layers (24, 40, 96, 128)": [
        (model, Strategy(dp=8, tp=8, pp=8, microbatches=16))
        for model in ("gpt3-1.3B", "gpt3-13B", "gpt3-175B", "megatron-1T")
    ],
    "microbatches (16, 64, 256, 1024)": [
        ("gpt3-175B", Strategy(dp=8, tp=8, pp=16, microbatches=n)) for n in (16, 64, 256, 1024)
    ],
}
"""What grows, as models with strategies."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    argparse.ArgumentParser(prog="experiments.speed.scaling", description=__doc__).parse_args(argv)
    workloads: dict[str, Workload] = {}
    for name, cases in CASES.items():
        found: list[float] = []
        for model, strategy in cases:
            if model not in workloads:
                workloads[model] = Workload(model=load_model(model), batch_size=BATCH)
            found.append(min(_cold(workloads[model], strategy) for _ in range(REPEATS)))
        print(f"{name:34}", *(f"{1e3 * seconds:7.1f}" for seconds in found), " ms")
    return 0


def _cold(workload: Workload, strategy: Strategy) -> float:
    simulator = Simulator(workload, load_cluster("dgx-a100", DEVICES))
    begun = process_time()
    simulator.simulate(strategy)
    return process_time() - begun


if __name__ == "__main__":
    sys.exit(main())
