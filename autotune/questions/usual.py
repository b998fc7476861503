"""What people would try without a search: the usual defaults of frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from autotune.problem import Problem
from distir.factoring import divisors, microbatch_counts
from distir.strategy import Strategy

RECOMPUTED = ("none", "selective", "full")
"""Recomputation policies, the cheapest first."""
MOST_TRIED = 100
"""Strategies that are simulated for one rule."""


def usual_plans(problem: Problem, node: int) -> dict[str, Strategy]:
    """Usual defaults for a problem by name, as far as they can be applied; of each rule the first
    plan that fits, else the last that was tried. `node` is the number of devices in a node."""
    rules = {
        "fully sharded data parallelism": _fully_sharded(problem),
        "Megatron's rule of thumb": _model_parallel_as_needed(problem, node),
    }
    found = {name: _first_that_fits(problem, tried) for name, tried in rules.items()}
    return {name: strategy for name, strategy in found.items() if strategy is not None}


def _fully_sharded(problem: Problem) -> Iterator[Strategy]:
    """ZeRO 3 over all devices; smaller microbatches, then recomputation, where that does not fit
    (Zhao et al. 2023, PyTorch FSDP)."""
    share = problem.batch_size // problem.devices
    zero = 3 if problem.mode == "training" and problem.devices > 1 else 0
    for policy, pieces in product(RECOMPUTED, microbatch_counts(share) if share else ()):
        yield Strategy(dp=problem.devices, zero=zero, microbatches=pieces, recompute=policy)


def _model_parallel_as_needed(problem: Problem, node: int) -> Iterator[Strategy]:
    """Tensor parallelism within a node, then pipeline parallelism, just as much as is needed to
    fit; the rest is data parallelism (Narayanan et al. 2021, takeaways 1 and 2)."""
    devices, trains = problem.devices, problem.mode == "training"
    within = [tp for tp in divisors(node) if devices % tp == 0]
    widest = max(within, default=1)
    degrees = [(tp, 1) for tp in within]
    degrees += [(widest, pp) for pp in divisors(devices // widest) if pp > 1]
    for tp, pp in degrees:
        dp = devices // (tp * pp)
        microbatches = microbatch_counts(max(1, problem.batch_size // dp))[-1]
        made: dict[str, Any] = {"dp": dp, "tp": tp, "pp": pp, "microbatches": microbatches}
        if trains:
            made |= {"zero": 1 if dp > 1 else 0, "recompute": "selective"}
        yield Strategy(**made, sequence_parallel=tp > 1)
        yield Strategy(**made)


def _first_that_fits(problem: Problem, tried: Iterator[Strategy]) -> Strategy | None:
    last: Strategy | None = None
    count = 0
    for strategy in tried:
        if problem.space.impossible(strategy) is not None or count >= MOST_TRIED:
            continue
        last, count = strategy, count + 1
        if problem.simulate(strategy).feasible:
            return strategy
    return last
