"""A chain of blocks takes as long as its instructions, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir.cost.amounts import many
from distir.simulation.block_cost import ChainCost, Chains, Pass, drain
from distir.simulation.instructions import COMPUTE, Instruction


def run_chain(chain: Sequence[tuple[Pass, int]]) -> ChainCost:
    """Nothing takes time to launch."""
    return Chains(max).run(chain)


# Whole numbers of seconds add up exactly, so ties are ties in both.
durations = st.integers(0, 5).map(float)
BORDER = 2


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    """Random instructions; as many values come in as go out."""
    inputs = tuple(f"in {i}" for i in range(BORDER))
    known: list[str] = [*inputs, "parameter"]
    instructions: list[Instruction] = []
    for index in range(draw(st.integers(1, 8))):
        stream = draw(st.sampled_from([COMPUTE, COMPUTE, "tp", "dp", None]))
        reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        name = f"value {index}"
        seconds = draw(durations) if stream else 0.0
        instructions.append(Instruction(stream, seconds, tuple(reads), (name,), "op"))  # type: ignore[arg-type]
        known.append(name)
    leaving = st.lists(st.sampled_from(known), min_size=BORDER, max_size=BORDER)
    return Pass(tuple(instructions), inputs, tuple(draw(leaving)))


chains = st.lists(st.tuples(passes(), st.integers(1, 9)), min_size=1, max_size=3)


def one_by_one(
    chain: Sequence[tuple[Pass, int]],
) -> tuple[float, float, dict[str, float], list[float]]:
    """End, busy and waiting time, and when every block is computed: no border, no repetition."""
    free: dict[str, float] = {COMPUTE: 0.0}
    ready: dict[object, tuple[float, str]] = {}
    busy, waited, ends = 0.0, dict[str, float](), list[float]()
    handed: tuple[object, ...] = ()
    for block, each in enumerate(each for each, count in chain for _ in range(count)):
        for number, value in enumerate(each.inputs):
            known = ready.get(handed[number]) if handed else None
            if known is not None:
                ready[block, value] = known
        for instruction in each.instructions:
            at, cause = 0.0, ""
            for value in instruction.reads:
                when = ready.get((block, value), (0.0, ""))
                if when[0] > at:
                    at, cause = when
            stream = instruction.stream
            if stream is not None:
                start = max(at, free.get(stream, 0.0))
                if stream == COMPUTE:
                    busy += instruction.seconds
                    if start > free[COMPUTE]:
                        waited[cause] = waited.get(cause, 0.0) + start - free[COMPUTE]
                at, cause = start + instruction.seconds, stream
                free[stream] = at
            for value in instruction.writes:
                ready[block, value] = (at, cause)
        handed = tuple((block, value) for value in each.outputs)
        ends.append(free[COMPUTE])
    end = max(free.values())
    if end > free[COMPUTE]:
        last = max((name for name in free if name != COMPUTE), key=lambda name: free[name])
        waited[last] = waited.get(last, 0.0) + end - free[COMPUTE]
    return end, busy, waited, ends


def unrolled(block_ends: Sequence[tuple[float, float, int]]) -> list[float]:
    return [
        first + i * (last - first) / max(1, count - 1)
        for first, last, count in block_ends
        for i in range(count)
    ]


@given(chains)
@settings(max_examples=300, deadline=None)
def test_a_chain_is_its_instructions_one_after_the_other(chain: list[tuple[Pass, int]]) -> None:
    found = run_chain(chain)
    end, busy, waited, ends = one_by_one(chain)
    assert found.cost.seconds == end
    assert found.cost.compute == busy
    assert dict(found.cost.exposed) == {k: v for k, v in waited.items() if v}
    assert unrolled(found.block_ends) == ends


@given(chains)
@settings(max_examples=50, deadline=None)
def test_shares_add_up(chain: list[tuple[Pass, int]]) -> None:
    cost = run_chain(chain).cost
    assert cost.compute + sum(seconds for _, seconds in cost.exposed) == cost.seconds


def test_equal_blocks_are_not_walked_once_they_are_in_step() -> None:
    one = Instruction(COMPUTE, 2.0, (), ("a",), "op")  # type: ignore[arg-type]
    two = Instruction("tp", 1.0, ("a",), ("b",), "AllReduce")  # type: ignore[arg-type]
    found = run_chain([(Pass((one, two), (), ("b",)), 10**9)])
    assert found.cost.seconds == 2e9 + 1
    assert len(found.block_ends) < 5


def test_a_stream_that_waits_for_nothing_gets_in_step_too() -> None:
    """Since when other streams have been free is no matter once there are no others."""
    one = Instruction("tp", 2.0, (), ("a",), "AllGather")  # type: ignore[arg-type]
    two = Instruction(COMPUTE, 2.0, ("a",), ("b",), "op")  # type: ignore[arg-type]
    found = run_chain([(Pass((one, two), (), ("b",)), 10**9)])
    assert found.cost.seconds == 2e9 + 2
    assert len(found.block_ends) < 5


@given(chains, chains)
@settings(max_examples=100, deadline=None)
def test_many_plans_at_once_are_each_of_them(
    chain: list[tuple[Pass, int]], other: list[tuple[Pass, int]]
) -> None:
    """The same blocks with other durations, side by side."""
    durations = [each.seconds for block, _ in other for each in block.instructions]
    alone: list[list[tuple[Pass, int]]] = [[], []]
    together: list[tuple[Pass, int]] = []
    for block, count in chain:
        seconds = [(each.seconds, durations[i % len(durations)] if each.stream else 0.0)
                   for i, each in enumerate(block.instructions)]  # fmt: skip
        for plan in (0, 1):
            alone[plan].append((with_seconds(block, [each[plan] for each in seconds]), count))
        together.append((with_seconds(block, [many(each) for each in seconds]), count))
    found = run_chain(together).cost
    for plan in (0, 1):
        cost = run_chain(alone[plan]).cost
        assert np.broadcast_to(found.seconds, 2)[plan] == cost.seconds
        assert np.broadcast_to(found.compute, 2)[plan] == cost.compute
        waited = sum(np.broadcast_to(seconds, 2)[plan] for _, seconds in found.exposed)
        assert waited == sum(seconds for _, seconds in cost.exposed)


def with_seconds(block: Pass, seconds: Sequence[Any]) -> Pass:
    instructions = [replace(e, seconds=s) for e, s in zip(block.instructions, seconds, strict=True)]
    return Pass(tuple(instructions), block.inputs, block.outputs)


@given(
    st.lists(st.tuples(durations, durations, st.integers(1, 6), durations), min_size=1, max_size=4),
    durations,
)
def test_a_drained_stream_serves_one_block_after_the_other(
    runs: list[tuple[float, float, int, float]], busy_until: float
) -> None:
    ends: list[tuple[float, float, int]] = []
    services: list[float] = []
    at = 0.0
    for gap, step, count, service in runs:
        ends.append((at + gap, at + gap + (count - 1) * step, count))
        services.append(service)
        at += gap + (count - 1) * step
    done = busy_until
    each = [service for service, (_, _, count) in zip(services, ends, strict=True)
            for _ in range(count)]  # fmt: skip
    for end, service in zip(unrolled(ends), each, strict=True):
        done = max(done, end) + service if service else done
    assert drain(ends, services, busy_until) == done


def test_runs_may_split_anywhere() -> None:
    one = Instruction(COMPUTE, 2.0, ("in",), ("a",), "op")  # type: ignore[arg-type]
    two = Instruction("tp", 3.0, ("a",), ("b",), "AllReduce")  # type: ignore[arg-type]
    three = Instruction(COMPUTE, 1.0, (), (), "op")
    each = Pass((one, two, three), ("in",), ("b",))
    whole = run_chain([(each, 7)])
    parts = run_chain([(each, 3), (each, 4)])
    assert parts.cost == whole.cost
    assert [run for run, _ in groupby(unrolled(parts.block_ends))] == unrolled(whole.block_ends)


def test_a_chain_lasts_no_less_than_its_launches() -> None:
    """A block computes 2 s and is launched in 3 s: of five, the first is computed after 3 s."""
    one = Instruction(COMPUTE, 2.0, (), (), "op", launch_seconds=3.0)
    found = run_chain([(Pass((one,), (), ()), 5)])
    assert (found.cost.seconds, found.cost.compute) == (15.0, 15.0)
    assert unrolled(found.block_ends) == [3.0, 6.0, 9.0, 12.0, 15.0]


def test_the_host_runs_ahead() -> None:
    """4 s on the device and 1 s to launch, then 1 s and 3 s: neither 8 s of the larger ones nor 9 s
    of all, but the 5 s of the device."""
    long = Instruction(COMPUTE, 4.0, (), (), "op", launch_seconds=1.0)
    short = Instruction(COMPUTE, 1.0, (), (), "op", launch_seconds=3.0)
    assert run_chain([(Pass((long, short), (), ()), 1)]).cost.seconds == 5.0
    halves = [(Pass((short, long), (), ()), 1), (Pass((short, short), (), ()), 1)]
    assert run_chain(halves).cost.seconds == 10.0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_compute_that_waits_for_every_collective(count: int) -> None:
    """2 s of compute and 3 s of communication that the next block needs: 5 s each."""
    one = Instruction(COMPUTE, 2.0, ("in",), ("a",), "op")  # type: ignore[arg-type]
    two = Instruction("tp", 3.0, ("a",), ("b",), "AllReduce")  # type: ignore[arg-type]
    cost = run_chain([(Pass((one, two), ("in",), ("b",)), count)]).cost
    assert (cost.seconds, cost.compute, cost.exposed) == (
        5.0 * count, 2.0 * count, (("tp", 3.0 * count),),
    )  # fmt: skip


@given(chains)
@settings(max_examples=300, deadline=None)
def test_runs_of_compute_are_as_good_as_their_instructions(chain: list[tuple[Pass, int]]) -> None:
    condensed = [(Pass.of(p.instructions, p.inputs, p.outputs), count) for p, count in chain]
    assert run_chain(condensed) == run_chain(chain)
    assert all(len(a.instructions) <= len(b.instructions)
               for (a, _), (b, _) in zip(condensed, chain, strict=True))  # fmt: skip
