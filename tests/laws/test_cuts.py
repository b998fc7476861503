"""Where stages begin: no cut nearby makes an iteration much shorter, and none makes a plan not
fit that fits with balanced stages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import load_stack
from distir.errors import StrategyError
from distir.simulation.cutting.one import StageCut
from distir.simulation.cutting.refine import KnownCuts
from tests.slow import shares

MODELS = ("t5-small", "vit-b", "gpt2", "bert-base")

MOST = 0.03
"""By more than this, no cut nearby is faster."""

USUAL = 0.01
"""By more than this, few cuts nearby are faster."""

Cut = tuple[int, ...]


@lru_cache(maxsize=64)
def workload(name: str, stack: str, batch_size: int) -> Workload:
    model = load_model(name, attention=load_stack(stack).attention)
    return Workload(model=model, batch_size=batch_size)


@lru_cache(maxsize=256)
def simulator(name: str, stack: str, devices: int, batch_size: int = 192) -> Simulator:
    cluster = load_cluster("dgx-a100", devices)
    return Simulator(workload(name, stack, batch_size), cluster, load_stack(stack))


def strategies(rng: random.Random) -> Iterator[tuple[str, str, Strategy]]:
    """Models, software stacks and pipelined strategies."""
    while True:
        pp, dp, tp = rng.choice([2, 2, 3, 4]), rng.choice([1, 2, 4]), rng.choice([1, 2])
        schedule, chunks = rng.choice(
            [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2)]
        )
        yield (
            rng.choice(MODELS),
            rng.choice(["fsdp-compiled", "megatron"]),
            Strategy(
                dp=dp,
                tp=tp,
                pp=pp,
                microbatches=2 * pp,
                schedule=schedule,
                chunks=chunks,
                zero=rng.choice([0, 0, 1, 2, 3]) if dp > 1 else 0,
                recompute=rng.choice(["none", "selective", "full"]),
            ),
        )


def nearby(cut: Cut, blocks: int, rng: random.Random) -> list[Cut]:
    """Cuts of which borders are up to two blocks away: all at once where there are few."""
    steps = (-2, -1, 0, 1, 2)
    if len(cut) <= 3:
        every = {
            tuple(a + d for a, d in zip(cut, moved, strict=True))
            for moved in product(steps, repeat=len(cut))
        }
    else:
        every = {(*cut[:n], cut[n] + d, *cut[n + 1 :]) for n in range(len(cut)) for d in steps}
    found = sorted(c for c in every if c[0] > 0 and c[-1] < blocks and sorted({*c}) == [*c])
    rng.shuffle(found)
    return found[:24]


def residue(own: Simulator, strategy: Strategy, rng: random.Random) -> float | None:
    """By what fraction the strategy takes longer than with the best cut nearby; None if it does not
    fit."""
    result = own.simulate(strategy)
    if not result.feasible:
        return None
    cut = tuple(stage.blocks[0] for stage in own.plan(strategy).stages)[1:]
    tried = [
        own.simulate_plan(own.planner.plan(strategy, each))
        for each in nearby(cut, own.workload.num_blocks, rng)
    ]
    seconds = result.metrics["iteration_seconds"]
    others = [each.metrics["iteration_seconds"] for each in tried if each.feasible]
    return seconds / min([seconds, *others]) - 1


@shares(12, seconds=8)
def test_no_cut_nearby_is_much_faster(share: int) -> None:
    rng = random.Random(share)
    found: list[float] = []
    for name, stack, strategy in strategies(rng):
        try:
            left = residue(simulator(name, stack, strategy.devices), strategy, rng)
        except StrategyError:
            continue
        if left is not None:
            assert left <= MOST, (name, stack, strategy.label)
            found.append(left)
        if len(found) == 12:
            break
    assert sum(left > USUAL for left in found) <= 3


@shares(4, seconds=4)
def test_what_fits_with_balanced_stages_fits_with_refined_ones(share: int) -> None:
    """And takes hardly longer, if it does not take less."""
    rng = random.Random(share)
    seen, shorter = 0, 0
    for name, stack, strategy in strategies(rng):
        own = simulator(name, stack, strategy.devices)
        if strategy.chunks == 1 or own.explain(strategy):
            continue
        whole = own.planner.plan(strategy, ())
        room = float(own.cost.room_bytes(strategy.communicators))
        programs, pricing = own.planner.model_programs(strategy), own.pricing(whole)
        flight = whole.schedule.peak_in_flight
        cut = StageCut(own.stages, programs, flight, strategy.chunks, pricing, room)
        balanced = cut.balanced(KnownCuts(own.cost.host_bound_seconds, training=True))
        before = own.simulate_plan(own.planner.plan(strategy, balanced.bounds[1:-1]))
        after = own.simulate(strategy)
        assert after.feasible or not before.feasible
        if before.feasible:
            seconds = before.metrics["iteration_seconds"]
            assert after.metrics["iteration_seconds"] <= seconds * (1 + MOST)
            shorter += after.metrics["iteration_seconds"] < seconds * (1 - USUAL)
        seen += 1
        if seen == 20:
            break
    assert shorter


@shares(6, seconds=4)
def test_twice_the_batch_never_takes_less_time(share: int) -> None:
    """With microbatches that are twice as large, and stages that begin at the same blocks. Where
    stages begin as either is cut, it may take less by what cuts nearby may be faster."""
    rng = random.Random(100 + share)
    seen = 0
    for name, stack, strategy in strategies(rng):
        small, large = (simulator(name, stack, strategy.devices, size) for size in (192, 384))
        if small.explain(strategy):
            continue
        both = large.plan(strategy)
        once = large.simulate_plan(both).metrics["iteration_seconds"]
        cut = [stage.blocks[0] for stage in both.stages[1:]]
        alike = small.simulate_plan(small.planner.plan(strategy, cut))
        assert once >= alike.metrics["iteration_seconds"], (name, stack, strategy.label)
        seconds = small.simulate(strategy).metrics["iteration_seconds"]
        assert once >= seconds * (1 - MOST), (name, stack, strategy.label)
        seen += 1
        if seen == 20:
            break
