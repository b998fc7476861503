"""Instructions: the nodes of a block's program, each with its stream, its seconds and its operands.

This is the one place where nodes become seconds. Both engines read instructions; they differ in how
they schedule and compose them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from distir.cost import CostModel, Device, OpClass, Work
from distir.cost.amounts import Amount, larger, smaller
from distir.cost.collectives import CollectiveKind, Copies
from distir.cost.products import ProductShape
from distir.cost.stack import Scaling
from distir.ir.core import Node, Op, Part, Value
from distir.ops.collective import Bucket, Collective, Rearranged, Sharded
from distir.ops.fused import Fused
from distir.ops.host import HOST, Landed
from distir.ops.linalg import Einsum, product_shape
from distir.ops.loss import CrossEntropy, CrossEntropyGradient
from distir.ops.norm import (
    NormalizationGradient,
    NormalizationScaleGradient,
    RMSNormalization,
)
from distir.ops.ring import ROWS, Circulating, Ring
from distir.ops.routing import Combine, Dispatch
from distir.plan import BlockProgram, Plan
from distir.plan.grid import RANKS, DeviceGrid
from distir.simulation.pricing.pipelining import products_beside
from distir.simulation.pricing.state import (
    optimizer_bytes_per_element,
    outer_bytes_per_element,
)
from distir.workload import OPTIMIZERS, OUTER_OPTIMIZERS, TF32, Workload

COMPUTE = "compute"
"""Name of the compute stream. Communication streams have the names of the degrees (dp, tp, …) to
which their mesh axes belong."""

GRADIENTS = "gradients"
"""Name of the stream on which gradients are settled."""

LOSS_PASSES: dict[type[Op], tuple[int, int, int]] = {
    CrossEntropy: (22, 16, 7),
    CrossEntropyGradient: (8, 6, 3),
}
"""Bytes read and bytes written per logit, and launches, of a loss that runs op by op on fp32
logits.

Forward: cast (2 read, 4 written), maximum (4, 0), difference (4, 4), exponential (4, 4), sum
(4, 0), quotient (4, 4). Backward: times the gradient (4, 4), cast (4, 2)."""

NORM_PASSES: dict[type[Op], tuple[int, int, int]] = {
    RMSNormalization: (20, 16, 8),
    NormalizationGradient: (44, 32, 13),
    NormalizationScaleGradient: (6, 2, 2),
}
"""Bytes read and bytes written per element, and launches, of a root-mean-square norm in 16 bits
that runs op by op on fp32 copies (PyTorch until 2.8, aten/src/ATen/native/layer_norm.cpp,
`rms_norm`).

Forward: cast (2 read, 4 written), square (4, 4), mean (4, 0), two ops on a number per row, product
with the factor (4, 4), cast (4, 2), product with the scale (2, 2). Backward of the operand: product
with the scale (2, 2), cast (2, 4), products with the factor (4, 4) and with the operand (8, 4), sum
(4, 0), three ops on a number per row, the derivative of the square (4, 4, twice, and 4, 4 with the
row's number), addition (8, 4), cast (4, 2). Of the scale: product (4, 2), sum (2, 0)."""

METRIC_PASSES = (14, 8, 3)
"""Bytes read and bytes written per logit, and launches, of a metric that is a cross-entropy, as
PyTorch runs it: cast (2, 4), logarithm of the softmax, which reads three times (12, 4;
aten/src/ATen/native/cuda/SoftMax.cu, cunn_SoftMaxForward), and the choice of the targets, which is
a launch that moves few bytes."""


class Instruction(NamedTuple):
    """Work that occupies one stream of a device for some time."""

    stream: str | None
    """None: a view, which is done as soon as its operand is ready."""
    seconds: float
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    label: str
    size_bytes: float = 0.0
    """Bytes that a collective moves: the full tensor per device."""
    mesh_axes: tuple[str, ...] = ()
    """Of a collective: its members are the devices that differ along these mesh axes only."""
    after_compute: bool = False
    """Whether it waits for all compute before it in program order."""
    launch_seconds: float = 0.0
    """Seconds that the host takes to launch it."""

    def of_values(self, reads: tuple[Value, ...], writes: tuple[Value, ...]) -> Instruction:
        """The same work on other values."""
        return Instruction(
            self.stream,
            self.seconds,
            reads,
            writes,
            self.label,
            self.size_bytes,
            self.mesh_axes,
            self.after_compute,
            self.launch_seconds,
        )


def label_of(op: Op) -> str:
    """What a trace calls an op: its name, with what tells it from others of this name."""
    if isinstance(op, Fused):
        return f"Fused ({', '.join(label_of(step) for step, _ in op.steps)})"
    if isinstance(op, Sharded):
        return label_of(op.op)
    if isinstance(op, Einsum):
        return f"Einsum {op.equation}"
    if isinstance(op, Bucket):
        return f"{op.parts[0].name} of {len(op.parts)} tensors"
    if isinstance(op, Rearranged):
        return f"{op.name} ({op.why})"
    return op.name


def narrower_products(workload: Workload, device: Device) -> str | None:
    """The narrower type in which the products of a workload run; None if the workload has none or
    the device does not support it."""
    return workload.types.narrower(device.supports)


def casts_operands(workload: Workload, device: Device) -> bool:
    """Whether operands of products are cast to a narrower type, in which what only products read
    can be made at once."""
    narrower = narrower_products(workload, device)
    return narrower is not None and narrower == workload.types.cast


def products_run_as(workload: Workload, device: Device) -> str:
    """The type in which the products of a workload run on a device: its own, or what the device
    has in its place. Raises `ClusterError` if the device has none."""
    wanted = workload.types.compute.short_name
    return narrower_products(workload, device) or device.runs_as(wanted)


def narrow_bytes(node: Node, product: str | None) -> int:
    """Bytes of a node's operands that are in the narrower type of products already."""
    return sum(t.size_bytes for t in node.operand_types if t.dtype.short_name == product)


def with_casts(
    work: Work, product: str | None, narrow_bytes: float = 0.0, scaling: Scaling = "delayed"
) -> tuple[Work, ...]:
    """A product in the narrower type `product`, and its share of the kernels that cast its
    operands; other work, and all if there is no such type, as it is. In TF32 nothing is cast.

    An operand of a product is also an operand, transposed, of a product of its derivative. One
    kernel reads it in the wider type and writes both layouts (Transformer Engine,
    nvte_cast_transpose). So a product pays, for each operand, half of the reading and the
    writing of its own layout. `narrow_bytes` of its operands are in the narrower type already:
    a value that only products read is made in that type.

    That needs a scale that is known before. If it is the operand's own maximum (`current`), a pass
    finds it first, and nobody makes an operand in the narrower type at once. If every row has its
    own (`rows`), both layouts have scales of their own and are cast one by one.
    """
    if product == TF32:
        return (in_tf32(work),)
    on_matrix_units = work.kind is OpClass.PRODUCT and work.dtype != "fp32"
    if product is None or not on_matrix_units:
        return (work,)
    half = 0.5 * (work.bytes_read - narrow_bytes)
    narrower = replace(work, bytes_read=half + narrow_bytes, dtype=product)
    read = half
    if scaling == "current":
        read = 2 * (half + narrow_bytes)
    elif scaling == "rows":
        read = 2 * half
    launches = 2.0 if scaling == "current" else 1.0
    cast = Work(bytes_read=read, bytes_written=half, launches=launches)
    return (cast, narrower) if read else (narrower,)


def in_tf32(work: Work) -> Work:
    """Work with its products of fp32 in TF32, those within fused attention as well. Rows count as
    aligned."""
    multiplies = work.kind is not OpClass.MEMORY and work.dtype == "fp32"
    return replace(work, dtype=TF32) if multiplies else work


def _product_type(node: Node, product: str | None) -> str | None:
    """The narrower type in which a node's product runs, where others run in `product`."""
    return None if node.part is Part.WIDE else product


def product_works(node: Node, product: str | None) -> tuple[Work, ...]:
    """The products that a node runs, in the types in which they run; `product` is the narrower type
    of products, None if there is none."""
    work = node.op.work(node.operand_types, node.result_types)
    if work.kind is not OpClass.PRODUCT:
        return ()
    works = with_casts(work, _product_type(node, product), narrow_bytes(node, product))
    return tuple(each for each in works if each.kind is OpClass.PRODUCT)


@dataclass(frozen=True, slots=True)
class Pricing:
    """Seconds of nodes and messages on a cluster, given the devices on which a plan's mesh lies."""

    cost: CostModel
    grid: DeviceGrid
    product: str | None = None
    """The narrower type in which products run; None if they run in the type of values."""

    @classmethod
    def of(cls, cost: CostModel, plan: Plan) -> Pricing:
        """The pricing of a plan."""
        if plan.schedule.pairs:
            cost = cost.without_fixed_overlap
        return cls(cost, plan.grid, narrower_products(plan.workload, cost.cluster.device))

    def of_node(self, node: Node, beside: Sequence[Node] = ()) -> tuple[Instruction, ...]:
        """The instructions of one node; `beside` are the products that it is pipelined with."""
        if isinstance(node.op, Ring):
            return self._ring(node, node.op)
        return (self._single(node, beside),)

    def products_beside(self, nodes: Sequence[Node]) -> Mapping[Node, tuple[Node, ...]]:
        """By gather or scatter of activations in a pass with these nodes: the products that the
        software stack pipelines it with."""
        return products_beside(nodes) if self.cost.stack.overlaps_activations else {}

    def _ring(self, node: Node, op: Ring) -> tuple[Instruction, ...]:
        """The instructions of ring attention: rounds of attention while columns travel.

        While a round is computed, the columns of the next round are on their way. With `n` devices
        that takes `max((n - 1) · computing, (n - 1) · moving) + computing` in all. So there are two
        compute instructions, one for the last round and one for the rounds before it, and one that
        moves columns. Another one moves results back to their devices at the end, if there are any.
        """
        types = node.operand_types, node.result_types
        rounds, home = op.degree - 1, [node.results[i] for i in op.op.returning]
        before, arrived = (Value(node.result_types[0], "in flight") for _ in range(2))
        moving = [node.operands[i] for i in op.op.travelling]
        work = self._uneven(node, op.round_work(*types))
        work = in_tf32(work) if self.product == TF32 else work
        instructions = (
            self._pass_on(op, rounds, op.round_bytes(*types), moving, [arrived]),
            self._computed(op.op, work * rounds, node.operands, [before]),
            self._computed(op.op, work, (*node.operands, before, arrived), node.results),
        )
        if not home:
            return instructions
        return (*instructions, self._pass_on(op, 1, op.return_bytes(types[1]), home, home))

    def _pass_on(
        self,
        op: Ring,
        times: float,
        size_bytes: float,
        reads: Sequence[Value],
        writes: Sequence[Value],
    ) -> Instruction:
        return Instruction(
            self.grid.stream(op.mesh_axes),
            self.collective(op.kind, op.mesh_axes, size_bytes, times),
            tuple(reads),
            tuple(writes),
            label_of(op),
            times * size_bytes,
            op.mesh_axes,
            launch_seconds=times * self.cost.stack.launch_seconds,
        )

    def _computed(
        self, op: Op, work: Work, reads: Sequence[Value], writes: Sequence[Value]
    ) -> Instruction:
        return Instruction(
            COMPUTE,
            cast("float", self.cost.kernel_seconds(work)),
            tuple(reads),
            tuple(writes),
            label_of(op),
            launch_seconds=cast("float", self.cost.launch_seconds(work)),
        )

    def _single(self, node: Node, beside: Sequence[Node] = ()) -> Instruction:
        op = node.op
        if isinstance(op, Collective):
            size = op.total_bytes(node.operand_types, node.result_types)
            seconds = self.collective(op.kind, op.mesh_axes, size, copies=op.copies)
            return Instruction(
                self.stream(op.mesh_axes),
                self._exposed_seconds(op, seconds, beside),
                node.operands,
                node.results,
                label_of(op),
                size,
                op.mesh_axes,
                after_compute=node.part is Part.STATE,
                launch_seconds=self.cost.stack.launch_seconds,
            )
        if isinstance(op, Landed):
            return Instruction(COMPUTE, 0.0, node.operands, (), label_of(op))
        work = self._uneven(node, op.work(node.operand_types, node.result_types))
        if not work.flops and not work.bytes:
            view = self.cost.stack.view_seconds
            return Instruction(
                None, 0.0, node.operands, node.results, label_of(op), launch_seconds=view
            )
        work = self._of_experts(node, work)
        spelled, narrow = self._spelled_out(node, work), narrow_bytes(node, self.product)
        scaling = self.cost.stack.fp8_scaling
        product = _product_type(node, self.product)
        works = (*with_casts(spelled, product, narrow, scaling), *self._metrics(node))
        return Instruction(
            COMPUTE,
            cast("float", sum(self._kernel_seconds(node, each) for each in works)),
            node.operands,
            node.results,
            label_of(op),
            launch_seconds=cast("float", sum(self._launch_seconds(node, each) for each in works)),
        )

    def _kernel_seconds(self, node: Node, work: Work) -> Amount:
        """Seconds of a node's kernels on the device: measured ones of a product, where the software
        stack has them."""
        modelled, table = self.cost.kernel_seconds(work), self.cost.products
        if table is None:
            return modelled
        shape = self._measurable(node, work)
        return modelled if shape is None else table.seconds(shape, modelled)

    def _launch_seconds(self, node: Node, work: Work) -> Amount:
        """Seconds in which the host launches a node's kernels, measured where that is known."""
        modelled, table = self.cost.launch_seconds(work), self.cost.products
        if table is None:
            return modelled
        shape = self._measurable(node, work)
        return modelled if shape is None else table.launch_seconds(shape, modelled)

    def _measurable(self, node: Node, work: Work) -> ProductShape | None:
        """The sizes by which a work may be in a table of measured products."""
        is_product = work.kind is OpClass.PRODUCT
        return product_shape(node.op, node.operand_types, work.dtype) if is_product else None

    def products(self, node: Node) -> Iterator[tuple[ProductShape, Amount, Amount]]:
        """The sizes of the products that a node runs, each with the seconds of its kernel and of
        its launch."""
        for work in product_works(node, self.product):
            shape = self._measurable(node, work)
            if shape is not None:
                yield shape, self._kernel_seconds(node, work), self._launch_seconds(node, work)

    def _uneven(self, node: Node, work: Work) -> Work:
        """The work of the device with most work, where devices have rows of unequal work (causal
        attention whose rows are split in order)."""
        op = node.op
        if self.cost.stack.balances_context or not isinstance(op, (Ring, Sharded)):
            return work
        windows = (window for window in op.windows if window.loop == ROWS)
        pieces = math.prod(
            degree for window in windows for _, by in window.factors for _, degree in by
        )
        if not isinstance(op.op, Circulating):
            return work
        blocks = op.degree if isinstance(op, Ring) else 1
        uneven = op.op.unevenness(pieces, node.operand_types, blocks)
        return replace(work, flops=work.flops * uneven)

    def _of_experts(self, node: Node, work: Work) -> Work:
        """The work of an op of experts with all kernels that the software stack launches for it:
        each expert's product, where they are not one, and half of those of routing beside each of
        the two permutations that a pass has, to the experts and back."""
        stack = self.cost.stack
        op = node.op.op if isinstance(node.op, Sharded) else node.op
        if isinstance(op, (Dispatch, Combine)):
            return replace(work, launches=work.launches + stack.routing_kernels / 2)
        if isinstance(op, Einsum) and not stack.groups_experts:
            return replace(work, launches=work.launches * op.stacked(node.operand_types))
        return work

    def _spelled_out(self, node: Node, work: Work) -> Work:
        """The work of a loss or a norm. If the software stack has no kernel for it, every step of
        it is a pass over memory."""
        passes = self._passes_of(node.op)
        if passes is None:
            return work
        read, written, launches = passes
        elements = node.operands[0].type.num_elements
        return replace(
            work,
            bytes_read=float(read * elements),
            bytes_written=float(written * elements),
            launches=launches,
        )

    def _passes_of(self, op: Op) -> tuple[int, int, int] | None:
        """Bytes read and written per element, and launches, of an op that the software stack spells
        out; None if it has a kernel for it. PyTorch has one for norms that subtract the mean."""
        stack = self.cost.stack
        if stack.spells_loss_out and type(op) in LOSS_PASSES:
            return LOSS_PASSES[type(op)]
        centered = isinstance(op, (NormalizationGradient, NormalizationScaleGradient)) and (
            op.centered
        )
        spelled = stack.spells_norms_out and not centered
        return NORM_PASSES.get(type(op)) if spelled else None

    def _metrics(self, node: Node) -> tuple[Work, ...]:
        """The work of the metrics that a software stack computes from the logits beside the
        loss."""
        count = self.cost.stack.loss_metrics
        if not count or not isinstance(node.op, CrossEntropy):
            return ()
        read, written, launches = METRIC_PASSES
        logits = count * node.operands[0].type.num_elements
        work = Work(
            bytes_read=float(read * logits),
            bytes_written=float(written * logits),
            launches=count * launches,
        )
        return (work,)

    def _exposed_seconds(self, op: Collective, seconds: float, beside: Sequence[Node]) -> float:
        """The seconds of a collective that the software stack does not hide.

        Products `beside` it are done in as many pieces as there are devices. The first piece that a
        gather is needed for, or the last that a scatter sends, is the device's own, so that all
        others are on their way meanwhile: `max(c, t + c/n)` in all, for products of c seconds and a
        collective of t (Wang et al. 2023, Overlap Communication with Dependent Computation via
        Decomposition; asynchronous tensor parallelism in PyTorch,
        torch/distributed/_symmetric_memory, fused_all_gather_matmul). More pieces are more kernels;
        where that costs more than it hides, products stay whole. Exchanges with experts hide a
        fixed fraction behind another microbatch.
        """
        stack = self.cost.stack
        if op.copies is not None and stack.overlaps_exchanges:
            return seconds * (1.0 - stack.overlapped_fraction)
        if not beside:
            return seconds
        computing = sum(self._single(each).seconds for each in beside)
        more = (op.degree - 1) * len(beside) * stack.kernel_ramp_seconds
        left = larger(0.0, seconds - computing * (op.degree - 1) / op.degree)
        return smaller(seconds, left + more)

    def collective(
        self,
        kind: CollectiveKind,
        mesh_axes: tuple[str, ...],
        size_bytes: float,
        times: float = 1,
        copies: Copies | None = None,
    ) -> float:
        """Seconds of `times` collectives, one after the other, over the devices that differ along
        these mesh axes; without any, of copies between a device and its host."""
        if not mesh_axes:
            return times * cast("float", self.cost.host_copy_seconds(size_bytes))
        group = self.grid.group(self.cost.cluster, mesh_axes)
        seconds = self.cost.collective_seconds(kind, size_bytes, group, times, copies)
        return cast("float", seconds)

    def stream(self, mesh_axes: tuple[str, ...]) -> str:
        """The stream of a collective over the devices that differ along these mesh axes."""
        return self.grid.stream(mesh_axes) if mesh_axes else HOST

    def message(
        self, size_bytes: float, repeated_along: tuple[str, ...], here: int, there: int
    ) -> float:
        """Seconds to send a value from the pipeline rank `here` to the rank `there`.

        A value that all devices along the mesh axes `repeated_along` hold can be sent in parts, one
        by each of them, and gathered on arrival (Narayanan et al. 2021, section 4.1), where the
        software does so. The faster of both ways counts.
        """
        return self.message_at(self.level(here, there), size_bytes, repeated_along)

    def scattered_along(self, repeated_along: tuple[str, ...]) -> tuple[str, ...]:
        """The mesh axes along which devices may each send a part of a value that all along
        `repeated_along` hold: these, or none."""
        return repeated_along if self.cost.stack.scatters_messages else ()

    def level(self, here: int, there: int) -> int:
        """Index of the outermost level of the cluster that messages between two pipeline ranks
        cross."""
        distance = abs(there - here) * self.grid.stride(RANKS)
        return self.cost.cluster.crossed_level(distance, self.grid.senders(min(here, there)))

    def message_at(self, level: int, size_bytes: float, repeated_along: tuple[str, ...]) -> float:
        """`message` between ranks whose messages cross this level of the cluster."""
        whole = self.cost.hop_seconds(size_bytes, level)
        along = self.scattered_along(repeated_along)
        if not along:
            return cast("float", whole)
        part = self.cost.hop_seconds(size_bytes / self.grid.members(along), level)
        gather = self.collective("all_gather", along, size_bytes)
        return cast("float", smaller(whole, part + gather))

    def instructions(self, nodes: Sequence[Node]) -> tuple[Instruction, ...]:
        """The instructions of nodes, in order."""
        beside = self.products_beside(nodes)
        return tuple(each for node in nodes for each in self.of_node(node, beside.get(node, ())))

    def buckets(
        self, program: BlockProgram, without: Collection[int] = ()
    ) -> tuple[Instruction, ...]:
        """The collectives that settle the gradients of a block, equal ones fused into one bucket.
        Parameters at the positions `without` are settled by another block."""
        return self._fused(program.settle_by_parameter, without, "gradients")

    def refresh(
        self, program: BlockProgram, without: Collection[int] = ()
    ) -> tuple[Instruction, ...]:
        """The collectives that make a block's stored parameters again from their updated parts, and
        those that replicas average parameters with, which count by their part in an average step;
        equal ones are fused into one bucket. Parameters at the positions `without` are another
        block's."""
        part = 1 / program.sync_every
        averaging = self._fused(program.averaging_by_parameter, without, "parameters")
        return (
            *self._fused(program.refresh_by_parameter, without, "parameters"),
            *(
                each._replace(seconds=each.seconds * part, size_bytes=each.size_bytes * part)
                for each in averaging
            ),
        )

    def _fused(
        self, by_parameter: Sequence[Sequence[Node]], without: Collection[int], what: str
    ) -> tuple[Instruction, ...]:
        sizes: dict[tuple[CollectiveKind, tuple[str, ...], str], float] = {}
        for position, nodes in enumerate(by_parameter):
            for node in nodes:
                op = node.op
                if isinstance(op, Collective) and position not in without:
                    size = op.total_bytes(node.operand_types, node.result_types)
                    key = (op.kind, op.mesh_axes, op.name)
                    sizes[key] = sizes.get(key, 0.0) + size
        return tuple(
            Instruction(
                self.stream(axes),
                self.collective(kind, axes, size),
                (),
                (),
                f"{name} {what}",
                size,
                axes,
            )
            for (kind, axes, name), size in sizes.items()
        )

    def optimizer(
        self, workload: Workload, elements: float, program: BlockProgram | None = None
    ) -> float:
        """Seconds in which `elements` parameters are updated: of one fused kernel; or, where the
        block's `program` has that on the host, there, and parameters that rest on the device are
        copied to it while others are updated."""
        if not elements:
            return 0.0
        if program is not None and program.updates_on_host:
            moved = elements * optimizer_bytes_per_element(workload)
            updated = self.cost.host_memory_seconds(moved)
            copied = self.copied_back(workload, elements, program)
            return cast("float", larger(updated, sum(each.seconds for each in copied)))
        half = 0.5 * elements * optimizer_bytes_per_element(workload)
        work = Work(
            kind=OpClass.MEMORY,
            flops=OPTIMIZERS[workload.optimizer].flops_per_element * elements,
            bytes_read=half,
            bytes_written=half,
        )
        return cast("float", self.cost.op_seconds(work))

    def copied_back(
        self, workload: Workload, elements: float, program: BlockProgram
    ) -> tuple[Instruction, ...]:
        """The copy that brings `elements` parameters back to the device which the host has updated;
        none where they rest on the host. It goes on beside the optimizer's step, and waiting for it
        counts as waiting for that."""
        if not elements or not program.updates_on_host or program.rests_on_host:
            return ()
        size = elements * workload.types.compute.itemsize
        seconds = self.collective("to_device", (), size)
        return (Instruction(HOST, seconds, (), (), "ToDevice parameters", size),)

    def outer_step(self, workload: Workload, elements: float, program: BlockProgram) -> float:
        """Seconds in which an average step has its part of the outer optimizer's, for `elements`
        parameters of a block with this program: of a kernel before replicas add up differences, and
        of one after it; or of the host, where that has the optimizer's state."""
        outer = OUTER_OPTIMIZERS.get(program.outer_optimizer)
        if outer is None or not elements:
            return 0.0
        read, written = outer_bytes_per_element(workload, program)
        if program.updates_on_host:
            moved = self.cost.host_memory_seconds((read + written) * elements)
            return cast("float", moved / program.sync_every)
        work = Work(
            kind=OpClass.MEMORY,
            flops=(1 + outer.flops_per_element) * elements,
            bytes_read=read * elements,
            bytes_written=written * elements,
            launches=2.0,
        )
        return cast("float", self.cost.op_seconds(work) / program.sync_every)
