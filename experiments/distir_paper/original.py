"""The hardware and the models of the original, as our simulator takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import distir
from distir import Simulator, Strategy, Workload
from distir.cost import Cluster, ClusterLevel, CostModel, Device, SoftwareStack, load_stack
from distir.cost.amounts import Amount
from distir.cost.collectives import CollectiveKind, Copies, Route
from distir.importers.load import LoadedModel
from distir.ir import Function
from distir.ir.core import Node
from distir.models import MlpConfig, TransformerConfig
from distir.ops.linalg import MatMul

SIMPLE = Path(__file__).with_name("simple.toml")
"""A software stack as simple as the original's: every op costs launch + bytes + FLOPs, in turn."""

BITS_PER_BYTE = 8


@cache
def simple_stack() -> SoftwareStack:
    """The stack of `SIMPLE`."""
    return load_stack(SIMPLE)


@cache
def cluster(
    flops_per_second: float,
    memory_bytes_per_second: float,
    network_gbits_per_second: float,
    devices: int,
    memory_bytes: float = 1e15,
) -> Cluster:
    """Equal devices of which every two are joined by a link of their own rate, without latency;
    memory is not a limit unless it is stated."""
    device = Device(
        name="original",
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_second=memory_bytes_per_second,
        peak_flops_per_second=dict.fromkeys(("fp32", "fp16"), flops_per_second),
    )
    link = ClusterLevel(
        name="network",
        size=None,
        bandwidth_bytes_per_second=network_gbits_per_second * 1e9 / BITS_PER_BYTE,
        latency_seconds=0.0,
    )
    return Cluster(name="original", device=device, levels=(link,), num_devices=devices)


@dataclass(frozen=True, slots=True, repr=False)
class TabledCost(CostModel):
    """A cost model whose all-reduces take what a table says, as the original's do where it is given
    one (microsoft/dist-ir at 7cfa1b0, dist_ir/executor/cost_model.py): by number of devices n,
    `(a, b, c)` for `a * gigabits + b * n + c` seconds."""

    table: Mapping[int, tuple[float, float, float]] = field(
        default_factory=dict[int, tuple[float, float, float]]
    )

    def seconds_over(
        self,
        kind: CollectiveKind,
        size_bytes: Amount,
        route: Route,
        copies: Copies | None = None,
    ) -> Amount:
        """See `CostModel`."""
        devices = math.prod(int(link.fan_out) for link in route)
        if kind != "all_reduce" or devices not in self.table:
            return CostModel.seconds_over(self, kind, size_bytes, route, copies)
        per_gigabit, per_device, once = self.table[devices]
        return per_gigabit * size_bytes * BITS_PER_BYTE / 1e9 + per_device * devices + once


def simulator(
    workload: Workload,
    cluster: Cluster,
    stack: SoftwareStack,
    table: Mapping[int, tuple[float, float, float]],
) -> Simulator:
    """A simulator whose all-reduces take what the table says; what their links give where it is
    empty."""
    made = Simulator(workload, cluster, stack)
    if table:
        made.cost = TabledCost(cluster, stack, table=table)
        made.stages = made.stages.repriced(made.cost)
    return made


@cache
def mlp(layers: int, width: int) -> LoadedModel:
    """`layers` square linear layers with ReLU, without bias."""
    config = MlpConfig(name=f"mlp-{layers}x{width}", layers=layers, width=width, bias=False)

    def without_bias(batch_size: int) -> Function:
        return config.build(batch_size)

    return replace(distir.load_model(without_bias), name=config.name)


@cache
def gpt2(layers: int, hidden: int, heads: int) -> LoadedModel:
    """GPT-2 up to its last norm: the original's file has no language model head."""
    config = TransformerConfig(
        name=f"gpt2-{layers}x{hidden}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=50257,
        sequence_length=1024,
    )

    def headless(batch_size: int, sequence_length: int) -> Function:
        return _without_head(config.build(batch_size, sequence_length, "eager"))

    loaded = distir.load_model(headless)
    return replace(loaded, name=config.name, longest=config.longest)


def _without_head(function: Function) -> Function:
    """The function up to the operand of its last product, and what that needs."""
    head = next(n for n in reversed(function.nodes) if isinstance(n.op, MatMul))
    outputs = (head.operands[0],)
    needed = set(outputs)
    kept: list[Node] = []
    for node in reversed(function.nodes):
        if needed.intersection(node.results):
            kept.append(node)
            needed.update(node.operands)
    return replace(function, nodes=tuple(reversed(kept)), outputs=outputs)


def mlp_training(model: LoadedModel, batch_size: int, precision: str) -> Workload:
    """One step of forward, backward and SGD."""
    return Workload(model=model, batch_size=batch_size, precision=precision, optimizer="sgd")


def gpt2_inference(
    model: LoadedModel, batch_size: int, precision: str, sequence_length: int
) -> Workload:
    """One forward pass."""
    return Workload(
        model=model,
        mode="inference",
        batch_size=batch_size,
        sequence_length=sequence_length,
        precision=precision,
    )


def strategy(dp: int, hp: int, pp: int, microbatches: int) -> Strategy:
    """The original's D/H/P degrees: horizontal parallelism is tensor parallelism."""
    return Strategy(dp=dp, tp=hp, pp=pp, microbatches=microbatches, schedule="1f1b")
