"""What is timed, each in processes of its own so that nothing is warm that would not be."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

GPT3 = """
import json, time
from distir import Simulator, Strategy, Workload, load_cluster, load_model
cluster = load_cluster("hgx-h100", 1024)
started = time.perf_counter()
workload = Workload(model=load_model("gpt3-175B"), batch_size=1536)
simulator = Simulator(workload, cluster)
simulator.simulate(Strategy(dp=8, tp=8, pp=16, microbatches=96, schedule="gpipe"))
cold = time.perf_counter() - started
# Other schedule, same blocks: what they cost is known.
started = time.perf_counter()
simulator.simulate(Strategy(dp=8, tp=8, pp=16, microbatches=96, schedule="1f1b"))
warm = time.perf_counter() - started
print(json.dumps([cold, warm]))
"""
"""Prints seconds to simulate gpt3-175B on 1,024 devices, model building included, and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Seconds of one thing, run several times."""

    name: str
    seconds: tuple[float, ...]
    wanted_seconds: float | None = None
    """What it may take at most on two cores."""
    notes: dict[str, object] = field(default_factory=dict)

    @property
    def median_seconds(self) -> float:
        """The middle of all runs."""
        return median(self.seconds)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "name": self.name,
            "median_seconds": self.median_seconds,
            "seconds": list(self.seconds),
            "wanted_seconds": self.wanted_seconds,
            **self.notes,
        }


def measure_all(
    repeats: int, announce: Callable[[str], None] = lambda name: None
) -> list[Measurement]:
    """Every measurement, the quick ones first. `announce` is told what comes next."""
    found: list[Measurement] = []
    for name, statement in (
        ("import distir", "import distir.api"),
        ("import autotune", "import autotune.api"),
    ):
        announce(name)
        seconds = tuple(_timed(["-c", statement]) for _ in range(repeats))
        found.append(Measurement(name=name, seconds=seconds))
    announce("autotune --help")
    seconds = tuple(_timed(["-m", "autotune", "--help"]) for _ in range(repeats))
    found.append(Measurement(name="autotune --help", seconds=seconds, wanted_seconds=0.5))
    announce("gpt3-175B on 1,024 devices")
    found.extend(_measure_gpt3(repeats))
    announce("autotune run --model gpt2")
    found.extend(_measure_main_job(repeats))
    return found


def _measure_gpt3(repeats: int) -> list[Measurement]:
    runs = [json.loads(_run(["-c", GPT3])) for _ in range(repeats)]
    cold, warm = zip(*runs, strict=True)
    return [
        Measurement(name="gpt3-175B on 1,024 devices", seconds=cold, wanted_seconds=1.0),
        Measurement(name="  once its blocks are known", seconds=warm, wanted_seconds=0.02),
    ]


def _measure_main_job(repeats: int) -> list[Measurement]:
    wall: list[float] = []
    grid: list[float] = []
    strategies = 0
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            wall.append(
                _timed(
                    [
                        *("-m", "autotune", "run", "--model", "gpt2", "--json", str(report)),
                        *("--tracking-uri", f"sqlite:///{folder}/mlflow.db"),
                    ]
                )
            )
            result = json.loads(report.read_text(encoding="utf-8"))
        grid.append(result["grid"]["seconds"])
        strategies = result["grid"]["evaluated"]
    notes: dict[str, object] = {"strategies": strategies}
    return [
        Measurement(name="autotune run --model gpt2", seconds=tuple(wall), wanted_seconds=20.0),
        Measurement(
            name=f"  of which the grid of {strategies}",
            seconds=tuple(grid),
            wanted_seconds=2.0,
            notes=notes,
        ),
    ]


def _timed(arguments: Sequence[str]) -> float:
    started = time.perf_counter()
    _run(arguments)
    return time.perf_counter() - started


def _run(arguments: Sequence[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)[:60]} failed:\n{done.stderr}")
    return done.stdout
