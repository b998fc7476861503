"""How many new axis lists a core simulates per second: placed, filled in, priced and scheduled.

python -m experiments.axes.speed gpt2 bert-base --lists 471
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import distir
from distir import Simulator, Strategy, Workload
from distir.plan.axis_lists import AxisLists

MESH, BATCH = Strategy(dp=2, tp=4), 64


def lists_per_second(model: str, most: int) -> tuple[int, float]:
    """How many lists of `MESH` were simulated one after the other, and how many of them a second of
    this process; the simulator has seen plain data parallelism before, and no list."""
    workload = Workload(model=distir.load_model(model), batch_size=BATCH)
    cluster = distir.load_cluster("dgx-a100", MESH.devices)
    texts = AxisLists(Simulator(workload, cluster).planner).generated(MESH, ("tp",))
    strategies = [replace(MESH, axes=text) for text in islice(texts, most)]
    simulator = Simulator(workload, cluster)
    simulator.simulate(Strategy(dp=MESH.devices))
    clock = time.process_time()
    for strategy in strategies:
        simulator.simulate(strategy)
    return len(strategies), len(strategies) / (time.process_time() - clock)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line per model."""
    parser = argparse.ArgumentParser(prog="experiments.axes.speed", description=__doc__)
    parser.add_argument("models", nargs="*", default=["gpt2", "bert-base", "vit-b", "t5-small"])
    parser.add_argument("--lists", type=int, default=471, metavar="N", help="at most")
    options = parser.parse_args(argv)
    for model in options.models:
        count, rate = lists_per_second(model, options.lists)
        print(
            f"{model}: {count} lists, {rate:,.0f} per second, {1e3 / rate:.1f} ms each", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
