"""The paper's comparison of two orders of a pipeline: 1F1B and first in, first out.

For every number of stages and microbatches, how much longer an iteration takes in FIFO order than
in 1F1B's, and how much more memory its fullest rank needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from distir import Cluster, Simulator, Strategy, Workload
from distir.schedules import Action, Schedule, compile_schedule


@dataclass(frozen=True, slots=True)
class OrderTimes:
    """Both orders of one pipeline: seconds of an iteration, and bytes of the fullest rank."""

    stages: int
    microbatches: int
    fifo_seconds: float
    one_f_one_b_seconds: float
    fifo_bytes: float
    one_f_one_b_bytes: float

    @property
    def slowdown(self) -> float:
        """How many times as long as 1F1B an iteration takes in FIFO order."""
        return self.fifo_seconds / self.one_f_one_b_seconds

    @property
    def more_memory(self) -> float:
        """How many times the memory of 1F1B FIFO order needs."""
        return self.fifo_bytes / self.one_f_one_b_bytes


def fifo(ranks: int, microbatches: int) -> Schedule:
    """Every rank runs what became ready first, where each pass takes one unit of time: forward
    passes of the first rank are ready from the start, and whatever else when the pass that it needs
    is done. Among what becomes ready at once, that which the lowest rank makes ready comes first.
    """
    queues = [deque[Action]() for _ in range(ranks)]
    queues[0].extend(Action(0, "F", microbatch) for microbatch in range(microbatches))
    orders: list[list[Action]] = [[] for _ in range(ranks)]
    while any(queues):
        done = [queue.popleft() for queue in queues if queue]
        for action in done:
            orders[action.stage].append(action)
            after = _made_ready(action, ranks)
            if after is not None:
                queues[after.stage].append(after)
    return Schedule(tuple(map(tuple, orders)), ranks, microbatches, "fifo")


def _made_ready(action: Action, ranks: int) -> Action | None:
    """The pass that can run when this one is done."""
    stage, microbatch = action.stage, action.microbatch
    if action.kind == "F":
        last = stage == ranks - 1
        return Action(stage, "B", microbatch) if last else Action(stage + 1, "F", microbatch)
    return Action(stage - 1, "B", microbatch) if stage else None


def compare_orders(
    workload: Workload, cluster: Cluster, stages: Sequence[int], microbatches: Sequence[int]
) -> Iterator[OrderTimes]:
    """Both orders for every number of stages and of microbatches, without replicas."""
    for ranks in stages:
        simulator = Simulator(workload, replace(cluster, num_devices=ranks))
        for pieces in microbatches:
            strategy = Strategy(pp=ranks, microbatches=pieces, schedule="1f1b")
            plan = simulator.plan(strategy)
            other = replace(plan, schedule=compile_schedule(fifo(ranks, pieces)))
            found = [simulator.simulate_plan(each).metrics for each in (other, plan)]
            seconds = [each["iteration_seconds"] for each in found]
            memory = [each["peak_memory_bytes"] for each in found]
            yield OrderTimes(ranks, pieces, *seconds, *memory)


def report(rows: Sequence[OrderTimes]) -> str:
    """Both ratios as a table: a line per number of stages, a column per number of microbatches."""
    microbatches = list(dict.fromkeys(row.microbatches for row in rows))
    found = {(row.stages, row.microbatches): row for row in rows}
    head = "".join(f"{f'm {each}':>14}" for each in microbatches)
    lines = [f"FIFO over 1F1B: time, memory\n{'stages':>6}{head}"]
    for stages in dict.fromkeys(row.stages for row in rows):
        own = [found[stages, each] for each in microbatches]
        cells = (f"{row.slowdown:.3f}, {row.more_memory:.2f}" for row in own)
        lines.append(f"{stages:>6}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)
