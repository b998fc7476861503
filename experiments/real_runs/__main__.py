"""Measures plans on real processes of this machine, and predicts them from a profile of it.

    python -m autotune profile --to profile
    python -m experiments.real_runs measure --profile profile   # again, until all are done
    python -m experiments.real_runs report

Needs PyTorch. What is measured is added to results.csv beside this file, plan by plan, so that it
can be taken in pieces. The least of the steps counts: other programs on the machine only add to it.
"""

# pyright: basic
from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import distir
from distir.cost import load_stack
from distir.files import write_text
from experiments.real_runs.plans import STEPS, RealRun, all_runs, model_of
from experiments.real_runs.report import COLUMNS, report_of

HERE = Path(__file__).resolve().parent
WARMUP, DEADLINE_SECONDS = 3, 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measures or reports."""
    parser = argparse.ArgumentParser(prog="experiments.real_runs", description=__doc__)
    parser.add_argument("what", choices=("measure", "report"))
    parser.add_argument("--profile", type=Path, default=Path("profile"), metavar="DIR")
    parser.add_argument("--seconds", type=float, default=150.0, help="begin no plan after so long")
    parser.add_argument("--results", type=Path, default=HERE / "results.csv", metavar="FILE")
    parser.add_argument(
        "--note", default="", metavar="TEXT", help="said of the machine in the report"
    )
    options = parser.parse_args(argv)
    if options.what == "measure":
        _measure(options.results, options.profile, options.seconds)
    else:
        rows = _rows(options.results)
        text, picture = report_of(rows, os.cpu_count() or 1, options.note)
        write_text(options.results.with_name("report.md"), text)
        write_text(options.results.with_name("scatter.svg"), picture)
        print(text)
    return 0


def _measure(results: Path, profile: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    done = {row["run"] for row in _rows(results)} if results.exists() else set[str]()
    with tempfile.TemporaryDirectory() as folder, results.open("a", newline="") as file:
        writer: csv.DictWriter[Any] = csv.DictWriter(file, COLUMNS)
        if not file.tell():
            writer.writeheader()
        for run in all_runs():
            if time.monotonic() > until:
                return
            if run.name not in done:
                writer.writerow(_measured(run, profile, Path(folder)))
                file.flush()


def _rows(results: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(results.read_text().splitlines()))


def _measured(run: RealRun, profile: Path, folder: Path) -> dict[str, Any]:
    from autotune.distributed.measuring import measure_locally

    model = distir.load_model(model_of(run.model, folder))
    workload = distir.Workload(
        model=model, batch_size=run.batch_size, precision="fp32", dropout=False
    )
    devices = run.strategy.devices
    cluster = distir.load_cluster(profile / "cluster.toml", devices)
    simulator = distir.Simulator(workload, cluster, load_stack(profile / "stack.toml"))
    plan = simulator.plan(run.strategy)
    predicted = simulator.simulate_plan(plan).metrics["iteration_seconds"]
    measured = measure_locally(plan, STEPS, WARMUP, DEADLINE_SECONDS).to_dict()
    found = {
        "run": run.name, "model": run.model, "processes": devices,
        "predicted_seconds": f"{predicted:.6g}",
        "least_seconds": f"{measured['minimum']:.6g}",
        "median_seconds": f"{measured['median']:.6g}",
        "processor_seconds": f"{measured['processor_seconds']:.6g}",
        "load": f"{os.getloadavg()[0]:.1f}",
    }  # fmt: skip
    print(found, flush=True)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
