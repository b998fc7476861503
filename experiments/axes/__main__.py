"""How soon Megatron's plan, or a faster one, is found among generated axis lists, without hints.

    python -m experiments.axes --json -                     # every family, 100 seeds
    python -m experiments.axes ../shared/models/gpt2.onnx --seeds 20 --samplers uct,random

Of each model all lists of `tp` that its axes make are searched, for every degree of `tp` on the
devices; the rest is data parallelism without ZeRO. No strategy is named in the space. Devices have
so little memory that pure data parallelism does not fit: `ROOM` of what it takes. An *evaluation*
is one placed program simulated, and a search has found the target when a plan of its own is as fast
as the fastest that fits of tensor parallelism with and without sequence parallelism. Every plan is
simulated once, so that searches of other seeds look their costs up.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import distir
from autotune.samplers import load_sampler
from autotune.samplers.sampler import Outcome, tell
from distir import Simulator, Strategy, Workload
from distir.execute.verify import Verifier
from distir.factoring import divisors
from distir.files import write_text
from distir.metrics import iteration_seconds, peak_memory_bytes
from distir.plan.axis_lists import AxisLists
from search_spaces import listed_space

MODELS = ("gpt2", "llama3.2-1b", "bert-base", "t5-small", "vit-b", "deepseek-v2-lite")
EXPORTS = Path(__file__).resolve().parents[2].parent / "shared" / "models"
"""Real exports, where a checkout has them beside it."""
SAMPLERS = ("uct", "reinforce", "random")
CLUSTER, DEVICES, BATCH = "dgx-a100", 8, 64
ROOM = 0.9
"""Memory of a device over what pure data parallelism holds."""
EQUAL = 1e-9
"""Times that differ by less, relatively, are equal."""


@dataclass(frozen=True)
class Case:
    """A model with all its plans, and what of them is a target."""

    model: str
    workload: Workload
    strategies: Sequence[Strategy]
    seconds: Mapping[Strategy, float]
    size: Mapping[Strategy, float]
    limit: float
    """Bytes that a device has."""
    named: Strategy | None
    target: float
    """Seconds of the fastest named plan that fits; infinite if none does."""
    placing_seconds: float
    simulating_seconds: float

    def fits(self, strategy: Strategy) -> bool:
        """Whether a plan fits in memory."""
        return self.size[strategy] <= self.limit

    @property
    def best(self) -> Strategy:
        """The fastest plan that fits."""
        return min(filter(self.fits, self.strategies), key=self.seconds.__getitem__)

    def to_dict(self, verified: bool | None) -> dict[str, Any]:
        """Plain JSON values."""
        best = self.best
        good = [s for s in self.strategies if self.fits(s) and self.reaches(s)]
        return {
            "plans": len(self.strategies),
            "plans_that_fit": sum(map(self.fits, self.strategies)),
            "plans_as_fast_as_named": len(good),
            "named": None if self.named is None else self.named.label,
            "named_seconds": self.target,
            "best": best.label,
            "best_seconds": self.seconds[best],
            "gain": self.target / self.seconds[best] - 1,
            "best_verified": verified,
            "lists_placed_per_second": len(self.strategies) / self.placing_seconds,
            "lists_simulated_per_second": len(self.strategies) / self.simulating_seconds,
        }

    def reaches(self, strategy: Strategy) -> bool:
        """Whether a plan is as fast as the target."""
        return self.seconds[strategy] <= self.target * (1 + EQUAL)


def case_of(model: str) -> Case:
    """Places and simulates all plans of a model."""
    workload = Workload(model=distir.load_model(model), batch_size=BATCH)
    simulator = Simulator(workload, distir.load_cluster(CLUSTER, DEVICES))
    lists = AxisLists(simulator.planner)
    whole = Strategy(dp=DEVICES)
    meshes = [replace(whole, dp=DEVICES // tp, tp=tp) for tp in divisors(DEVICES) if tp > 1]
    clock = time.perf_counter()
    found = [replace(mesh, axes=text) for mesh in meshes for text in lists.generated(mesh, ("tp",))]
    placed = time.perf_counter() - clock
    strategies = [whole, *found]
    clock = time.perf_counter()
    metrics = [simulator.simulate(each).metrics for each in strategies]
    simulated = time.perf_counter() - clock
    seconds, size = (
        {s: own[metric.name] for s, own in zip(strategies, metrics, strict=True)}
        for metric in (iteration_seconds, peak_memory_bytes)
    )
    limit = ROOM * size[whole]
    named: dict[Strategy, float] = {}
    for mesh in meshes:
        for each in (mesh, replace(mesh, sequence_parallel=True)):
            if simulator.explain(each) is None:
                told = simulator.simulate(each).metrics
                if told[peak_memory_bytes.name] <= limit:
                    named[each] = told[iteration_seconds.name]
    best = min(named, key=named.__getitem__) if named else None
    target = np.inf if best is None else named[best]
    name, took = Path(model).name, (placed, simulated)
    return Case(name, workload, strategies, seconds, size, limit, best, target, *took)


def evaluations(case: Case, sampler: str, seed: int, most: int) -> tuple[int | None, float]:
    """The number of evaluations until the target was reached, None if it was not, and the seconds
    of the best plan found."""
    search = load_sampler(sampler, listed_space(case.strategies), seed)
    reached, best = None, np.inf
    for number in range(1, most + 1):
        strategy = search.ask()
        if strategy is None:
            break
        over = max(0.0, case.size[strategy] / case.limit - 1)
        told = {peak_memory_bytes.name: case.size[strategy]}
        tell(search, Outcome(strategy, case.seconds[strategy], over, told, None))
        if not over:
            best = min(best, case.seconds[strategy])
            if reached is None and case.reaches(strategy):
                reached = number
    return reached, best


def standing(case: Case, sampler: str, seeds: int, most: int) -> dict[str, Any]:
    """How soon and how often a sampler reaches the target."""
    found = [evaluations(case, sampler, seed, most) for seed in range(seeds)]
    reached = sorted(number for number, _ in found if number is not None)
    regrets = [seconds / case.seconds[case.best] - 1 for _, seconds in found]
    return {
        "reached": len(reached),
        "seeds": seeds,
        "evaluations_median": reached[len(reached) // 2] if reached else None,
        "evaluations_most": reached[-1] if reached else None,
        "regret_median": _finite(float(np.median(regrets))),
        "regret_p95": _finite(float(np.quantile(regrets, 0.95, method="higher"))),
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table, or writes JSON; the exit status is 1 if a winner computes other numbers."""
    parser = argparse.ArgumentParser(prog="experiments.axes", description=__doc__)
    parser.add_argument("models", nargs="*", help=f"default: {', '.join(MODELS)}, and exports")
    parser.add_argument("--seeds", type=int, default=100, metavar="N")
    parser.add_argument("--evaluations", type=int, default=100, metavar="N")
    parser.add_argument("--samplers", default=",".join(SAMPLERS), metavar="A,B")
    parser.add_argument("--no-verify", action="store_true", help="execute no winner")
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE, or to stdout for -")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {}
    for model in options.models or _default_models():
        case = case_of(model)
        verified = None if options.no_verify else Verifier(case.workload).verify(case.best).passed
        told = case.to_dict(verified)
        told["samplers"] = {
            name: standing(case, name, options.seeds, options.evaluations)
            for name in options.samplers.split(",")
        }
        found[case.model] = told
        if options.json != "-":
            print("\n".join(_lines(case.model, told)), flush=True)
    if options.json:
        text = json.dumps(found, indent=2)
        print(text) if options.json == "-" else write_text(options.json, text + "\n")
    return 1 if any(each["best_verified"] is False for each in found.values()) else 0


def _default_models() -> Iterator[str]:
    yield from MODELS
    yield from (str(path) for path in sorted(EXPORTS.glob("*.onnx")))


def _lines(model: str, told: Mapping[str, Any]) -> Iterator[str]:
    checked = {None: "", True: ", executed", False: ", WRONG NUMBERS"}[told["best_verified"]]
    yield (
        f"{model}: {told['plans']:,} plans, {told['plans_that_fit']:,} fit, "
        f"{told['plans_as_fast_as_named']} as fast as {told['named']}"
    )
    yield f"  best: {told['best']}, {told['gain']:.2%} faster{checked}"
    for name, each in told["samplers"].items():
        yield (
            f"  {name:10} {each['reached']:3} of {each['seeds']}, evaluations: median "
            f"{each['evaluations_median']}, most {each['evaluations_most']}"
        )


if __name__ == "__main__":
    sys.exit(main())
