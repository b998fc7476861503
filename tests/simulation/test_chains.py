"""A chain of blocks takes as long as its instructions, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir.cost.amounts import many
from distir.simulation.pricing import chains_many
from distir.simulation.pricing.chains import BlockChain, ChainCost, ChainScheduler, Pass
from distir.simulation.pricing.chains_many import ManyChainScheduler, run_together
from distir.simulation.pricing.instructions import COMPUTE, Instruction
from distir.simulation.pricing.timeline import SEVERAL, Start, latest_of
from tests.slow import shares

Chain = Sequence[tuple[tuple[Pass, ...], int]]


def instruction(
    stream: str | None,
    seconds: Any,
    reads: Sequence[str],
    writes: Sequence[str],
    label: str,
    **others: Any,
) -> Instruction:
    """An instruction on values that go by names."""
    read, written = (cast("Any", tuple(names)) for names in (reads, writes))
    return Instruction(stream, seconds, read, written, label, **others)


def run_chain(chain: Chain) -> ChainCost:
    """Nothing takes time to launch."""
    return ChainScheduler(max).run(BlockChain.of(chain))


def test_links_are_late_along_their_last_collective() -> None:
    """What is gathered may end with a view of a part of it, which is on no stream."""
    gather = instruction("dp", 9.0, ("a",), ("b",), "gather")
    view = instruction(None, 0.0, ("b",), ("c",), "part")
    op = instruction(COMPUTE, 1.0, ("in",), ("out",), "op")
    each = Pass((op,), ("in",), ("out",), gathers=(gather, view))
    cost = run_chain([((each,), 2)]).cost
    assert cost.seconds == 18
    assert dict(cost.exposed) == {"dp": 16.0}


# Whole numbers of seconds add up exactly, so ties are ties in both.
durations = st.integers(0, 5).map(float)
BORDER = 3


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    """Random instructions; as many values come in as go out."""
    inputs = tuple(f"in {i}" for i in range(BORDER))
    known: list[str] = [*inputs, "parameter"]
    instructions: list[Instruction] = []
    for index in range(draw(st.integers(1, 8))):
        stream = draw(st.sampled_from([COMPUTE, COMPUTE, "tp", "dp", None]))
        reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        names = [f"value {index}", f"also {index}"][: draw(st.integers(1, 2))]
        seconds = draw(durations) if stream else 0.0
        instructions.append(instruction(stream, seconds, tuple(reads), tuple(names), "op"))
        known += names
    leaving = st.lists(st.sampled_from(known), min_size=BORDER, max_size=BORDER)
    return Pass(tuple(instructions), inputs, tuple(draw(leaving)))


patterns = st.lists(passes(), min_size=1, max_size=3).map(tuple)
chains = st.lists(st.tuples(patterns, st.integers(1, 9)), min_size=1, max_size=3)


def one_by_one(
    chain: Chain,
) -> tuple[float, float, dict[str, float], list[float]]:
    """End, busy and waiting time, and when every block is computed: no border, no repetition."""
    free: dict[str, float] = {COMPUTE: 0.0}
    ready: dict[object, tuple[float, str]] = {}
    busy, waited, ends = 0.0, dict[str, float](), list[float]()
    handed: tuple[object, ...] = ()
    blocks = [each for pattern, count in chain for _ in range(count) for each in pattern]
    for block, each in enumerate(blocks):
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


def settled(ends: Sequence[float], settling: Sequence[float]) -> float:
    """When the gradient stream is done, which settles one block after the other."""
    done = 0.0
    for end, seconds in zip(ends, settling, strict=True):
        done = max(done, end) + seconds if seconds else done
    return done


@st.composite
def chains_with_settling(draw: st.DrawFn) -> tuple[Chain, list[tuple[float, ...]]]:
    chain = draw(chains)
    return chain, [draw(st.tuples(*[durations for _ in pattern])) for pattern, _ in chain]


@pytest.mark.not_quick
@shares(6, seconds=1)
@given(chains_with_settling())
@settings(max_examples=50, deadline=None)
def test_a_chain_is_its_instructions_one_after_the_other(
    share: int,
    drawn: tuple[Chain, list[tuple[float, ...]]],
) -> None:
    chain, settling = drawn
    found = ChainScheduler(max).run(BlockChain.of(chain, settling))
    end, busy, waited, ends = one_by_one(chain)
    assert found.cost.seconds == end
    assert found.cost.compute == busy
    assert dict(found.cost.exposed) == {k: v for k, v in waited.items() if v}
    each = [
        seconds
        for (_, count), own in zip(chain, settling, strict=True)
        for _ in range(count)
        for seconds in own
    ]
    assert found.settled == settled(ends, each)


@pytest.mark.not_quick
@given(chains)
@settings(max_examples=50, deadline=None)
def test_shares_add_up(chain: Chain) -> None:
    cost = run_chain(chain).cost
    assert cost.compute + sum(seconds for _, seconds in cost.exposed) == cost.seconds


def test_equal_blocks_are_not_walked_once_they_are_in_step() -> None:
    one = instruction(COMPUTE, 2.0, (), ("a",), "op")
    two = instruction("tp", 1.0, ("a",), ("b",), "AllReduce")
    found = run_chain([((Pass((one, two), (), ("b",)),), 10**9)])
    assert found.cost.seconds == 2e9 + 1


def test_a_stream_that_waits_for_nothing_gets_in_step_too() -> None:
    """Since when other streams have been free is no matter once there are no others."""
    one = instruction("tp", 2.0, (), ("a",), "AllGather")
    two = instruction(COMPUTE, 2.0, ("a",), ("b",), "op")
    found = run_chain([((Pass((one, two), (), ("b",)),), 10**9)])
    assert found.cost.seconds == 2e9 + 2


@pytest.mark.not_quick
@shares(8, seconds=1)
@given(chains_with_settling(), chains, st.lists(st.integers(0, 9), min_size=3, max_size=3))
@settings(max_examples=25, deadline=None)
def test_many_chains_at_once_cost_what_each_costs_alone(
    share: int, drawn: tuple[Chain, list[tuple[float, ...]]], other: Chain, lengths: list[int]
) -> None:
    """The same blocks with other durations, side by side; patterns have other numbers of copies in
    the three chains, or none; the last of them has the first size again."""
    chain, settling = drawn
    durations = [
        each.seconds for pattern, _ in other for block in pattern for each in block.instructions
    ]

    def lasting(block: Pass, sizes: Sequence[int]) -> Pass:
        seconds = [(each.seconds, durations[i % len(durations)] if each.stream else 0.0)
                   for i, each in enumerate(block.instructions)]  # fmt: skip
        return with_seconds(
            block, [many(each) if len(sizes) > 1 else each[sizes[0]] for each in seconds]
        )

    sizes = np.array([0, 1, 0])
    made: dict[tuple[Pass, tuple[int, ...]], Pass] = {}
    together = [
        (tuple(made.setdefault((b, (0, 1)), lasting(b, (0, 1))) for b in pattern),
         np.array(lengths, np.float64) if count > 3 else count)
        for pattern, count in chain
    ]  # fmt: skip
    found = ManyChainScheduler(np.maximum, 2).run_all([BlockChain.of(together, settling, sizes)])[0]
    for row, size in enumerate(sizes.tolist()):
        alone = [
            (tuple(made.setdefault((b, (size,)), lasting(b, (size,))) for b in pattern),
             lengths[row] if count > 3 else count)
            for pattern, count in chain
        ]  # fmt: skip
        expected = ChainScheduler(max).run(BlockChain.of(alone, settling))
        exposed = sum(seconds for _, seconds in expected.cost.exposed)
        assert np.broadcast_to(found.cost.seconds, 3)[row] == expected.cost.seconds
        assert np.broadcast_to(found.cost.compute, 3)[row] == expected.cost.compute
        assert sum(np.broadcast_to(each, 3)[row] for _, each in found.cost.exposed) == exposed
        assert np.broadcast_to(found.settled, 3)[row] == expected.settled


def test_chains_wait_for_what_another_stream_has_made_in_them() -> None:
    """What the next block reads is made last by a collective in the first chain, and by compute in
    the other."""
    compute = instruction(COMPUTE, many([1.0, 3.0]), ("in",), ("a",), "op")
    collective = instruction("tp", 2.0, ("in",), ("b",), "AllReduce")
    either = instruction(None, 0.0, ("b", "a"), ("c",), "view")
    after = instruction(COMPUTE, 1.0, ("c",), ("d",), "op")
    passes = (
        Pass((compute, collective, either), ("in",), ("c",)),
        Pass((after,), ("c",), ("d",)),
    )
    (found,) = ManyChainScheduler(np.maximum, 2).run_all([BlockChain.of([(passes, 1)])])
    assert np.array_equal(found.cost.seconds, [3.0, 4.0])


def test_chains_wait_for_what_only_the_first_copies_of_a_pattern_hand_on() -> None:
    """What a collective makes before a pattern is handed on by its first copy, and by no other."""
    makes = instruction("tp", 2.0, ("in",), ("made",), "AllReduce")
    plain = instruction(COMPUTE, 0.0, (), ("y",), "op")
    reads = instruction(COMPUTE, 1.0, ("y",), (), "op")
    before, after = Pass((makes,), ("in", "in 2"), ("in", "made")), Pass((reads,), ("y", "z"), ())
    copies = Pass((plain,), ("x", "late"), ("late", "x"))
    lengths = np.array([1.0, 2.0])
    chain = BlockChain.of(
        [((before,), 1), ((copies,), lengths), ((after,), 1)], None, np.array([0, 0])
    )
    (found,) = ManyChainScheduler(np.maximum, 1).run_all([chain])
    alone = [run_chain([((before,), 1), ((copies,), n), ((after,), 1)]) for n in (1, 2)]
    assert [each.cost.seconds for each in alone] == [3.0, 2.0]
    assert np.broadcast_to(found.cost.seconds, 2).tolist() == [3.0, 2.0]


@shares(8, seconds=1)
@given(chains_with_settling(), chains, st.data())
@settings(max_examples=12, deadline=None)
def test_chains_with_equal_parts_are_each_as_alone(
    share: int, drawn: tuple[Chain, list[tuple[float, ...]]], other: Chain, data: st.DataObject
) -> None:
    """They share tables where they are alike, in the beginning or further on, each at sizes of its
    own."""
    made: dict[Pass, Pass] = {}

    def lasting(block: Pass) -> Pass:
        seconds = [
            many([each.seconds, 2 * each.seconds, 5 - each.seconds]) if each.stream else 0.0
            for each in block.instructions
        ]
        return made.setdefault(block, with_seconds(block, seconds))

    (_, settling), asked = drawn, list[BlockChain]()
    chain, other = ([(tuple(map(lasting, p)), n) for p, n in each] for each in (drawn[0], other))
    spans = [(0, len(chain), False)]
    place = st.integers(0, len(chain))
    spans += data.draw(st.lists(st.tuples(place, place, st.booleans()), max_size=5))
    for begin, end, before in spans:
        begin = min(begin, end) if before else 0
        ahead: list[Any] = other if before else []
        repeated: list[Any] = [*ahead, *chain[begin:end], *(other if end < len(chain) else [])]
        if not repeated:
            continue
        own: list[Any] = [[0.0] * len(pattern) for pattern, _ in repeated]
        own[len(ahead) : len(ahead) + end - begin] = settling[begin:end]
        sizes = np.array(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4)))
        lengths = st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes))
        repeated = [
            (pattern, np.array(data.draw(lengths), np.float64) if count > 3 else count)
            for pattern, count in repeated
        ]
        asked.append(BlockChain.of(repeated, own, sizes))
    together = ManyChainScheduler(np.maximum, 3).run_all(asked)
    for each, found in zip(asked, together, strict=True):
        (alone,) = ManyChainScheduler(np.maximum, 3).run_all([each])
        assert np.array_equal(found.cost.seconds, alone.cost.seconds)
        assert np.array_equal(found.cost.compute, alone.cost.compute)
        assert np.array_equal(found.settled, alone.settled)


@pytest.mark.parametrize("most", [chains_many.CHAINS_TOGETHER, 4])
@given(chains_with_settling(), st.data())
@settings(max_examples=25, deadline=None)
def test_chains_of_several_schedulers_are_each_as_alone(
    most: int, drawn: tuple[Chain, list[tuple[float, ...]]], data: st.DataObject
) -> None:
    """The same blocks with other durations at other numbers of sizes are passes of one form,
    whether all are scheduled together or a few at a time."""
    chain, settling = drawn
    asked: list[tuple[ManyChainScheduler, list[BlockChain]]] = []
    for _ in range(data.draw(st.integers(1, 3))):
        num_sizes = data.draw(st.integers(1, 3))
        numbers = st.lists(durations, min_size=num_sizes, max_size=num_sizes).map(many)

        def lasting(block: Pass, numbers: Any = numbers) -> Pass:
            seconds = (data.draw(numbers) if e.stream else 0.0 for e in block.instructions)
            return with_seconds(block, list(seconds))

        blocks = [(tuple(map(lasting, pattern)), count) for pattern, count in chain]
        sizes = np.array(data.draw(st.lists(st.integers(0, num_sizes - 1), min_size=1, max_size=4)))
        every = [BlockChain.of(blocks, settling, sizes), BlockChain.of(blocks[:1], settling[:1])]
        asked.append((ManyChainScheduler(np.maximum, num_sizes), every))
    with mock.patch.object(chains_many, "CHAINS_TOGETHER", most):
        together = run_together(asked)
    for (scheduler, every), found in zip(asked, together, strict=True):
        for each, cost in zip(every, found.costs(every, scheduler.num_sizes), strict=True):
            (alone,) = scheduler.run_all([each])
            assert np.array_equal(cost.cost.seconds, alone.cost.seconds)
            assert np.array_equal(cost.cost.compute, alone.cost.compute)
            assert np.array_equal(cost.settled, alone.settled)


def with_seconds(block: Pass, seconds: Sequence[Any]) -> Pass:
    instructions = [e._replace(seconds=s) for e, s in zip(block.instructions, seconds, strict=True)]
    return Pass(tuple(instructions), block.inputs, block.outputs)


def test_repeated_patterns_may_split_anywhere() -> None:
    one = instruction(COMPUTE, 2.0, ("in",), ("a",), "op")
    two = instruction("tp", 3.0, ("a",), ("b",), "AllReduce")
    three = instruction(COMPUTE, 1.0, (), (), "op")
    each = Pass((one, two, three), ("in",), ("b",))
    whole = run_chain([((each,), 7)])
    parts = run_chain([((each,), 3), ((each, each), 2)])
    assert parts.cost == whole.cost


def test_a_chain_lasts_no_less_than_its_launches() -> None:
    """A block computes 2 s and is launched in 3 s: of five, the first is computed after 3 s."""
    one = instruction(COMPUTE, 2.0, (), (), "op", launch_seconds=3.0)
    found = ChainScheduler(max).run(BlockChain.of([((Pass((one,), (), ()),), 5)], [[4.0]]))
    assert (found.cost.seconds, found.cost.compute) == (15.0, 15.0)
    assert found.settled == 3.0 + 5 * 4.0


def test_the_host_runs_ahead() -> None:
    """4 s on the device and 1 s to launch, then 1 s and 3 s: neither 8 s of the larger ones nor 9 s
    of all, but the 5 s of the device."""
    long = instruction(COMPUTE, 4.0, (), (), "op", launch_seconds=1.0)
    short = instruction(COMPUTE, 1.0, (), (), "op", launch_seconds=3.0)
    assert run_chain([((Pass((long, short), (), ()),), 1)]).cost.seconds == 5.0
    halves = [((Pass((short, long), (), ()), Pass((short, short), (), ())), 1)]
    assert run_chain(halves).cost.seconds == 10.0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_compute_that_waits_for_every_collective(count: int) -> None:
    """2 s of compute and 3 s of communication that the next block needs: 5 s each."""
    one = instruction(COMPUTE, 2.0, ("in",), ("a",), "op")
    two = instruction("tp", 3.0, ("a",), ("b",), "AllReduce")
    cost = run_chain([((Pass((one, two), ("in",), ("b",)),), count)]).cost
    assert (cost.seconds, cost.compute, cost.exposed) == (
        5.0 * count, 2.0 * count, (("tp", 3.0 * count),),
    )  # fmt: skip


@st.composite
def states(draw: st.DrawFn) -> tuple[Start, list[list[float]]]:
    """A start, and the times of some states. Some border times are of values that one stream has
    made."""
    made = [draw(st.sampled_from(["tp", "tp", "dp", SEVERAL, ""])) for _ in range(BORDER)]
    start = Start(("tp", "dp"), tuple(made), tuple(range(BORDER)))
    times = st.lists(st.integers(-9, 9).map(float), min_size=3 + BORDER, max_size=3 + BORDER)
    return start, draw(st.lists(times, min_size=1, max_size=3))


@pytest.mark.not_quick
@shares(4, seconds=1)
@given(passes(), states())
@settings(max_examples=100, deadline=None)
def test_a_pass_runs_from_many_states_as_from_each(
    share: int, each: Pass, drawn: tuple[Start, list[list[float]]]
) -> None:
    start, columns = drawn
    walk = each.form.walk(start)
    seconds = [step.seconds for step in each.instructions if step.stream is not None]
    alike = np.repeat(np.array(seconds, float).reshape(-1, 1), len(columns), axis=1)
    found = walk.run(np.array(columns).T, alike)
    moments = each.moments(start)
    for column, values in zip(columns, found.T.tolist(), strict=True):
        times = moments.at(column)
        ends = {stream: times[number] for stream, number in moments.streams.items()}
        assert {stream: values[row] for stream, row in walk.streams.items()} == ends
        assert [values[row] for row in walk.kept[: len(start.streams)]] == [
            ends[stream] for stream in start.streams
        ]
        for causes, row, why in zip(moments.border, walk.border, walk.end.border, strict=True):
            assert bool(why) == bool(causes)
            ready, _ = latest_of(causes, times) if causes else (ends[COMPUTE], "")
            assert values[row] == ready
            assert why in {"", SEVERAL, *(cause for cause, _ in causes)}
        for row, since in enumerate(walk.since):
            assert all(values[row] >= values[at] for at in range(row) if since >> at & 1)


def test_equal_forms_are_one() -> None:
    def of(name: str, seconds: float) -> Pass:
        step = instruction("tp", seconds, ("in", "other"), (name,), "op")
        return Pass((step,), ("in",), (name, name))

    assert of("a", 1.0).form is of("b", 2.0).form
    assert of("a", 1.0).form is not Pass(of("a", 1.0).instructions, ("in",), ("a", "in")).form


def test_a_pass_waits_for_the_latest_of_three_values_that_one_stream_made_before() -> None:
    read = instruction(COMPUTE, 1.0, ("a", "b", "c"), ("d",), "op")
    each = Pass((read,), ("a", "b", "c"), ("d",))
    start = Start(("host",), ("host",) * 3, (0, 1, 2))
    walk = each.form.walk(start)
    times = np.array([[4.0, 4.0, 4.0], [0.0, 0.0, 0.0], *np.eye(3) * 4])
    ends = walk.run(times, np.ones((1, 3)))[walk.streams[COMPUTE]]
    assert ends.tolist() == [5.0, 5.0, 5.0]


@pytest.mark.not_quick
@shares(8, seconds=1)
@given(chains)
@settings(max_examples=40, deadline=None)
def test_merged_compute_instructions_take_as_long_as_they_do_apart(
    share: int, chain: Chain
) -> None:
    def condensed(each: Pass) -> Pass:
        found = Pass.of(each.instructions, each.inputs, each.outputs)
        assert len(found.instructions) <= len(each.instructions)
        return found

    shorter = [(tuple(map(condensed, pattern)), count) for pattern, count in chain]
    assert run_chain(shorter) == run_chain(chain)
