"""Kernels that are launched around experts take what the host needs for them, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from distir import Simulator, Strategy, Workload, load_cluster
from distir.cost import SoftwareStack, load_stack
from distir.importers.load import LoadedModel
from distir.importers.probe import build_at_probe_sizes
from distir.ir.types import DType, TensorType
from distir.models.experts import Experts
from distir.models.transformer import TransformerConfig, llama_config
from distir.ops.linalg import Einsum

LAYERS, MICROBATCHES = 2, 4
CLUSTER = load_cluster("hgx-h100", 2)
BLOCKING = replace(load_stack("megatron"), dispatch="blocking", routing_kernels=0)


def config(experts: int) -> TransformerConfig:
    """A small transformer, with experts if there are any."""
    dense = llama_config(
        "mixture",
        layers=LAYERS,
        hidden=256,
        heads=4,
        kv_heads=4,
        ffn=128,
        vocabulary=512,
        sequence_length=128,
    )
    if not experts:
        return dense
    return replace(dense, experts=Experts(count=experts, top_k=2, ffn=128))


def workload(experts: int) -> Workload:
    own = config(experts)
    function = build_at_probe_sizes(own.build, own.longest)
    return Workload(model=LoadedModel(own.name, function, own.sequence_length), batch_size=8)


WORKLOADS = {experts: workload(experts) for experts in (0, 8)}


def seconds(stack: SoftwareStack, experts: int, strategy: Strategy) -> float:
    simulator = Simulator(WORKLOADS[experts], CLUSTER, stack)
    return simulator.simulate(strategy).metrics["iteration_seconds"]


@pytest.mark.parametrize(("kernels", "ep"), [(1, 1), (30, 1), (30, 2), (100, 2)])
def test_every_kernel_of_routing_costs_a_launch_and_a_ramp_in_every_pass(
    kernels: int, ep: int
) -> None:
    """Where the host waits for each: two passes of every layer and microbatch. A few ramps hide
    behind communication."""
    strategy = Strategy(dp=2, ep=ep, microbatches=MICROBATCHES)
    none = seconds(BLOCKING, 8, strategy)
    some = seconds(replace(BLOCKING, routing_kernels=kernels), 8, strategy)
    each = BLOCKING.launch_seconds + BLOCKING.kernel_ramp_seconds
    assert some - none == pytest.approx(2 * LAYERS * MICROBATCHES * kernels * each, rel=0.02)


def test_a_dense_model_has_no_routing() -> None:
    strategy = Strategy(dp=2, microbatches=MICROBATCHES)
    many = replace(BLOCKING, routing_kernels=50, groups_experts=False)
    assert seconds(many, 0, strategy) == seconds(BLOCKING, 0, strategy)


def test_products_of_experts_cost_the_more_launches_the_more_experts_a_device_has() -> None:
    """Three products forward and six backward, of 8 experts or of the 4 of a device."""
    apart = replace(BLOCKING, groups_experts=False)
    each = BLOCKING.launch_seconds + BLOCKING.kernel_ramp_seconds
    for ep, experts in ((1, 8), (2, 4)):
        strategy = Strategy(dp=2, ep=ep, microbatches=MICROBATCHES)
        more = seconds(apart, 8, strategy) - seconds(BLOCKING, 8, strategy)
        assert more == pytest.approx(LAYERS * MICROBATCHES * 9 * (experts - 1) * each, rel=0.02)


def test_a_host_that_runs_ahead_hides_some_of_it() -> None:
    strategy = Strategy(dp=2, ep=2, microbatches=MICROBATCHES)
    found = [
        seconds(replace(load_stack("megatron"), routing_kernels=count), 8, strategy)
        for count in (0, 10, 20, 40)
    ]
    assert all(less <= more for less, more in pairwise(found))
    graph = replace(load_stack("megatron"), dispatch="compiled", routing_kernels=40)
    assert seconds(graph, 8, strategy) < found[-1] / 2


def test_a_stack_of_matrices_is_one_that_each_meets_rows_of_its_own() -> None:
    def stacked(equation: str, *shapes: tuple[int, ...]) -> int:
        return Einsum(equation).stacked([TensorType(shape, DType.FLOAT32) for shape in shapes])

    assert stacked("becn,enm->becm", (2, 8, 3, 4), (8, 4, 5)) == 8
    assert stacked("becm,becn->enm", (2, 8, 3, 5), (2, 8, 3, 4)) == 8
    assert stacked("bsk,kn->bsn", (2, 3, 4), (4, 5)) == 1
    assert stacked("bhqd,bhkd->bhqk", (2, 4, 3, 5), (2, 4, 3, 5)) == 1
