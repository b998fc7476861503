"""Recomputation: computes forward values again in the backward pass instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from distir.axes.model import Axes, Axis, AxisDims
from distir.cost.work import OpClass
from distir.ir.core import Node, Value
from distir.ops.elementwise import Elementwise
from distir.ops.tensor import Scale
from distir.registry import Registry
from distir.transforms.blocks import Blocks
from distir.transforms.least_kept import least_kept
from distir.transforms.step import BlockStep

Policy = Callable[[Blocks, BlockStep, Collection[Axis]], frozenset[Value]]
"""Chooses the forward values of a block that are not kept. Its last argument are the axes
(representatives) of entries that count everywhere or not at all, such as experts: an op that adds
such an axis exchanges its result between devices."""

RECOMPUTE: Registry[Policy] = Registry("recomputation")

POLICIES = ("none", "selective", "full")
"""What a layer may do where plans choose, from that which keeps most."""


@RECOMPUTE.register("none", "keep everything that the backward pass reads")
def _nothing(blocks: Blocks, step: BlockStep, exchanged: Collection[Axis]) -> frozenset[Value]:
    return frozenset()


@RECOMPUTE.register("full", "keep the inputs of every layer, run the layer again")
def _everything(blocks: Blocks, step: BlockStep, exchanged: Collection[Axis]) -> frozenset[Value]:
    return frozenset(value for node in step.forward for value in node.results)


@RECOMPUTE.register("needed", "as full, but no further than the backward pass of a layer needs")
def _no_further(blocks: Blocks, step: BlockStep, exchanged: Collection[Axis]) -> frozenset[Value]:
    """As PyTorch's non-reentrant checkpoints and XLA's rematerialisation do: the last product of a
    layer is not run again, nor the collective behind it."""
    return _everything(blocks, step, exchanged)


@RECOMPUTE.register("selective", "compute again what is cheap to compute and large to keep")
def _selective(blocks: Blocks, step: BlockStep, exchanged: Collection[Axis]) -> frozenset[Value]:
    return _cheap(blocks, step, exchanged)


@RECOMPUTE.register("alternate", "as selective, and every other product with a parameter as well")
def _alternate(blocks: Blocks, step: BlockStep, exchanged: Collection[Axis]) -> frozenset[Value]:
    """torchtitan's selective policy (distributed/activation_checkpoint.py): results of a layer's
    first, third, … product with a parameter are kept."""
    weights = step.sources | views_of_parameters(step)
    products = [
        node
        for node in step.forward
        if node.op.work(node.operand_types, node.result_types).kind is OpClass.PRODUCT
        and any(value in weights for value in node.operands)
    ]
    return _cheap(blocks, step, exchanged, products[1::2])


def _is_memory_bound(node: Node) -> bool:
    return node.op.work(node.operand_types, node.result_types).kind is OpClass.MEMORY


def _cheap(
    blocks: Blocks,
    step: BlockStep,
    exchanged: Collection[Axis],
    others: Collection[Node] = (),
) -> frozenset[Value]:
    """The values that are cheap to compute again.

    If the model has values that grow with the square of the sequence, it is these (Korthikanti et
    al. 2022, section 5). Otherwise it is as many bytes as can be computed again by memory-bound ops
    (norms, activation functions), by products that expand a low rank (DeepSeek-AI 2024, section
    3.2.3) and by `others`.
    """
    made = [value for node in step.forward for value in node.results]
    if _has_quadratic(blocks):
        return frozenset(value for value in made if _is_quadratic(value, step.axes, blocks.axes))
    outputs = set(step.block.outputs)

    def again(node: Node) -> bool:
        if not outputs.isdisjoint(node.results) or _is_exchanged(node, blocks, step, exchanged):
            return False
        return node in others or _is_memory_bound(node) or _expands(node, step)

    read = {value for node in step.backward for value in node.operands}
    kept = least_kept(step.forward, step.block.inputs, read, again)
    views = {value for node in step.forward if node.op.is_view for value in node.results}
    return frozenset(made) - kept - views - outputs


def _expands(node: Node, step: BlockStep) -> bool:
    """Whether an op is a product that sums over less than half the width of the block's input: it
    costs less than half the FLOPs per byte of its result that the block's other products do."""
    work = node.op.work(node.operand_types, node.result_types)
    shape = step.block.inputs[0].type.shape if step.block.inputs else ()
    if work.kind is not OpClass.PRODUCT or not shape:
        return False
    return float(work.flops) / sum(t.num_elements for t in node.result_types) < shape[-1]


def _is_exchanged(node: Node, blocks: Blocks, step: BlockStep, exchanged: Collection[Axis]) -> bool:
    """Whether an op's result is exchanged between devices, as tokens on the way to experts are: it
    has an `exchanged` axis that the operands do not have."""
    read = {axis for v in node.operands if v not in step.sources for axis in step.axes.of(v)}
    made = {axis for value in node.results for axis in step.axes.of(value)}
    return any(blocks.group.get(axis, axis) in exchanged for axis in made - read)


def _has_quadratic(blocks: Blocks) -> bool:
    return any(_is_quadratic(value, blocks.axes, blocks.axes) for value in blocks.roles.activations)


def _is_quadratic(value: Value, axes: Axes, known: Axes) -> bool:
    """Whether a value carries two axes of tied size, such as both sides of a boundary."""
    carried = [known.tied(axis) for axis in axes.of(value)]
    return len(carried) > len(set(carried))


def views_of_parameters(step: BlockStep) -> frozenset[Value]:
    """Forward values that are views of parameters. Making such a view again is free; keeping it
    would keep the parameter that was gathered for the forward pass."""
    shown = set(step.block.parameters)
    for node in step.forward:
        if node.op.is_view and node.operands[0] in shown:
            shown.update(node.results)
    return frozenset(shown.difference(step.block.parameters))


def inside_kernels(step: BlockStep) -> frozenset[Value]:
    """Forward values between two ops of one fused kernel that need not be kept, because the fused
    backward kernel can make them from values kept anyway: as the activation of a gate from the gate
    (Megatron-LM, fusions/fused_bias_swiglu.py). For stacks that fuse elementwise ops."""
    there = {value for node in step.backward for value in node.operands} | step.sources
    readers: dict[Value, list[Node]] = {}
    for node in step.forward:
        for value in node.operands:
            readers.setdefault(value, []).append(node)
    return frozenset(
        node.result
        for node in step.forward
        if _is_fused(node)
        and there.issuperset(node.operands)
        and all(map(_is_fused, readers.get(node.result, ())))
        and node.result not in step.block.outputs
    )


def _is_fused(node: Node) -> bool:
    """Whether an op may be fused with others and gives the same result when run again."""
    fuses = isinstance(node.op, (Elementwise, Scale)) and not node.op.is_view
    return fuses and len(node.results) == 1


def recompute(
    step: BlockStep, dropped: Collection[Value], eager: bool = False, to_end: bool = False
) -> BlockStep:
    """The step with the `dropped` forward values computed again in the backward pass.

    They are computed where they are first needed, or all at the beginning if `eager`. With
    `to_end`, the whole block runs again up to its outputs, which nobody reads, and with their
    collectives, as PyTorch's reentrant checkpoints do.
    """
    lost = _with_views(step.forward, set(dropped))
    read = {value for node in step.backward for value in node.operands}
    again = _needed(step.forward, lost & read, lost)
    if not again:
        return step
    if to_end:
        again = list(step.forward)
    copies = {value: Value(value.type, value.name) for node in again for value in node.results}
    clones = {node: _renamed(node, copies, with_results=True) for node in again}
    maker = {value: node for node in again for value in node.results}
    backward: list[Node] = []
    emitted: set[Node] = set()

    def emit(node: Node) -> None:
        if node in emitted:
            return
        emitted.add(node)
        for value in node.operands:
            if value in maker:
                emit(maker[value])
        backward.append(clones[node])

    if eager:
        for node in again:
            emit(node)
    renamed: dict[Node, Node] = {}
    for node in step.backward:
        for value in node.operands:
            if value in maker:
                emit(maker[value])
        renamed[node] = _renamed(node, copies, with_results=False)
        backward.append(renamed[node])
    axes = _extended(step.axes, copies, {**clones, **renamed})
    ends = tuple(copies[v] for v in step.block.outputs if v in copies) if to_end else ()
    return replace(step, backward=tuple(backward), axes=axes, repeated_outputs=ends)


def _with_views(nodes: Sequence[Node], dropped: set[Value]) -> set[Value]:
    """The dropped values and the views of them: a view that is kept would keep its memory."""
    lost = set(dropped)
    for node in nodes:
        if node.op.is_view and node.operands[0] in lost:
            lost.update(node.results)
    return lost


def _needed(nodes: Sequence[Node], wanted: set[Value], lost: set[Value]) -> list[Node]:
    """The ops that compute the wanted values from values that are not `lost`, in order."""
    again: list[Node] = []
    needed = set(wanted)
    for node in reversed(nodes):
        if any(value in needed for value in node.results):
            needed.update(value for value in node.operands if value in lost)
            again.append(node)
    return again[::-1]


def _renamed(node: Node, copies: Mapping[Value, Value], with_results: bool) -> Node:
    operands = tuple(copies.get(value, value) for value in node.operands)
    results = tuple(copies[value] for value in node.results) if with_results else node.results
    return replace(node, operands=operands, results=results)


def _extended(axes: Axes, copies: Mapping[Value, Value], nodes: Mapping[Node, Node]) -> Axes:
    """The axes, with those of copied values and nodes added."""
    dims: dict[Value, AxisDims] = dict(axes.dims)
    dims.update((copy, axes.dims[value]) for value, copy in copies.items())
    return replace(
        axes,
        dims=dims,
        loops={**axes.loops, **{new: axes.loops[old] for old, new in nodes.items()}},
        kinds={**axes.kinds, **{new: axes.kinds[old] for old, new in nodes.items()}},
    )
