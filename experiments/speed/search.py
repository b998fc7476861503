"""How many strategies a second: `python -m experiments.speed.search`.

Slices of a space, evaluated as `autotune grid` evaluates them, beside strategies drawn from it that
go one by one through the fast engine and the reference engine, in one run: CPU seconds per
strategy, and ratios. The first slice also makes what the others share (`cold`).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from autotune.problem import load_problem
from distir.files import write_text
from distir.simulation.reference import simulate_reference
from distir.simulation.simulator import Simulator
from search_spaces.columns import SpaceColumns

FUNCTIONS = 25
"""Lines of the profile that are kept."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, writes JSON and the profile."""
    parser = argparse.ArgumentParser(prog="experiments.speed.search", description=__doc__)
    parser.add_argument("--model", default="gpt3-175B")
    parser.add_argument("--cluster", default="dgx-a100")
    parser.add_argument("--devices", type=int, default=1024)
    parser.add_argument("--space", default="full")
    parser.add_argument("--slice", type=int, default=1 << 18, help="strategies of a slice")
    parser.add_argument("--slices", type=int, default=3, help="how many, spread over the space")
    parser.add_argument("--alone", type=int, default=20, help="strategies for the fast engine")
    parser.add_argument("--reference", type=int, default=1, help="strategies for the reference")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write where time goes there")
    found = measure(parser.parse_args(argv))
    print(table(found))
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """CPU seconds by what was done."""
    found: dict[str, Any] = {"model": options.model, "devices": options.devices}
    problem, found["load_seconds"] = timed(
        lambda: load_problem(
            options.model, options.cluster, devices=options.devices, space=options.space
        )
    )
    found["strategies"], found["count_seconds"] = timed(problem.space.count)
    columns, found["enumerate_seconds"] = timed(lambda: SpaceColumns(problem.space))
    simulator = problem.simulator
    assert isinstance(simulator, Simulator)
    profile = cProfile.Profile()
    slices: list[dict[str, float]] = []
    for number in range(options.slices):
        first = number * max(0, len(columns) - options.slice) // max(1, options.slices - 1)
        _, strategies = columns.taken(first, options.slice)
        if options.profile and number == options.slices - 1:
            profile.enable()
        _, seconds = timed(lambda chosen=strategies: simulator.simulate_many(chosen))
        profile.disable()
        slices.append({"strategies": len(strategies), "seconds": seconds})
        print(f"… {len(strategies)} strategies in {seconds:.1f} s", file=sys.stderr)
    found["slices"] = slices
    unit = 1 if sys.platform == "darwin" else 1024
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    found["peak_memory_mib"] = held / 2**20
    chance = random.Random(0)
    alone = problem.space.samples(chance, options.alone)
    _, seconds = timed(lambda: [simulator.simulate(each) for each in alone])
    found["fast_engine_seconds_each"] = seconds / len(alone)
    quick = sorted(alone, key=lambda each: each.microbatches * each.pp)[: options.reference]
    plans = [simulator.plan(each) for each in quick]
    _, seconds = timed(lambda: [simulate_reference(plan, simulator.cost) for plan in plans])
    found["reference_engine_seconds_each"] = seconds / len(plans) if plans else 0.0
    if options.json:
        write_text(options.json, json.dumps(found, indent=2) + "\n")
    if options.profile:
        with options.profile.open("w", encoding="utf-8") as file:
            pstats.Stats(profile, stream=file).sort_stats("cumtime").print_stats(FUNCTIONS)
    return found


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result of the call, and the CPU seconds it took."""
    started = process_time()
    result = work()
    return result, process_time() - started


def table(found: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [
        f"{found['model']} on {found['devices']} devices: {found['strategies']:,} strategies",
        f"CPU seconds: model {found['load_seconds']:.2f}, counting {found['count_seconds']:.2f}",
        f"enumerating {found['enumerate_seconds']:.2f}",
        f"{'':34}{'strategies/s':>14}{'each':>12}{'ratio':>10}",
    ]
    reference = found["reference_engine_seconds_each"]

    def line(name: str, each: float) -> str:
        ratio = f"{reference / each:,.0f}" if reference else ""
        return f"{name:34}{1 / each:14,.1f}{each * 1e6:9,.0f} us{ratio:>10}"

    for number, part in enumerate(found["slices"]):
        name = f"slice of {part['strategies']:,.0f}{' (cold)' if not number else ''}"
        lines.append(line(name, part["seconds"] / part["strategies"]))
    lines.append(line("fast engine, one by one", found["fast_engine_seconds_each"]))
    if reference:
        lines.append(line("reference engine, one by one", reference))
    lines.append(f"peak memory {found['peak_memory_mib']:.0f} MiB")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
