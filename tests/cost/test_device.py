"""Seconds of work on a device: smooth, monotone, additive, and redoable by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distir.cost import CostModel, OpClass, Work, load_cluster, load_device, load_stack
from distir.cost.amounts import soft_maximum
from distir.cost.stack import AttentionKernels, MessageOverlap, SoftwareStack
from distir.errors import ClusterError
from distir.ir.types import DType, TensorType
from distir.ops.linalg import MatMul

STACKS = [load_stack(name) for name in ("ideal", "fsdp-compiled", "fsdp-eager")]
CLUSTER = load_cluster("dgx-a100")

counts = st.floats(0, 1e16)
classes = st.sampled_from(list(OpClass))
stacks = st.sampled_from(STACKS)


@st.composite
def works(draw: st.DrawFn) -> Work:
    return Work(draw(classes), draw(counts), draw(counts), draw(counts), "bf16")


def test_a_large_product_reaches_the_stack_s_fraction_of_peak() -> None:
    """16384^3: 8.8e12 FLOP at 0.5 of 312 TFLOP/s; launch and memory hardly count."""
    n = 16384
    work = Work(OpClass.PRODUCT, 2.0 * n**3, 2 * 2.0 * n**2, 2.0 * n**2, "bf16")
    stack = replace(load_stack("fsdp-eager"), product_efficiency=0.5)
    seconds = CostModel(CLUSTER, stack).op_seconds(work)
    assert seconds == pytest.approx(2 * n**3 / (0.5 * 312e12), rel=1e-3)


def test_an_elementwise_op_moves_its_bytes() -> None:
    """2 reads + 1 write of 2^30 bytes each at 0.8 of 2039 GB/s."""
    work = Work(OpClass.MEMORY, 2.0**29, 2 * 2.0**30, 2.0**30, "bf16")
    stack = replace(load_stack("fsdp-compiled"), memory_efficiency=0.8)
    seconds = CostModel(CLUSTER, stack).op_seconds(work)
    assert seconds == pytest.approx(3 * 2**30 / (0.8 * 2039e9), rel=2e-3)


def test_the_ideal_stack_is_the_plain_roofline() -> None:
    model = CostModel(CLUSTER, load_stack("ideal"))
    assert model.op_seconds(Work(OpClass.PRODUCT, 312e12, 1, 1, "bf16")) == 1.0
    assert model.op_seconds(Work(OpClass.ATTENTION, 312e12, 1, 1, "bf16")) == 1.0
    assert model.op_seconds(Work(OpClass.MEMORY, 1, 2039e9, 0)) == 1.0
    assert model.op_seconds(Work(OpClass.MEMORY, 19.5e12, 1, 1, "bf16")) == 1.0


def test_a_small_op_costs_its_launch_in_an_eager_stack() -> None:
    tiny = Work(OpClass.PRODUCT, 1e3, 1e3, 1e3, "bf16")
    eager = load_stack("fsdp-eager")
    assert CostModel(CLUSTER, eager).op_seconds(tiny) == pytest.approx(
        eager.eager_launch_seconds, 1e-3
    )
    assert CostModel(CLUSTER, load_stack("fsdp-compiled")).op_seconds(tiny) < 5e-6


def test_a_host_that_waits_for_every_kernel_adds_its_launches() -> None:
    """51 us before each of ten kernels, none of which runs meanwhile, and 3 us after each, until
    the host knows that it has ended."""
    blocking = replace(
        STACKS[-1], dispatch="blocking", eager_launch_seconds=51e-6, blocking_wait_seconds=3e-6
    )
    model = CostModel(CLUSTER, blocking)
    work = Work(OpClass.MEMORY, 0, 1e9, 1e9, launches=10.0)
    assert model.op_seconds(work) == pytest.approx(model.kernel_seconds(work) + 10 * 54e-6)
    assert model.host_bound_seconds(2.0, 1.0) == pytest.approx(3.0)
    assert replace(blocking, dispatch="eager").launch_seconds == 51e-6


@pytest.mark.parametrize(
    ("overlaps", "of_one", "of_several"),
    [("never", False, False), ("interleaved", False, True), ("always", True, True)],
)
def test_a_stack_says_when_a_rank_goes_on_while_it_sends(
    overlaps: MessageOverlap, of_one: bool, of_several: bool
) -> None:
    stack = replace(STACKS[0], overlaps_messages=overlaps)
    assert (stack.goes_on(1), stack.goes_on(4)) == (of_one, of_several)


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_a_view_costs_nothing(stack: SoftwareStack) -> None:
    model = CostModel(CLUSTER, stack)
    assert model.op_seconds(Work(OpClass.MEMORY)) == 0
    assert model.op_seconds(Work.nothing()) == 0


@given(works(), counts, counts, stacks)
def test_more_work_never_takes_less_time(
    work: Work, flops: float, read: float, stack: SoftwareStack
) -> None:
    model = CostModel(CLUSTER, stack)
    more = Work(work.kind, work.flops + flops, work.bytes_read + read, work.bytes_written, "bf16")
    assert model.op_seconds(more) >= model.op_seconds(work) * (1 - 1e-12)


@given(works(), st.floats(1.001, 2), stacks)
def test_there_are_no_cliffs(work: Work, factor: float, stack: SoftwareStack) -> None:
    """A little more work takes at most as much more time in proportion."""
    model = CostModel(CLUSTER, stack)
    more = Work(
        work.kind,
        work.flops * factor,
        work.bytes_read * factor,
        work.bytes_written * factor,
        "bf16",
    )
    assert model.op_seconds(more) <= model.op_seconds(work) * factor * (1 + 1e-9)


@given(classes, st.data(), stacks)
def test_one_op_of_two_works_never_costs_more_than_two_ops(
    kind: OpClass, data: st.DataObject, stack: SoftwareStack
) -> None:
    model = CostModel(CLUSTER, stack)
    a, b = (
        Work(kind, data.draw(counts), data.draw(counts), data.draw(counts), "fp16")
        for _ in range(2)
    )
    apart = model.op_seconds(a) + model.op_seconds(b)
    assert model.op_seconds(a + b) <= apart * (1 + 1e-9)


@given(works(), st.integers(1, 9), stacks)
def test_equal_ops_cost_their_sum(work: Work, times: int, stack: SoftwareStack) -> None:
    model = CostModel(CLUSTER, stack)
    together = model.op_seconds(sum([work] * times, Work.nothing()))
    assert together == pytest.approx(times * model.op_seconds(work), rel=1e-9)
    assert model.op_seconds(work * times) == pytest.approx(together, rel=1e-9)


@given(works(), works())
def test_work_adds_up(a: Work, b: Work) -> None:
    assume(a.kernels and b.kernels)
    assert a + Work.nothing() == a == Work.nothing() + a
    if a.kind == b.kind:
        assert (a + b).bytes == pytest.approx(a.bytes + b.bytes)
        assert (a + b).flops == a.flops + b.flops
    else:
        with pytest.raises(ValueError, match="different rates"):
            _ = a + b


def test_arrays_of_sizes_cost_what_their_elements_do() -> None:
    flops, read = np.array([0.0, 1e9, 1e13]), np.array([0.0, 1e8, 1e6])
    for stack in STACKS:
        model = CostModel(CLUSTER, stack)
        together: Any = model.op_seconds(Work(OpClass.PRODUCT, flops, read, read / 2, "bf16"))
        apart: Any = [
            model.op_seconds(Work(OpClass.PRODUCT, f, r, r / 2, "bf16"))
            for f, r in zip(flops.tolist(), read.tolist(), strict=True)
        ]
        np.testing.assert_allclose(together, apart, rtol=1e-14)


@given(st.floats(1, 40), st.floats(1e-9, 1e3), st.floats(1e-9, 1e3))
def test_the_soft_maximum_lies_between_maximum_and_sum(order: float, a: float, b: float) -> None:
    assert max(a, b) * (1 - 1e-12) <= soft_maximum(order, a, b) <= (a + b) * (1 + 1e-12)
    assert soft_maximum(math.inf, a, b) == max(a, b)


def test_a_type_without_a_rate_runs_as_one_that_holds_its_values() -> None:
    v100, a100 = load_device("v100-sxm3-32gb"), load_device("a100-sxm4-80gb")
    assert v100.peak("bf16") == v100.peak("fp32") == 15.7e12
    assert v100.peak("fp16") == 125e12
    assert not v100.supports("bf16")
    assert a100.peak("fp8") == a100.peak("bf16")
    assert a100.peak("int64") == a100.peak("fp32")
    with pytest.raises(ClusterError, match="no fp64 peak"):
        load_device("gb300-279gb").peak("fp64")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "fp8"])
def test_newer_generations_are_faster(dtype: str) -> None:
    names = ("v100-sxm3-32gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm6-180gb")
    rates = [load_device(name).peak(dtype) for name in names]
    assert rates == sorted(rates)


def test_batched_products_of_rows_that_matrix_units_cannot_load_run_on_vector_units() -> None:
    """Heads of 150 halves are 300 bytes; 152 are 304, which is 19 times 16."""

    def seconds(depth: int, batch: tuple[int, ...] = (12,)) -> float:
        rows, keys = (
            TensorType((*batch, *shape), DType.FLOAT16) for shape in ((2048, depth), (depth, 2048))
        )
        work = MatMul().work((rows, keys), MatMul().infer(rows, keys))
        return float(CostModel(CLUSTER, STACKS[0]).kernel_seconds(work)) / depth

    assert seconds(150) == pytest.approx(2 * 12 * 2048**2 / 19.5e12, rel=0.02)
    assert seconds(152) < seconds(150) / 2
    assert seconds(150, ()) == pytest.approx(seconds(152, ()), rel=0.02)


def test_attention_kernels_reach_what_their_generation_does() -> None:
    """1e15 FLOP on an H100, where kernels for Ampere's instructions reach 0.63 of its own."""
    work = Work(OpClass.ATTENTION, 1e15, 1.0, 1.0, "bf16")
    cluster = load_cluster("hgx-h100")
    own = cluster.device
    stack = replace(STACKS[0], attention_efficiency=0.5, first_attention_efficiency=0.25)

    def rate(kernels: AttentionKernels) -> float:
        made_for = replace(stack, attention_kernels=kernels)
        return 1e15 / float(CostModel(cluster, made_for).kernel_seconds(work))

    native = 0.5 * own.sustained_fraction * own.peak("bf16")
    assert rate("native") == pytest.approx(native)
    assert rate("portable") == pytest.approx(native * own.portable_fraction)
    assert rate("first") == pytest.approx(native * own.portable_fraction / 2)
