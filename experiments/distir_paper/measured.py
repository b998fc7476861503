"""Our simulator against the training steps that the original's authors measured.

MLPs in PyTorch, data parallel on 1, 2 and 4 V100, forward and backward passes in fp32. The machine
(`v100x4.toml`) has the V100's datasheet numbers; what its links reach is not documented, and two
numbers of them are read off the rows: what one device sends to one other, and to all others.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from distir import Simulator, Strategy, load_cluster
from distir.cost import load_stack
from experiments.distir_paper import original
from experiments.distir_paper.statistics import mean_error, spearman

FILE = "distir_notebook_measured_vs_simulated.csv"
MACHINE = Path(__file__).with_name("v100x4.toml")
STACK = Path(__file__).with_name("runner.toml")


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured step, and what both simulators predict."""

    layers: int
    width: int
    batch_size: int
    devices: int
    seconds: float
    predicted_seconds: float
    original_seconds: float

    @property
    def task(self) -> tuple[int, int, int]:
        """What is trained, on however many devices."""
        return self.layers, self.width, self.batch_size


def compare(folder: Path) -> list[Measured]:
    """All measured rows."""
    with (folder / FILE).open(newline="", encoding="utf-8") as file:
        return [_compare(row) for row in csv.DictReader(file)]


def _compare(row: dict[str, str]) -> Measured:
    layers, width, batch, devices = (
        int(row[key]) for key in ("num_hidden_layers", "hidden_dim", "batch_size", "world_size")
    )
    workload = original.mlp_training(original.mlp(layers, width), batch, row["dtype"])
    simulator = Simulator(workload, load_cluster(MACHINE, devices), load_stack(STACK))
    result = simulator.simulate(Strategy(dp=devices))
    (stage,) = result.stages
    outside = stage.seconds["optimizer"] + stage.seconds["overhead"]
    return Measured(
        layers=layers,
        width=width,
        batch_size=batch,
        devices=devices,
        seconds=float(row["measured_ms"]) / 1e3,
        # The measured function has no optimizer, and nothing around the step.
        predicted_seconds=result.metrics["iteration_seconds"] - outside,
        original_seconds=float(row["simulated_ms"]) / 1e3,
    )


def right_choices(rows: list[Measured]) -> tuple[int, int, int]:
    """Tasks measured on several numbers of devices, and for how many of them we and the original
    pick the fastest number."""
    tasks: dict[tuple[int, int, int], list[Measured]] = {}
    for row in rows:
        tasks.setdefault(row.task, []).append(row)
    several = [each for each in tasks.values() if len(each) > 1]
    ours = theirs = 0
    for each in several:
        fastest = min(each, key=lambda row: row.seconds)
        ours += min(each, key=lambda row: row.predicted_seconds) is fastest
        theirs += min(each, key=lambda row: row.original_seconds) is fastest
    return len(several), ours, theirs


def report(rows: list[Measured]) -> str:
    """Errors by number of devices, and the choices between them."""
    lines = [f"{'devices':>8}{'rows':>6}{'mean error':>12}{'original':>10}{'Spearman':>10}"]
    for devices in (*sorted({row.devices for row in rows}), None):
        chosen = [row for row in rows if devices in (None, row.devices)]
        measured = [row.seconds for row in chosen]
        ours = [row.predicted_seconds for row in chosen]
        theirs = [row.original_seconds for row in chosen]
        lines.append(
            f"{devices or 'all':>8}{len(chosen):>6}{mean_error(ours, measured):>12.1%}"
            f"{mean_error(theirs, measured):>10.1%}{spearman(ours, measured):>10.3f}"
        )
    tasks, right, original_right = right_choices(rows)
    lines.append(
        f"fastest number of devices picked in {right} of {tasks} tasks (original: {original_right})"
    )
    return "\n".join(lines)
