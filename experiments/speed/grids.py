"""How many strategies a second the grid evaluates: `python -m experiments.speed.grids`.

Chunks of full spaces as the grid cuts them, so that points share programs as they do there, evenly
spread over the space, since what a point costs depends on its schedule and on how many others have
its program. The first of them finds what all share, such as compiled schedules: the pace is that of
a grid whose other chunks are like the others. Seconds are those of the processor; memory is the
most that the process held. Every problem has a process of its own.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

from autotune.exhaustive.chunks import evaluated_chunk, stretches
from autotune.exhaustive.collect import Collector
from autotune.exhaustive.grid import TOP
from autotune.problem import load_problem
from distir.files import write_text
from search_spaces.columns import SpaceColumns

EXPORTED = "../shared/models/gpt2.onnx"
"""A model from a file, left out where there is none."""

WANTED_PER_SECOND = 8000
WANTED_MIB = 1024

CHUNKS = 3
"""Chunks of a space that are evaluated."""


@dataclass(frozen=True, slots=True)
class GridProblem:
    """A problem whose space is evaluated."""

    model: str
    cluster: str
    devices: int
    sequence_length: int | None = None
    space: str = "full"

    @property
    def name(self) -> str:
        """For people."""
        return f"{Path(self.model).name}, {self.devices:,} devices"


PROBLEMS = (
    GridProblem("llama3-70b", "hgx-h100", 64, 4096),
    GridProblem("gpt3-175B", "dgx-a100", 32),
    GridProblem("gpt3-175B", "dgx-a100", 1024),
    GridProblem("mixtral-8x7b", "hgx-h100", 64),
    GridProblem("t5-11b", "dgx-a100", 32),
    GridProblem("vit-h", "dgx-a100", 16),
    GridProblem(EXPORTED, "dgx-a100", 16),
    GridProblem("deepseek-v3", "hgx-h100", 512),
)
"""Dense models and mixtures, an encoder–decoder, an encoder and a file, on few devices and many."""


@dataclass(frozen=True, slots=True)
class GridPace:
    """How fast a part of a space was evaluated."""

    problem: GridProblem
    space_size: int
    evaluated: int
    first: int
    """Strategies of the first chunk, which finds what all share."""
    first_seconds: float
    """CPU seconds of the first chunk, without those of reading the model and counting the space."""
    seconds: float
    """CPU seconds of all chunks."""
    peak_mib: float

    @property
    def per_second(self) -> float:
        """Strategies per CPU second of a grid of which all chunks after the first are like those
        that were evaluated."""
        others = self.evaluated - self.first
        if not others:
            return self.evaluated / self.seconds
        each = (self.seconds - self.first_seconds) / others
        return self.space_size / (self.first_seconds + (self.space_size - self.first) * each)


def problems_here() -> tuple[GridProblem, ...]:
    """The problems whose models there are."""
    return tuple(each for each in PROBLEMS if each.model != EXPORTED or Path(EXPORTED).exists())


def spread_out(chunks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """All chunks `(first, size)` of a space, in an order in which the first of them, however many,
    lie far apart: those that hold the strategies at a half, a quarter, three quarters, an eighth of
    the space, and so on (van der Corput)."""
    size = sum(count for _, count in chunks)
    starts = [first for first, _ in chunks]
    found: dict[int, tuple[int, int]] = {}
    for number in range(1, 4 * len(chunks)):
        digits = enumerate(format(number, "b")[::-1])
        share = sum(int(digit) / 2 ** (at + 1) for at, digit in digits)
        place = bisect_right(starts, int(share * size)) - 1
        found.setdefault(place, chunks[place])
    return [*found.values(), *(each for n, each in enumerate(chunks) if n not in found)]


def measured(
    asked: GridProblem, chunks: int = CHUNKS, profile: cProfile.Profile | None = None
) -> GridPace:
    """Evaluates chunks of a space in this process; 0 chunks: all of them."""
    problem = load_problem(
        asked.model,
        asked.cluster,
        devices=asked.devices,
        sequence_length=asked.sequence_length,
        space=asked.space,
    )
    objective = problem.objective("throughput")
    table = SpaceColumns(problem.space)
    every = list(stretches(table.borders))
    if chunks:
        every = spread_out(every)[:chunks]
    found = Collector(objective, TOP)
    if profile is not None:
        profile.enable()
    seconds: list[float] = []
    for stretch in every:
        begun = process_time()
        found.add(evaluated_chunk(objective, *table.taken(*stretch)))
        seconds.append(process_time() - begun)
    if profile is not None:
        profile.disable()
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    first = every[0][1]
    return GridPace(asked, len(table), found.evaluated, first, seconds[0], sum(seconds), peak)


def measured_apart(asked: GridProblem, chunks: int = CHUNKS) -> GridPace:
    """`measured` in a process of its own."""
    arguments = ["--only", json.dumps(asdict(asked)), "--chunks", str(chunks)]
    command = [sys.executable, "-m", "experiments.speed.grids", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"the grid of {asked.name} failed:\n{run.stderr}")
    found: dict[str, Any] = json.loads(run.stdout)
    found["problem"] = asked
    return GridPace(**found)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, writes JSON."""
    parser = argparse.ArgumentParser(prog="experiments.speed.grids", description=__doc__)
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="of each space; 0: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--only", metavar="JSON", help="one problem, in this process; prints JSON")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="with --only: where time goes")
    options = parser.parse_args(argv)
    if options.only is not None:
        path: Path | None = options.profile
        profile = None if path is None else cProfile.Profile()
        found = measured(GridProblem(**json.loads(options.only)), options.chunks, profile)
        if profile is not None and path is not None:
            with path.open("w", encoding="utf-8") as file:
                pstats.Stats(profile, stream=file).sort_stats("tottime").print_stats(60)
        print(json.dumps(asdict(found)))
        return 0
    print(f"{'':28}{'strategies':>12}{'evaluated':>12}{'a second':>10}{'MiB':>8}")
    paces: list[GridPace] = []
    for each in problems_here():
        paces.append(pace := measured_apart(each, options.chunks))
        numbers = f"{pace.space_size:12,}{pace.evaluated:12,}{pace.per_second:10,.0f}"
        print(f"{each.name:28}{numbers}{pace.peak_mib:8,.0f}", flush=True)
    if options.json is not None:
        write_text(options.json, json.dumps([asdict(pace) for pace in paces], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
