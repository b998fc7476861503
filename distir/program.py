"""From a model's function to the program of a step: loss, axes, blocks, names for axes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from distir.axes.infer import CopiesDifferError, infer_ordered
from distir.axes.model import Axes, Axis
from distir.axes.order import canonical_order
from distir.errors import TransformError
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.ops.lookup import Gather
from distir.ops.tensor import Boundary, Concat, Reshape, Slice
from distir.transforms.blocks import Blocks, Roles
from distir.transforms.cut import cut_into_blocks
from distir.transforms.fold import Fold, Unfolded
from distir.transforms.loss import attach_loss, is_logits
from distir.transforms.lower import lower_always

UNNAMED = "axis"
"""The family of axes that nothing is known about."""


@dataclass(frozen=True, eq=False)
class Program:
    """A function with its axes and blocks, and the axes that have a part to play."""

    blocks: Blocks
    training: bool
    extents: Extents

    @property
    def batch(self) -> Axis:
        """The axis of samples, over which data parallelism splits."""
        return self.extents.batch

    @property
    def batches(self) -> tuple[Axis, ...]:
        """All axes of samples: the batch, and those of inputs with samples of their own, such as
        the images beside texts. They are equally long and split alike."""
        return self.extents.batches

    @property
    def sequence(self) -> Axis | None:
        """The axis that attention needs whole for keys and values, if there is one."""
        return self.extents.sequences[0] if self.extents.sequences else None

    @property
    def function(self) -> Function:
        """The program's forward part, loss included."""
        return self.blocks.function

    @property
    def axes(self) -> Axes:
        """Axes of the forward part."""
        return self.blocks.axes

    @cached_property
    def sharing_blocks(self) -> frozenset[int]:
        """Blocks with a parameter that another block uses too."""
        return frozenset(block for block, own in enumerate(self.shared_parameters) if own)

    @cached_property
    def shared_parameters(self) -> tuple[tuple[int, ...], ...]:
        """Per block the positions of its parameters that are used elsewhere too."""
        blocks = self.blocks.blocks
        users = Counter(value for block in blocks for value in block.parameters)
        return tuple(
            tuple(place for place, value in enumerate(block.parameters) if users[value] > 1)
            for block in blocks
        )

    @cached_property
    def paddable(self) -> frozenset[Axis]:
        """Output axes that may be made longer with elements that count for nothing: rows of a table
        that are never read, columns that are masked before anything reduces them."""
        return frozenset(
            axis
            for axis in self.blocks.output_axes
            if all(_may_be_padded(self, member) for member in self.members[axis])
        )

    @cached_property
    def families(self) -> Mapping[str, tuple[Axis, ...]]:
        """Axes by what they do; representatives of their groups."""
        return name_axes(self)

    @cached_property
    def by_label(self) -> Mapping[str, Axis]:
        """Named axes: of those that do the same, the second is called `heads2`, and so on."""
        return {
            family if number == 1 else f"{family}{number}": axis
            for family, axes in self.families.items()
            for number, axis in enumerate(axes, start=1)
        }

    def named(self, label: str) -> tuple[Axis, ...]:
        """The axes that a name stands for: all of a family, or one; empty if there is none."""
        if label in self.families:
            return self.families[label]
        return (self.by_label[label],) if label in self.by_label else ()

    @cached_property
    def members(self) -> Mapping[Axis, tuple[Axis, ...]]:
        """Per axis that lists may speak of, all that it stands for."""
        found: dict[Axis, list[Axis]] = {}
        for axis in self.all_axes:
            found.setdefault(self.blocks.group.get(axis, axis), []).append(axis)
        return {axis: tuple(each) for axis, each in found.items()}

    def label(self, axis: Axis) -> str:
        """The name of an axis, or its size where it has none."""
        found = {self.blocks.group.get(a, a): name for name, a in self.by_label.items()}
        return found.get(self.blocks.group.get(axis, axis), f"axis of size {axis.size}")

    def sizes(self, batch_size: int, sequence_length: int | None = None) -> dict[Axis, int]:
        """Sizes of the axes that differ from the function's own: all that are tied to batches and
        sequence."""
        wanted = {self.axes.tied(axis): 1 for axis in self.extents.beside_batch}
        if sequence_length is not None and not self.extents.sequences and wanted:
            # Without attention, what runs beside the batch is what people call the sequence.
            first = self.extents.beside_batch[0]
            wanted[self.axes.tied(first)] = sequence_length
        elif sequence_length is not None:
            self._check_length(sequence_length)
            for axis in self.extents.sequences:
                wanted[self.axes.tied(axis)] = sequence_length
        wanted |= {self.axes.tied(axis): batch_size for axis in self.batches}
        sizes = {
            axis: wanted[self.axes.tied(axis)]
            for axis in self.all_axes
            if self.axes.tied(axis) in wanted
        }
        return self._with_followers(sizes)

    def _with_followers(self, sizes: dict[Axis, int]) -> dict[Axis, int]:
        """With the sizes of the axes that follow others: as many as the op that makes them says."""
        for node in self._makers_of_followers:
            types = (self.axes.type_at(value, sizes) for value in node.operands)
            for value, type in zip(node.results, node.op.infer(*types), strict=True):
                for dim, size in zip(self.axes.dims[value], type.shape, strict=True):
                    if len(dim) == 1 and dim[0] in self.axes.follows:
                        sizes[dim[0]] = size
        return sizes

    @cached_property
    def _makers_of_followers(self) -> tuple[Node, ...]:
        """Ops whose results have an axis that follows one of their operands'."""
        if not self.axes.follows:
            return ()
        return tuple(node for node in self.function.nodes if followers_made(node, self.axes))

    @cached_property
    def all_axes(self) -> tuple[Axis, ...]:
        """Every axis of the program, once."""
        dims = self.axes.dims.values()
        return tuple(dict.fromkeys(axis for value in dims for dim in value for axis in dim))

    def _check_length(self, length: int) -> None:
        if self.sequence is None:
            raise TransformError("the model has no sequence axis; leave out the sequence length")
        longest = self.longest_sequence
        if longest is not None and length > longest:
            raise TransformError(
                f"sequence length {length} is too long: the position table has {longest:,} rows"
            )
        if self.extents.fixed_sequence and length != self.sequence.size:
            raise TransformError(
                f"sequence length {length}: the model's is fixed at {self.sequence.size} by "
                f"{self.extents.fixed_sequence}; export it at the length you want"
            )

    @cached_property
    def longest_sequence(self) -> int | None:
        """Rows of the shortest table that is read at constant positions along a sequence."""
        tied = {self.axes.tied(axis) for axis in self.extents.sequences}
        rows: list[int] = []
        for node in self.function.nodes:
            if not isinstance(node.op, (Gather, Slice)):
                continue
            if any(value in self.blocks.roles.moving for value in node.operands):
                continue
            if self._repeats_rows(node):
                continue
            along = [axis for axis in self.axes.of(node.result) if self.axes.tied(axis) in tied]
            # Buckets of distances run along two sequences; positions along one.
            if len(along) == 1:
                table = node.operands[0].type.shape
                axis = node.op.axis if isinstance(node.op, Gather) else _cut_dim(node)
                # The file's own sequence fits: a shorter table is read at something else.
                if axis is not None and table[axis] >= along[0].size:
                    rows.append(table[axis])
        return min(rows, default=None)

    def _repeats_rows(self, node: Node) -> bool:
        """Whether a Gather is known to read rows more than once, as segments are: these are no
        positions."""
        index = self.function.constants.get(node.operands[-1])
        if index is None or not isinstance(node.op, Gather):
            return False
        carried = math.prod(axis.size for axis in self.axes.of(node.operands[-1]))
        return len(set(index.reshape(-1).tolist())) < carried


def _cut_dim(node: Node) -> int | None:
    """The dim that a Slice shortens, if it is one."""
    before, after = node.operands[0].type.shape, node.result.type.shape
    cut = [dim for dim, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    return cut[0] if len(cut) == 1 else None


@dataclass(frozen=True, slots=True)
class Extents:
    """The axes that a workload sizes. Of further axes of inputs that nothing sums or needs whole,
    `further_batches` are the first ones of inputs without the batch, sized like it, and
    `beside_batch` the others, which get size 1; `fixed_sequence` names the op that ties the
    sequence to a size of the file."""

    batch: Axis
    sequences: tuple[Axis, ...]
    further_batches: tuple[Axis, ...]
    beside_batch: tuple[Axis, ...]
    fixed_sequence: str | None

    @property
    def batches(self) -> tuple[Axis, ...]:
        """All axes of samples."""
        return (self.batch, *self.further_batches)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes that are spoken of."""
        return (*self.batches, *self.sequences, *self.beside_batch)


def build_program(
    function: Function, *, training: bool, loss: str | None = None, output: str | None = None
) -> Program:
    """Attaches a loss if training, infers axes and cuts blocks.

    Without `loss`, it is cross-entropy where the main output is logits, else mean squared error.
    """
    function = _with_main_output(function, output, keep_others=not training)
    function = canonical_order(lower_always(function))
    fold = Fold.of(function)
    found = _by_the_short(fold) if fold else None
    if found is None:
        short = _Analysed.of(function)
        found = short, Unfolded(short.function, short.axes, {})
    short, whole = found
    extents, axes = short.extents, whole.axes
    function = _with_batched_tables(whole.function, axes, extents.batches)
    if training:
        function, axes = attach_loss(function, axes, loss or short.usual_loss)
    return Program(cut_into_blocks(function, axes, whole.places), training, extents)


def _by_the_short(fold: Fold) -> tuple[_Analysed, Unfolded] | None:
    """What is found in the short function, and the whole unfolded by it, if copies are alike."""
    try:
        short = _Analysed.of(fold.short, fold.last_copies)
    except CopiesDifferError:
        return None
    whole = fold.unfold(short.function, short.axes, short.extents.axes)
    return None if whole is None else (short, whole)


@dataclass(frozen=True, slots=True)
class _Analysed:
    """A function with its boundaries and axes, and what they say of it."""

    function: Function
    axes: Axes
    extents: Extents

    @classmethod
    def of(cls, function: Function, last_copies: Mapping[Value, Value] | None = None) -> _Analysed:
        """What the ops say, in the order in which they are."""
        function, axes = infer_ordered(function, last_copies=last_copies)
        return cls(function, axes, find_extents(function, axes))

    @property
    def usual_loss(self) -> str:
        """The loss of a model that states none."""
        function = _with_batched_tables(self.function, self.axes, self.extents.batches)
        logits = is_logits(function, self.axes, function.outputs[0])
        return "cross-entropy" if logits else "mse"


def _with_batched_tables(function: Function, axes: Axes, batches: Sequence[Axis]) -> Function:
    """What carries the batch is no parameter: an exporter has computed it beforehand for the batch
    of the file (an expanded bias, a mask). It becomes a table."""
    tied = {axes.tied(axis) for axis in batches}
    tables = [
        value
        for value in function.parameters
        if any(axes.tied(axis) in tied for axis in axes.of(value))
    ]
    if not tables:
        return function
    names = ", ".join(value.name for value in tables)
    return replace(
        function,
        parameters=tuple(value for value in function.parameters if value not in tables),
        constants={**function.constants, **dict.fromkeys(tables)},
        notes=(*function.notes, f"not trained, since they carry the batch: {names}"),
    )


def _with_main_output(function: Function, name: str | None, keep_others: bool) -> Function:
    outputs = list(function.outputs)
    if name is not None:
        found = [value for value in outputs if value.name == name]
        if not found:
            known = ", ".join(value.name for value in outputs)
            raise TransformError(f"the model has no output {name!r}; its outputs are {known}")
        outputs = [found[0], *(value for value in outputs if value is not found[0])]
    return replace(function, outputs=tuple(outputs if keep_others else outputs[:1]))


def find_extents(function: Function, axes: Axes) -> Extents:
    """The batch: the first axis of the inputs that is never whole, summed or re-axed on an
    activation, or, if all are, that of their first dim. Sequences: axes that needed a boundary and
    that no weight of a product carries."""
    roles = Roles.of(function)
    barred: set[Axis] = set()
    bounded: dict[Axis, None] = {}
    weighed: set[Axis] = set()
    for node in function.nodes:
        weights = [v for v in node.operands if v in roles.weights and len(axes.of(v)) > 1]
        kinds = axes.kinds[node]
        if any(value in roles.activations for value in node.results):
            barred.update(axis for axis, kind in kinds.items() if kind is not Kind.PARALLEL)
            if Kind.SUM in kinds.values():
                weighed.update(axis for value in weights for axis in axes.of(value))
            if isinstance(node.op, Boundary):
                after = axes.of(node.result)
                before = (a for dim in axes.dims[node.operands[0]] for a in dim)
                bounded.update(dict.fromkeys(a for a in before if a not in after))
    carried = [a for value in function.inputs for dim in axes.dims[value] for a in dim]
    activations = {a for v in axes.dims if v in roles.activations for a in axes.of(v)}
    batch = next((a for a in carried if a not in barred and a in activations), None)
    if batch is None:
        # Samples that meet (in a batch norm, say) are still what inputs list first.
        outermost = [a for value in function.inputs for a in (axes.dims[value] or ((),))[0]]
        batch = next((a for a in outermost if a in activations), None)
    if not roles.activations:
        raise TransformError("no parameter meets an input: there is nothing to distribute")
    if batch is None:
        reason = (
            "no input has a batch dim of size 2 or more that reaches the output; export the model "
            "with a batch of at least 2, or with a symbolic batch dim"
        )
        of_batch = (note for note in function.notes if "batch" in note)
        raise TransformError("; ".join((reason, *of_batch)))
    ties = {axes.tied(axis) for axis in bounded if axis not in weighed and axis is not batch}
    sequences = [a for a in carried if a is not batch and axes.tied(a) in ties]
    if not sequences:
        sequences = [a for a in bounded if a not in weighed and a is not batch][:1]
    others = dict.fromkeys(
        axis
        for axis in carried
        if axis not in barred
        and axis in activations
        and axes.tied(axis) is not axes.tied(batch)
        and axis not in sequences
    )
    first = {
        axes.dims[value][0][0]
        for value in function.inputs
        if axes.dims[value] and axes.dims[value][0] and batch not in axes.of(value)
    }
    return Extents(
        batch,
        sequences=tuple(dict.fromkeys(sequences)),
        further_batches=tuple(axis for axis in others if axis in first),
        beside_batch=tuple(axis for axis in others if axis not in first),
        fixed_sequence=_fixed_by(function, axes, {axes.tied(axis) for axis in sequences}),
    )


def _fixed_by(function: Function, axes: Axes, sequences: set[Axis]) -> str | None:
    """The op that makes an activation's sequence out of parts of other sizes, if there is one."""
    inputs = {axes.tied(axis) for value in function.inputs for axis in axes.of(value)}
    for node in function.nodes:
        if not isinstance(node.op, (Concat, Reshape)):
            continue
        kinds = axes.kinds[node]
        made = {
            axes.tied(axis)
            for value in node.results
            for axis in axes.of(value)
            if kinds.get(axis) is Kind.WHOLE
        }
        held = {axes.tied(axis) for value in node.operands for axis in axes.of(value)}
        if (made - held - inputs) & sequences:
            shapes = " and ".join(str(list(v.type.shape)) for v in node.operands)
            return f"{node.op.name} of {shapes}"
    return None


def name_axes(program: Program) -> dict[str, tuple[Axis, ...]]:
    """Names for people, from what the axes do: batch, sequence, heads, queries, ffn, experts,
    vocabulary, hidden; and the axes that do it, in model order."""
    blocks, axes = program.blocks, program.axes
    named: dict[str, list[Axis]] = {}
    taken: set[Axis] = set()

    def name(label: str, axis: Axis) -> None:
        axis = blocks.group.get(axis, axis)
        if axis not in taken:
            taken.add(axis)
            named.setdefault(label, []).append(axis)

    for axis in program.batches:
        name("batch", axis)
    for axis in program.extents.sequences:
        name("sequence", axis)
    for axis in blocks.internal_axes:
        name("heads" if axis in blocks.head_axes else "ffn", axis)
    for axis in blocks.inner_axes.values():
        name("queries", axis)
    for axis in blocks.expert_axes:
        name("experts", axis)
    for axis in blocks.output_axes:
        name("vocabulary", axis)
    for block in blocks.blocks:
        for value in block.outputs:
            for axis in axes.dims[value][-1] if axes.dims[value] else ():
                name("hidden", axis)
    for index in sorted(set(blocks.representative)):
        for axis in blocks.blocks[index].axis_order(axes):
            name(UNNAMED, axis)
    return {label: tuple(found) for label, found in named.items()}


def followers_made(node: Node, axes: Axes) -> tuple[Axis, ...]:
    """The axes that follow another and that a node's results have before anything else does."""
    given = {axis for value in node.operands for axis in axes.of(value)}
    made = (axis for value in node.results for dim in axes.dims[value] for axis in dim)
    return tuple(axis for axis in made if axis in axes.follows and axis not in given)


def _may_be_padded(program: Program, axis: Axis) -> bool:
    """Whether every op that has the axis goes over it element by element, picks rows by an index,
    or ignores what is masked."""
    axes, roles = program.axes, program.blocks.roles
    if any(axes.tied(other) is axes.tied(axis) for other in program.all_axes if other is not axis):
        return False
    if any(axis in axes.of(value) for value in (*roles.free, *program.function.constants)):
        return False
    for node in program.function.nodes:
        kind = axes.kinds[node].get(axis)
        if kind in (None, Kind.PARALLEL):
            continue
        dims = axes.dims[node.operands[0]]
        masked = [dims[dim] for dim in node.op.masked_dims(node.operand_types)]
        picked = kind is Kind.PICK and node.operands[0] in roles.weights
        if not picked and (axis,) not in masked:
            return False
    return True


def parameter_count(function: Function) -> int:
    """Number of trained numbers."""
    return sum(math.prod(value.type.shape) for value in function.parameters)
