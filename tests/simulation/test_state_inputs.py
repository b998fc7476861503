"""Inputs that one step leaves for the next, as the keys and values of a decoder, stay in memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from distir import Simulator, Strategy, Workload, load_cluster
from distir.execute.verify import RELATIVE_TOLERANCE, verify
from distir.importers.load import LoadedModel
from distir.ir.builder import Builder
from distir.ir.core import Value
from distir.ir.function import Function
from distir.ir.types import DType
from distir.ops.arithmetic import Add
from distir.ops.comparisons import Where
from distir.ops.elementwise import Cast
from distir.ops.linalg import MatMul
from distir.ops.norm import Softmax
from distir.ops.tensor import Concat, Reshape, Slice, Split, Transpose
from distir.simulation.bounds import Bounds
from distir.simulation.reference import simulate_reference
from distir.strategies import Strategies
from distir.workload import Mode

BATCH, PAST, HEADS, DEPTH, LAYERS = 3, 7, 4, 6, 4
WIDTH = HEADS * DEPTH
SAMPLES = 8
CACHE_BYTES = SAMPLES * LAYERS * 2 * HEADS * PAST * DEPTH * 2
"""Of keys and values of all layers, in bfloat16."""

Join = Callable[[Builder, Value, Value], Value]
"""From earlier keys or values and those of the new token to those that are attended to."""


def appended(builder: Builder, past: Value, new: Value) -> Value:
    return builder.add(Concat(2), past, new)


def shifted(builder: Builder, past: Value, new: Value) -> Value:
    """A window, whose oldest token goes."""
    return builder.add(
        Concat(2), builder.add(Slice((0, 0, 1, 0), (None,) * 4, (1,) * 4), past), new
    )


def chosen(builder: Builder, past: Value, new: Value) -> Value:
    """A buffer of fixed length, in which a mask says where the new token goes."""
    here = builder.input("here", (BATCH, 1, PAST, 1), DType.BOOL)
    return builder.add(Where(), here, new, past)


def stored_narrow(builder: Builder, past: Value, new: Value) -> Value:
    """A buffer in another type than attention computes in."""
    return builder.add(Concat(2), builder.add(Cast(DType.FLOAT32), past), new)


def decoder(join: Join = appended, *, stacked: bool = False, gives: bool = True) -> Function:
    """Attention of one new token to those in a cache. `stacked`: keys and values of a layer are one
    input."""
    builder = Builder("decoder")
    x = builder.input("x", (BATCH, 1, WIDTH), DType.FLOAT32)
    caches: list[Value] = []
    for layer in range(LAYERS):
        parts: list[Value] = []
        for name in "qkv":
            weight = builder.parameter(f"{layer}.{name}", (WIDTH, WIDTH), DType.FLOAT32)
            apart = builder.add(Reshape((BATCH, 1, HEADS, DEPTH)), builder.add(MatMul(), x, weight))
            parts.append(builder.add(Transpose((0, 2, 1, 3)), apart))
        q, k, v = parts
        if stacked:
            both = builder.input(f"{layer}.past", (BATCH, HEADS, PAST, 2 * DEPTH), DType.FLOAT32)
            past_k, past_v = builder.apply(Split(3, (DEPTH, DEPTH)), both)
        else:
            shape = (BATCH, HEADS, PAST, DEPTH)
            past_k, past_v = (
                builder.input(f"{layer}.past_{name}", shape, DType.FLOAT32) for name in "kv"
            )
        k, v = join(builder, past_k, k), join(builder, past_v, v)
        caches += [builder.add(Concat(3), k, v)] if stacked else [k, v]
        scores = builder.add(MatMul(), q, builder.add(Transpose((0, 1, 3, 2)), k))
        mixed = builder.add(MatMul(), builder.add(Softmax(-1), scores), v)
        joined = builder.add(
            Reshape((BATCH, 1, WIDTH)), builder.add(Transpose((0, 2, 1, 3)), mixed)
        )
        weight = builder.parameter(f"{layer}.o", (WIDTH, WIDTH), DType.FLOAT32)
        x = builder.add(Add(), x, builder.add(MatMul(), joined, weight))
    return builder.build([x, *caches] if gives else [x])


def simulator(function: Function, mode: Mode = "inference") -> Simulator:
    workload = Workload(model=LoadedModel(function.name, function), batch_size=SAMPLES, mode=mode)
    return Simulator(workload, load_cluster("dgx-a100", 8))


def cache_bytes(simulator: Simulator, strategy: Strategy) -> list[float]:
    stages = simulator.simulate(strategy).stages
    return [stage.memory["state_inputs_bytes"] for stage in stages]


@pytest.mark.parametrize("join", [appended, chosen, stored_narrow])
def test_inputs_that_outputs_carry_on_stay_in_memory(join: Join) -> None:
    assert cache_bytes(simulator(decoder(join)), Strategy()) == [CACHE_BYTES]


def test_what_no_output_carries_on_is_no_state() -> None:
    held = cache_bytes(simulator(decoder(shifted)), Strategy())
    assert held == [CACHE_BYTES * (PAST - 1) / PAST]


def test_how_an_input_is_cut_up_changes_nothing() -> None:
    assert cache_bytes(simulator(decoder(stacked=True)), Strategy()) == [CACHE_BYTES]


def test_inputs_that_are_only_read_are_no_state() -> None:
    assert cache_bytes(simulator(decoder(gives=False)), Strategy()) == [0]
    assert cache_bytes(simulator(decoder(), "training"), Strategy()) == [0]


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(dp=8),
        Strategy(tp=4, dp=2),
        Strategy(pp=4, dp=2, microbatches=4),
        Strategy(pp=2, tp=4, microbatches=8),
        Strategy(pp=2, tp=2, dp=2, microbatches=1),
        Strategy(pp=2, tp=2, dp=2, microbatches=2, schedule="interleaved", chunks=2),
        Strategy(pp=2, microbatches=2, schedule="chimera"),
    ],
)
def test_devices_share_a_cache(strategy: Strategy) -> None:
    """Together they hold it once, in as many microbatches as there are."""
    shared = cache_bytes(simulator(decoder()), strategy)
    assert sum(shared) * strategy.dp * strategy.tp == CACHE_BYTES


@pytest.mark.not_quick
@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(tp=2, pp=2, microbatches=2),
        Strategy(dp=4),
        Strategy(pp=2, microbatches=4, schedule="chimera"),
    ],
)
def test_engines_agree_on_caches(strategy: Strategy) -> None:
    simulated = simulator(decoder())
    one = simulated.simulate(strategy)
    reference = simulate_reference(simulated.plan(strategy), simulated.cost).result
    many = simulated.simulate_many([strategy])
    for stage, other in zip(one.stages, reference.stages, strict=True):
        assert dict(stage.memory) == dict(other.memory)
    assert many.metrics["peak_memory_bytes"][0] == one.metrics["peak_memory_bytes"]
    assert verify(simulated.workload, strategy).max_relative_error < RELATIVE_TOLERANCE


def test_nothing_is_below_the_bounds_of_memory_with_a_cache() -> None:
    simulated = simulator(decoder())
    bounds = Bounds(simulated.stages)
    strategies = [Strategy(dp=8), Strategy(pp=4, tp=2, microbatches=4), Strategy(tp=4, dp=2)]
    table = Strategies.of(strategies)
    peaks = simulated.simulate_many(strategies).metrics["peak_memory_bytes"]
    for found in (bounds.unsharded(table), bounds.ordered(table)):
        assert (found.size <= peaks).all()
    for strategy, peak in zip(strategies, peaks, strict=True):
        numbers = np.array([strategy.pp]), np.array([strategy.microbatches])
        begun = bounds.begun(strategy.devices, *numbers)
        assert CACHE_BYTES / 8 * 0.99 <= begun.size[0] <= peak
