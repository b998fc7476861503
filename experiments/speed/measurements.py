"""What is timed, each in processes of its own so that nothing is warm that would not be.

Seconds are those of processors, children included, unless a measurement says that they are the
clock's: who shares a machine with others waits, and that is not what is measured.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from experiments.speed.grids import (
    CHUNKS,
    WANTED_MIB,
    WANTED_PER_SECOND,
    measured_apart,
    problems_here,
)

COLD = """
import json
from time import process_time
from distir import Simulator, Strategy, Workload, load_cluster, load_model
model, devices, batch, choices = json.loads({asked!r})
started = process_time()
workload = Workload(model=load_model(model), batch_size=batch)
workload.program
made = process_time()
simulator = Simulator(workload, load_cluster("dgx-a100", devices))
begun = process_time()
simulator.simulate(Strategy(**choices))
print(json.dumps([process_time() - begun, made - started]))
"""
"""Prints the CPU seconds of one strategy after imports, and of the model and its axes before."""

COLD_STRATEGIES = (
    ("gpt2", 16, 256, {"dp": 2, "tp": 2, "pp": 4, "microbatches": 32}, 0.05),
    ("gpt3-175B", 16384, 32768, {"dp": 128, "tp": 8, "pp": 16, "microbatches": 128}, 0.3),
)
"""Model, devices, batch, strategy, and what it may take at most."""

CERTIFY = """
import json
from time import process_time
from autotune.exhaustive.certified import certify
from autotune.problem import load_problem
problem = load_problem("gpt2", devices=16, space="standard")
begun = process_time()
found = certify(problem, problem.objective("throughput"))
print(json.dumps([process_time() - begun, found.evaluated / found.space_size]))
"""
"""Prints the CPU seconds of a certified search, and the fraction that it evaluates."""

MILLION = ("--model", "gpt3-175B", "--devices", "32", "--space", "full", "--jobs", "2")
"""A space of about a million strategies, in two processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One thing, measured several times."""

    name: str
    values: tuple[float, ...]
    unit: str = "s"
    wanted: float | None = None
    """The target: an upper limit, or a lower limit where `more_is_better`."""
    more_is_better: bool = False
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def median(self) -> float:
        """The middle of all."""
        return median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target."""
        if self.wanted is None:
            return None
        return self.median >= self.wanted if self.more_is_better else self.median <= self.wanted

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "median": self.median, "met": self.met}


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured."""

    repeats: int = 3
    slice: int = 1 << 18
    """Strategies of a stretch of the large space."""
    slices: int = 3
    chunks: int = CHUNKS
    """Chunks of each of several full spaces."""
    million: bool = True
    """Whether a million strategies are evaluated, which takes minutes."""


def measure_all(
    options: Options, announce: Callable[[str], None] = lambda name: None
) -> Iterator[Measurement]:
    """Every measurement, the quick ones first. `announce` is told what comes next."""
    announce("start-up")
    yield _started("autotune --help", ["--help"], 0.3, options)
    yield _started("autotune simulate --model gpt2", ["simulate", "--model", "gpt2"], 1.0, options)
    announce("one strategy")
    for case in COLD_STRATEGIES:
        yield _cold_strategy(*case, repeats=options.repeats)
    announce("certified search")
    yield from _certified(options)
    announce("imports of 20,000 nodes and of 2,000 layers")
    yield from _imports()
    announce("full spaces of eight models")
    yield from _grids(options)
    announce("gpt3-175B on 1,024 devices, full space")
    yield from _search(options)
    if options.million:
        announce("a million strategies on two cores")
        yield from _million()


def _started(name: str, arguments: Sequence[str], wanted: float, options: Options) -> Measurement:
    runs = [_run(["-m", "autotune", *arguments]) for _ in range(options.repeats)]
    return Measurement(name=name, values=tuple(run.seconds for run in runs), wanted=wanted)


def _cold_strategy(
    model: str, devices: int, batch: int, choices: dict[str, int], wanted: float, *, repeats: int
) -> Measurement:
    asked = json.dumps([model, devices, batch, choices])
    runs = [json.loads(_run(["-c", COLD.format(asked=asked)]).output) for _ in range(repeats)]
    return Measurement(
        name=f"one strategy of {model}, {devices:,} devices",
        values=tuple(cold for cold, _ in runs),
        wanted=wanted,
        notes={"model_and_axes_seconds": [model_seconds for _, model_seconds in runs]},
    )


def _certified(options: Options) -> Iterator[Measurement]:
    runs = [json.loads(_run(["-c", CERTIFY]).output) for _ in range(options.repeats)]
    seconds, parts = zip(*runs, strict=True)
    yield Measurement(name="certified search, gpt2, 2,115 strategies", values=seconds)
    yield Measurement(name="  evaluated", values=tuple(100 * part for part in parts), unit="%")


def _grids(options: Options) -> Iterator[Measurement]:
    """The pace of the grid, problem by problem, and the most memory that one of them took."""
    most = 0.0
    for problem in problems_here():
        pace = measured_apart(problem, options.chunks)
        most = max(most, pace.peak_mib)
        yield Measurement(
            name=f"grid, {problem.name}",
            values=(pace.per_second,),
            unit="/s",
            wanted=WANTED_PER_SECOND,
            more_is_better=True,
            notes=asdict(pace),
        )
    yield Measurement(name="  memory, the most", values=(most,), unit="MiB", wanted=WANTED_MIB)


def _imports() -> Iterator[Measurement]:
    """Long models, and the time per node of those over that of models a quarter as long."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "imports.json"
        sizes = ("--nodes", "5000", "20000", "--layers", "500", "2000")
        _run(["-m", "experiments.speed.imports", *sizes, "--json", str(report)])
        found: dict[str, list[tuple[int, float]]] = json.loads(report.read_text(encoding="utf-8"))
    *models, (_, layers) = found.items()
    yield Measurement(
        name=f"importing 20,000 nodes, slowest of {len(models)}",
        values=(max(cases[-1][1] for _, cases in models),),
        wanted=15.0,
        notes=found,
    )
    growth = max((slow / many) / (quick / few) for (few, quick), (many, slow) in found.values())
    yield Measurement(name="  per node, over 5,000 nodes", values=(growth,), unit="x", wanted=1.5)
    yield Measurement(name="importing 2,000 equal layers", values=(layers[-1][1],), wanted=4.0)


def _search(options: Options) -> Iterator[Measurement]:
    """The large space, beside the reference engine in the same run."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "search.json"
        sizes = ("--slice", str(options.slice), "--slices", str(options.slices))
        _run(["-m", "experiments.speed.search", *sizes, "--json", str(report)])
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    parts = ("load_seconds", "count_seconds", "enumerate_seconds")
    yield Measurement(
        name=f"counting {found['strategies']:,} strategies",
        values=(found["count_seconds"],),
        wanted=1.0,
    )
    yield Measurement(
        name="cold start of their search",
        values=(sum(found[part] for part in parts),),
        wanted=2.0,
        notes={part: found[part] for part in parts},
    )
    warm = found["slices"][1:] or found["slices"]
    rates = tuple(part["strategies"] / part["seconds"] for part in warm)
    yield Measurement(
        name="strategies per core, warm",
        values=rates,
        unit="/s",
        wanted=10_000,
        more_is_better=True,
        notes={"slices": found["slices"]},
    )
    reference = found["reference_engine_seconds_each"]
    ratios = tuple(rate * reference for rate in rates)
    yield Measurement(name="  over the reference engine", values=ratios, unit="x")
    yield Measurement(name="  memory", values=(found["peak_memory_mib"],), unit="MiB")


def _million() -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        report, table = (str(Path(folder) / name) for name in ("grid.json", "all.csv"))
        files = ("--json", report, "--table", table)
        run = _run(["-m", "autotune", "grid", *MILLION, *files])
        evaluated = json.loads(Path(report).read_text(encoding="utf-8"))["evaluated"]
    yield Measurement(
        name=f"{evaluated:,} strategies, two processes",
        values=(run.clock_seconds,),
        unit="s, clock",
        wanted=180.0,
        notes={"cpu_seconds": run.seconds, "load": os.getloadavg()},
    )
    yield Measurement(
        name="  memory of all processes", values=(run.peak_mib,), unit="MiB", wanted=1024.0
    )


# --- processes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    output: str
    seconds: float
    clock_seconds: float
    peak_mib: float
    """Peak memory of the process and its children together, where the system reports it."""


def _run(arguments: Sequence[str]) -> _Run:
    before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    peak = 0.0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([sys.executable, *arguments], stdout=out, stderr=errors)
        while True:
            try:
                process.wait(0.02 if time.perf_counter() - clock < 2 else 0.5)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, sum(map(_held_mib, _descendants(process.pid))))
        seconds = time.perf_counter() - clock
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)[:60]} failed:\n{errors.read()}")
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return _Run(out.read(), used, seconds, peak)


def _descendants(pid: int) -> list[int]:
    """A process and those that it started, where the system tells (Linux)."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        found += [each for child in children for each in _descendants(int(child))]
    return found


def _held_mib(pid: int) -> float:
    """Memory of a process in MiB; shared pages are divided among those who share them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)
