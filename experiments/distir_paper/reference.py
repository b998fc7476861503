"""Our simulator against the original's, with its own hardware numbers and the simple stack.

The original adds a launch of 10 us to every op, and its programs have other ops than ours (its
GPT-2 file spells out shape arithmetic and head-wise copies). So a second figure has its launches in
place of ours: our time without any, and 10 us for each of the original's ops per device.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from distir import Workload
from distir.errors import StrategyError
from experiments.distir_paper import original
from experiments.distir_paper.statistics import spearman

FILES = ("distir_mlp_reference.csv", "distir_gpt2_reference.csv")
LAUNCH_SECONDS = 10e-6


@dataclass(frozen=True, slots=True)
class Compared:
    """One row: what both say. Seconds are those of one step."""

    family: str
    hardware: str
    strategy: str
    original_seconds: float
    seconds: float
    seconds_with_its_launches: float
    original_peak_bytes: float
    peak_bytes: float
    original_cpu_seconds: float


def compare(folder: Path) -> tuple[list[Compared], list[str]]:
    """All rows that our blocks can be cut for, and why the others are left out."""
    compared: list[Compared] = []
    left_out: list[str] = []
    for row in _rows(folder):
        try:
            compared.append(_compare(row))
        except StrategyError as error:
            left_out.append(f"{row['model_size']}, {_strategy(row).label}: {error}")
    return compared, left_out


def _rows(folder: Path) -> Iterator[Mapping[str, str]]:
    for name in FILES:
        with (folder / name).open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)


def _strategy(row: Mapping[str, str]) -> original.Strategy:
    dp, hp, pp = (int(row[f"{name}_degree"]) for name in ("dp", "hp", "pp"))
    return original.strategy(dp, hp, pp, int(row["num_microbatches"]))


def _workload(row: Mapping[str, str]) -> Workload:
    batch, dtype = int(row["batch_size"]), row["dtype"]
    if "n_layer" in row:
        model = original.gpt2(int(row["n_layer"]), int(row["d_embd"]), int(row["n_head"]))
        return original.gpt2_inference(model, batch, dtype, int(row["seq_len"]))
    model = original.mlp(int(row["num_layers"]), int(row["dim"]))
    return original.mlp_training(model, batch, dtype)


def _table(row: Mapping[str, str]) -> dict[int, tuple[float, float, float]]:
    """What the row's all-reduces take instead of what its links give, by number of devices."""
    stated = row["allreduce_parameters"]
    return ast.literal_eval(stated) if stated.startswith("{") else {}


def _compare(row: Mapping[str, str]) -> Compared:
    strategy, workload = _strategy(row), _workload(row)
    cluster = original.cluster(
        float(row["device_throughput"]),
        float(row["dram_bandwidth"]),
        float(row["network_bandwidth_gbps"]),
        strategy.devices,
    )
    stack = original.simple_stack()
    unlaunched = replace(stack, eager_launch_seconds=0.0)
    table = _table(row)
    result = original.simulator(workload, cluster, stack, table).simulate(strategy)
    free = original.simulator(workload, cluster, unlaunched, table).simulate(strategy)
    latency = float(row["latency_s"])
    launches = LAUNCH_SECONDS * int(row["ops"]) / strategy.devices
    return Compared(
        family="GPT-2 inference" if "n_layer" in row else "MLP training",
        hardware=row["params"],
        strategy=f"{row['model_size']} {strategy.label}",
        original_seconds=latency,
        seconds=result.metrics["iteration_seconds"],
        seconds_with_its_launches=free.metrics["iteration_seconds"] + launches,
        original_peak_bytes=float(row["peak_memory_B"]),
        peak_bytes=result.metrics["peak_memory_bytes"],
        original_cpu_seconds=float(row["cpu_s"]),
    )


def report(compared: list[Compared], left_out: list[str]) -> str:
    """One line per family and hardware, and all together."""
    groups: dict[tuple[str, str], list[Compared]] = {}
    for each in compared:
        groups.setdefault((each.family, each.hardware), []).append(each)
    groups["all", ""] = compared
    lines = [
        f"{'':48}{'rows':>5}{'Spearman':>10}{'ours/theirs':>13}{'its launches':>14}{'memory':>8}"
    ]
    for (family, hardware), rows in groups.items():
        theirs = [r.original_seconds for r in rows]
        rank = spearman([r.seconds for r in rows], theirs)
        ratio = np.median(np.divide([r.seconds for r in rows], theirs))
        launched = np.median(np.divide([r.seconds_with_its_launches for r in rows], theirs))
        lines.append(
            f"{family + ', ' + hardware if hardware else family:48}{len(rows):>5}{rank:>10.3f}"
            f"{ratio:>13.2f}{launched:>14.2f}"
            f"{np.median([r.peak_bytes / r.original_peak_bytes for r in rows]):>8.2f}"
        )
    return "\n".join([*lines, *(f"left out: {each}" for each in left_out)])
