"""The objective `measured`: seconds of steps on real processes of this machine.

One trial is measured at a time, however many searches run on the machine: others would take its
cores. What goes wrong in a trial (a process that fails or is killed, too little memory, processes
that wait for each other) ends its processes and is the reason of a failed trial.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.file_lock import locked
from autotune.objectives.objective import Objective
from distir.strategy import Strategy

if TYPE_CHECKING:
    from distir.plan import Plan

MEASURED = "measured"
SUMMARY = "seconds of steps on real processes of this machine (minimized; needs PyTorch)"

STEPS, WARMUP = 3, 1
DEADLINE_SECONDS = 600.0
"""How long the processes of a trial may take; `--trial-timeout` says less."""

LOCK = Path(tempfile.gettempdir()) / "distir-measured.lock"


def measured_objective(plan_of: Callable[[Strategy], Plan]) -> Objective:
    """Measures the plans of strategies. Raises `DistirError` if PyTorch is missing."""
    from autotune.distributed.backend import load_torch
    from autotune.distributed.measuring import measure_locally

    load_torch()

    def measure(strategy: Strategy) -> dict[str, float]:
        plan = plan_of(strategy)
        with locked(LOCK):
            found = measure_locally(plan, STEPS, WARMUP, DEADLINE_SECONDS).to_dict()
        return {
            "measured_seconds": found["median"],
            "measured_minimum_seconds": found["minimum"],
            "measured_peak_bytes": found["peak_memory_bytes"],
        }

    return Objective(MEASURED, measure, metric="measured_seconds", direction="minimize")


__all__ = ["MEASURED", "SUMMARY", "measured_objective"]
