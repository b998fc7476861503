"""A block's program as instructions: which stream, how long, what it waits for.

This is the one place where nodes become seconds. Both engines read instructions; they differ in
how they schedule and compose them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from distir.cost import CostModel, OpClass, Work
from distir.cost.cluster import Group
from distir.ir.core import Node, Value
from distir.ops.collective import AllGather, AllReduce, AllToAll, Collective, ReduceScatter
from distir.plan import BlockProgram, Plan
from distir.simulation.state import optimizer_bytes_per_element
from distir.workload import OPTIMIZERS, Workload

COMPUTE = "compute"
"""Name of the compute stream; communication streams are named by their mesh axis."""

KINDS = {
    AllReduce: "all_reduce",
    AllGather: "all_gather",
    ReduceScatter: "reduce_scatter",
    AllToAll: "all_to_all",
}


@dataclass(frozen=True, slots=True)
class Instruction:
    """Something that occupies a stream. `stream` None: a view, done as soon as its operand is."""

    stream: str | None
    seconds: float
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    label: str
    size_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Pricing:
    """Seconds on a cluster with a mesh laid out on it."""

    cost: CostModel
    groups: Mapping[str, Group]

    @classmethod
    def of(cls, cost: CostModel, plan: Plan) -> Pricing:
        """The pricing of a plan: mesh axes are laid on consecutive devices, the last innermost."""
        names = zip(plan.mesh.names, plan.sizes.degrees, strict=True)
        groups = {name: cost.cluster.group(degree, plan.stride(name)) for name, degree in names}
        return cls(cost, groups)

    def instruction(self, node: Node) -> Instruction:
        """The instruction of one node."""
        op = node.op
        if isinstance(op, Collective):
            size = op.message_bytes(node.operands[0].type, node.result.type)
            return Instruction(
                op.mesh_axis,
                self.collective(type(op), op.mesh_axis, size),
                node.operands,
                node.results,
                op.name,
                size,
            )
        work = op.work(node.operand_types, node.result_types)
        if not work.flops and not work.bytes:
            return Instruction(None, 0.0, node.operands, node.results, op.name)
        seconds = float(self.cost.op_seconds(work))
        return Instruction(COMPUTE, seconds, node.operands, node.results, op.name)

    def collective(self, op: type[Collective], mesh_axis: str, size_bytes: float) -> float:
        """Seconds of one collective over a mesh axis."""
        group = self.groups[mesh_axis]
        return float(self.cost.collective_seconds(KINDS[op], size_bytes, group))  # type: ignore[arg-type]

    def instructions(self, nodes: Sequence[Node]) -> tuple[Instruction, ...]:
        """The instructions of a program."""
        return tuple(self.instruction(node) for node in nodes)

    def buckets(
        self, program: BlockProgram, without: Collection[int] = ()
    ) -> tuple[Instruction, ...]:
        """Gradient settlement of a block: like collectives fused into one bucket each. `without`
        are positions of parameters that are settled elsewhere."""
        return self._fused(program.settle_by_parameter, without, "gradients")

    def refresh(
        self, program: BlockProgram, without: Collection[int] = ()
    ) -> tuple[Instruction, ...]:
        """Stored parameters made from the parts that devices have updated, in buckets."""
        return self._fused(program.refresh_by_parameter, without, "parameters")

    def _fused(
        self, by_parameter: Sequence[Sequence[Node]], without: Collection[int], what: str
    ) -> tuple[Instruction, ...]:
        sizes: dict[tuple[type[Collective], str], float] = {}
        for position, nodes in enumerate(by_parameter):
            for node in nodes:
                op = node.op
                if isinstance(op, Collective) and position not in without:
                    size = op.message_bytes(node.operands[0].type, node.result.type)
                    key = (type(op), op.mesh_axis)
                    sizes[key] = sizes.get(key, 0.0) + size
        return tuple(
            Instruction(axis, self.collective(op, axis, size), (), (), f"{op.name} {what}", size)
            for (op, axis), size in sizes.items()
        )

    def optimizer(self, workload: Workload, elements: float) -> float:
        """Seconds of one fused optimizer kernel over this many parameters."""
        if not elements:
            return 0.0
        half = 0.5 * elements * optimizer_bytes_per_element(workload)
        work = Work(
            kind=OpClass.MEMORY,
            flops=OPTIMIZERS[workload.optimizer].flops_per_element * elements,
            bytes_read=half,
            bytes_written=half,
        )
        return float(self.cost.op_seconds(work))
