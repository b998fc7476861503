"""What a plan costs in the pipeline: `python -m experiments.speed.pipelines`.

CPU seconds of `run_pipeline_columns` for plans with random costs, equal on all stages but the first
and the last, as those of real models are; and of what is done once per schedule.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from time import process_time

import numpy as np
from numpy.typing import NDArray

from distir.schedules import COST_KINDS, compile_schedule, find_schedule
from distir.simulation.pipeline.one import run_pipeline_columns

CASES = (
    ("1f1b", 8, 1, 512),
    ("1f1b", 32, 1, 256),
    ("1f1b", 2, 1, 16),
    ("gpipe", 16, 1, 256),
    ("interleaved", 2, 6, 64),
    ("interleaved", 8, 12, 128),
    ("interleaved", 8, 12, 2048),
    ("interleaved", 32, 3, 512),
    ("breadth-first", 8, 12, 512),
    ("breadth-first", 2, 48, 2048),
    ("zb-h1", 8, 1, 128),
    ("zb-h2", 32, 1, 512),
    ("zb-v", 16, 2, 256),
    ("chimera", 16, 1, 256),
)
"""Schedule, ranks, chunks, microbatches."""


def costs(stages: int, rows: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds of actions and messages; first and last stages take up to 5% more or less, messages
    up to a tenth of a forward pass."""
    random = np.random.default_rng(0)
    seconds = np.empty((stages, COST_KINDS, rows))
    seconds[:] = np.array([1.0, 2.0, 1.0, 1.0])[:, None] * random.uniform(0.5, 1.5, rows)
    for end in (0, -1):
        seconds[end] *= random.uniform(0.95, 1.05, rows)
    transfers = np.empty_like(seconds)
    transfers[:] = seconds[stages // 2, 0] * random.uniform(0.0, 0.1, rows)
    return seconds.reshape(-1, rows), transfers.reshape(-1, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line per case."""
    parser = argparse.ArgumentParser(prog="experiments.speed.pipelines", description=__doc__)
    parser.add_argument("--rows", type=int, default=7000, help="plans of each (default: 7000)")
    rows: int = parser.parse_args(argv).rows
    print(f"{'':14} ranks chunks microbatches   actions  once     per plan  actions/s")
    for name, ranks, chunks, microbatches in CASES:
        begun = process_time()
        compiled = compile_schedule(find_schedule(name).made(ranks, chunks, microbatches))
        _ = compiled.situation_tables
        seconds, transfers = costs(compiled.stages, rows)
        run_pipeline_columns(compiled, seconds[:, :1], transfers[:, :1])
        once = process_time() - begun
        begun = process_time()
        run_pipeline_columns(compiled, seconds, transfers)
        each = (process_time() - begun) / rows
        actions = sum(map(sum, (kinds for own in compiled.counts for kinds in own)))
        print(
            f"{name:14}{ranks:6}{chunks:7}{microbatches:13}{actions:10}{once:7.3f} s"
            f"{each * 1e6:8.1f} us{actions / each:11.2g}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
