"""`torchrun … -m autotune.measure FILE`: measures a plan with the processes that torchrun started.

Every process reads the plan; that of rank 0 writes what all have measured, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from autotune.cli.options import add_where_option, positive, seconds
from autotune.statement import DEFAULT_CLUSTER, DEFAULT_STACK
from distir.errors import DistirError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="autotune.measure", description=__doc__)
    parser.add_argument("plan", metavar="FILE", help="a plan, as `autotune simulate --plan` writes")
    parser.add_argument("--steps", type=positive, default=10, metavar="N")
    parser.add_argument("--warmup", type=positive, default=2, metavar="N")
    parser.add_argument("--deadline", type=seconds, default=600.0, metavar="SECONDS")
    parser.add_argument(
        "--cluster", default=DEFAULT_CLUSTER, help="simulated beside it: a name or a file"
    )
    parser.add_argument(
        "--stack", default=DEFAULT_STACK, help="simulated beside it: a name or a file"
    )
    add_where_option(parser, "cpu", "PyTorch in the plan's precision, or numpy in float64")
    parser.add_argument("--json", metavar="FILE", help="write to a file instead of stdout")
    arguments = parser.parse_args(argv)
    try:
        _measure(arguments)
    except DistirError as error:
        sys.stderr.write(f"autotune.measure: error: {error}\n")
        return 2
    return 0


def _measure(arguments: argparse.Namespace) -> None:
    import distir
    from autotune.distributed.backend import load_torch
    from autotune.distributed.clock import clock_of
    from autotune.distributed.computing import carriers_on, check_devices, computing_on
    from autotune.distributed.measuring import Measurement, measure_steps, random_step
    from autotune.distributed.messenger import Messenger
    from distir.cost import load_stack
    from distir.files import write_text
    from distir.plan_text import load_plan

    load_torch()
    process, processes = (_number(name) for name in ("RANK", "WORLD_SIZE"))
    local = _number("LOCAL_RANK") if arguments.on == "cuda" else 0
    plan = load_plan(arguments.plan)
    if plan.strategy.devices != processes:
        raise DistirError(
            f"the plan is for {plan.strategy.devices} devices, but there are {processes} "
            "processes; state how many each node starts with torchrun --nproc-per-node"
        )
    check_devices(arguments.on, local + 1)
    cluster = distir.load_cluster(arguments.cluster, processes)
    stack = load_stack(arguments.stack)
    simulated = distir.Simulator(plan.workload, cluster, stack).simulate_plan(plan).metrics
    computing = computing_on(arguments.on, local, tf32=plan.workload.precision == "tf32")
    messenger = Messenger(process, processes, carriers=carriers_on(arguments.on))
    messenger.clock = clock_of(arguments.on)
    messenger.join("env://", arguments.deadline)
    times = measure_steps(
        plan, random_step(plan), messenger, arguments.steps, arguments.warmup, computing
    )
    every = messenger.gather(times)
    messenger.leave()
    if every is None:
        return
    measured = Measurement(every, arguments.on)
    found = {
        "model": plan.workload.model.name,
        "cluster": cluster.name,
        "stack": stack.name,
        "batch_size": plan.workload.batch_size,
        "strategy": plan.strategy.to_dict(),
        "simulated": {name: simulated[name] for name in ("iteration_seconds", "peak_memory_bytes")},
        "measured": measured.to_dict(),
        "environment": measured.environment(),
    }
    text = json.dumps(found, indent=2) + "\n"
    if arguments.json is None:
        sys.stdout.write(text)
    else:
        write_text(arguments.json, text)


def _number(name: str) -> int:
    """A number that torchrun has put into the environment."""
    value = os.environ.get(name, "")
    if not value.isdigit():
        raise DistirError(
            f"${name} is not set; start this with torchrun --nproc-per-node N -m autotune.measure "
            "FILE, or use autotune measure --plan FILE on one machine"
        )
    return int(value)


if __name__ == "__main__":
    sys.exit(main())
