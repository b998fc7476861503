"""What axis lists that were found gain over the best named plan, by kind of model.

    python -m experiments.axes.gains
    python -m experiments.axes.gains --kinds "U-net,mixture" --json -

Both searches evaluate as many plans. The named space has ZeRO 0 and 3, sequence parallelism and up
to two pipeline ranks; the other one has generated lists of `tp` beside these. Every winner is
executed, and what both communicate explains the gain.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.problem import Problem
from autotune.study.trial import Trial
from distir import Simulator
from distir.execute.verify import Verifier
from distir.files import write_text
from distir.plan.known_lists import known_lists
from distir.simulation.communication import collectives_of
from experiments.axes.cases import SPACE
from experiments.axes.problems import best_with_and_without_lists, gain, stated

KINDS: Mapping[str, dict[str, Any]] = {
    "GPT-2": stated("gpt2", batch_size=64),
    "LLaMA": stated("llama3.2-1b", batch_size=64, sequence_length=2048),
    "wide embedding": stated("wide embedding", batch_size=256),
    "long sequence": stated("long sequence", batch_size=8),
    "small batch": stated("gpt2-medium", batch_size=2),
    "U-net": stated("U-net", batch_size=16),
    "small batch of a U-net": stated("U-net", batch_size=2),
    "mixture": stated("mixture", batch_size=16),
    "T5": stated("small T5", batch_size=32),
    "inference at batch 1": stated("gpt2-medium", batch_size=1, mode="inference"),
    "inference of a U-net at batch 1": stated("U-net", batch_size=1, mode="inference"),
}
CLUSTER, DEVICES, TRIALS = "dgx-a100", 8, 50


def communicated(problem: Problem, trial: Trial) -> list[dict[str, Any]]:
    """What a device communicates in a step of a plan."""
    simulator = problem.simulator
    assert isinstance(simulator, Simulator)
    result, step = simulator.simulate(trial.strategy), simulator.step(trial.strategy)
    return [each.to_dict() for each in collectives_of(step, result)]


def compared(kind: str, seed: int, trials: int) -> dict[str, Any]:
    """The best named plan and the best plan with lists found of one kind of model."""
    clock = time.perf_counter()
    statement = {**KINDS[kind], "cluster": CLUSTER, "devices": DEVICES}
    found: dict[str, Any] = {"kind": kind, "gain": None}
    both = best_with_and_without_lists(SPACE, seed, trials, statement)
    for name, (problem, trial) in zip(("named", "generated"), both, strict=True):
        if trial is None:
            found[name] = None
            continue
        simulator = problem.simulator
        assert isinstance(simulator, Simulator)
        known = known_lists(simulator.planner, trial.strategy)
        found[name] = {
            "label": trial.label,
            "known": list(known.values()),
            "iteration_seconds": trial.metric("iteration_seconds"),
            "collectives": communicated(problem, trial),
            "verified": Verifier(simulator.workload).verify(trial.strategy).passed,
        }
    (_, named), (_, generated) = both
    if named is not None and generated is not None:
        found["gain"] = gain(named, generated)
    found["took_seconds"] = time.perf_counter() - clock
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table, or writes JSON; the exit status is 1 if a winner computes other numbers."""
    parser = argparse.ArgumentParser(prog="experiments.axes.gains", description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="A,B")
    parser.add_argument("--trials", type=int, default=TRIALS, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE, or to stdout for -")
    options = parser.parse_args(argv)
    found: list[dict[str, Any]] = []
    for kind in options.kinds.split(","):
        found.append(compared(kind, options.seed, options.trials))
        if options.json != "-":
            print(_told(found[-1]), flush=True)
    if options.json:
        text = json.dumps(found, indent=2)
        print(text) if options.json == "-" else write_text(options.json, text + "\n")
    plans = [each[name] for each in found for name in ("named", "generated")]
    return 1 if any(plan and not plan["verified"] for plan in plans) else 0


def _told(found: Mapping[str, Any]) -> str:
    rows = [
        f"{found['kind']}: "
        + ("nothing fits" if found["gain"] is None else f"{found['gain']:+.2%}")
    ]
    for name in ("named", "generated"):
        plan = found[name]
        if plan is None:
            continue
        known = f" ({', '.join(plan['known'])})" if plan["known"] else ""
        checked = "executed" if plan["verified"] else "WRONG NUMBERS"
        took = f"{plan['iteration_seconds'] * 1e3:.2f} ms, {checked}"
        rows.append(f"  {name:9} {plan['label']}{known}, {took}")
        rows += [
            f"    {each['mesh_axis']} {each['kind']}: {each['count']:.0f}, "
            f"{each['bytes'] / 2**20:,.1f} MiB, {each['exposed_seconds'] * 1e3:.2f} ms exposed"
            for each in plan["collectives"]
        ]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
