"""The program of a model: its function with loss, axes, names for axes, and blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import accumulate
from operator import mul

from distir.axes.infer import CopiesDifferError, infer_ordered
from distir.axes.model import Axes, Axis, AxisDims
from distir.axes.order import canonical_order
from distir.axes.ranges import Ranges
from distir.errors import TransformError
from distir.garbage import collection_paused
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.ops.lookup import Gather
from distir.ops.tensor import Slice
from distir.transforms.blocks import Blocks
from distir.transforms.cut import cut_into_blocks
from distir.transforms.extents import Extents, find_extents
from distir.transforms.fold import Fold, Unfolded
from distir.transforms.joints import needed, rounds_of_partings
from distir.transforms.layers import Layers, find_layers
from distir.transforms.loss import attach_loss, is_logits
from distir.transforms.lower import lower_always
from distir.transforms.parting import Cut, Parting, parted

UNNAMED = "axis"
"""The name of axes whose purpose is not known."""


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """A model's function (with its loss, if training), cut into blocks, with its axes."""

    blocks: Blocks
    training: bool
    extents: Extents

    def __repr__(self) -> str:
        return f"<Program of {self.function!r}, {len(self.blocks.blocks)} blocks>"

    @property
    def batch(self) -> Axis:
        """The axis of samples, over which data parallelism splits."""
        return self.extents.batch

    @property
    def batches(self) -> tuple[Axis, ...]:
        """All axes of samples: the batch, and the batches of inputs with samples of their own, such
        as images beside texts. They are equally long and split alike."""
        return self.extents.batches

    @property
    def sequence(self) -> Axis | None:
        """The axis that attention needs whole for keys and values; None without one."""
        return self.extents.sequences[0] if self.extents.sequences else None

    @cached_property
    def file_length(self) -> int | None:
        """How long a sequence is in the function as it was built: the factors of the sequence
        together, where ops cut it into pieces or make it of the rows and columns of an image. None
        without a sequence."""
        if self.sequence is None:
            return None
        if self.extents.piece > 1:
            return self.sequence.size * self.extents.piece
        every = (dim for dims in self.axes.dims.values() for dim in dims if self.sequence in dim)
        sequences = frozenset(self.extents.sequences)
        return max(math.prod(axis.size for axis in {*dim} & sequences) for dim in {*every})

    @property
    def function(self) -> Function:
        """The function of the forward pass, including the loss."""
        return self.blocks.function

    @property
    def axes(self) -> Axes:
        """The axes of `function`."""
        return self.blocks.axes

    @property
    def layers(self) -> frozenset[int]:
        """Blocks that are layers, or parts of one: what is recomputed, while embedding and head are
        kept."""
        return self._layers.blocks

    @property
    def num_layers(self) -> int:
        """The number of layers, however blocks cut them."""
        return self._layers.number

    @cached_property
    def _layers(self) -> Layers:
        return find_layers(self.blocks)

    @cached_property
    def sharing_blocks(self) -> frozenset[int]:
        """Indices of the blocks with a parameter that another block uses too."""
        return frozenset(block for block, own in enumerate(self.shared_parameters) if own)

    @cached_property
    def shared_parameters(self) -> tuple[tuple[int, ...], ...]:
        """Per block, the positions of its parameters that other blocks use too."""
        blocks = self.blocks.blocks
        users = Counter(value for block in blocks for value in block.parameters)
        return tuple(
            tuple(place for place, value in enumerate(block.parameters) if users[value] > 1)
            for block in blocks
        )

    @cached_property
    def shared_uses(self) -> tuple[Mapping[Value, int], ...]:
        """Per block, its parameters that other blocks use too, each with its position."""
        every = zip(self.blocks.blocks, self.shared_parameters, strict=True)
        return tuple({block.parameters[at]: at for at in places} for block, places in every)

    @cached_property
    def paddable(self) -> frozenset[Axis]:
        """Output axes that may be padded, since the added elements change nothing: rows of a table
        that are never read, columns that are masked before an op reduces them."""
        return frozenset(
            axis
            for axis in self.blocks.output_axes
            if all(_may_be_padded(self, member) for member in self.members[axis])
        )

    @cached_property
    def families(self) -> Mapping[str, tuple[Axis, ...]]:
        """The axes (representatives) of each name; see `name_axes`."""
        return name_axes(self)

    @cached_property
    def by_label(self) -> Mapping[str, Axis]:
        """The axis of each label. Several axes of one name are labelled `heads`, `heads2`, …"""
        return {
            family if number == 1 else f"{family}{number}": axis
            for family, axes in self.families.items()
            for number, axis in enumerate(axes, start=1)
        }

    def named(self, label: str) -> tuple[Axis, ...]:
        """The axes that a name or label stands for; empty if there are none."""
        if label in self.families:
            return self.families[label]
        return (self.by_label[label],) if label in self.by_label else ()

    @cached_property
    def members(self) -> Mapping[Axis, tuple[Axis, ...]]:
        """Per representative, which axis lists name, all axes that it stands for."""
        found: dict[Axis, list[Axis]] = {}
        for axis in self.all_axes:
            found.setdefault(self.blocks.group.get(axis, axis), []).append(axis)
        return {axis: tuple(each) for axis, each in found.items()}

    def label(self, axis: Axis) -> str:
        """The label of an axis, or its size if it has none."""
        found = {self.blocks.group.get(a, a): name for name, a in self.by_label.items()}
        return found.get(self.blocks.group.get(axis, axis), f"axis of size {axis.size}")

    def sizes(
        self,
        batch_size: int,
        sequence_length: int | None = None,
        kept: Collection[Axis] = frozenset(),
    ) -> dict[Axis, int]:
        """The sizes of all axes tied to a batch or a sequence, for `batch_size` samples at once.

        Without `sequence_length`, sequences keep the model's lengths. Axes beside the batch have
        size 1, but those that are `kept` as they are. Raises `TransformError` if the model cannot
        have that length.
        """
        wanted = {
            self.axes.tied(axis): axis.size if axis in kept else 1
            for axis in self.extents.beside_batch
        }
        if sequence_length is not None and not self.extents.sequences and wanted:
            # Without attention, people call the axis beside the batch the sequence.
            first = self.extents.beside_batch[0]
            wanted[self.axes.tied(first)] = sequence_length
        elif sequence_length is not None:
            self._check_length(sequence_length)
            for axis in () if self.extents.fixed_sequence else self.extents.sequences:
                wanted[self.axes.tied(axis)] = sequence_length // self.extents.piece
        wanted |= {self.axes.tied(axis): batch_size for axis in self.batches}
        return self.sizes_with(wanted)

    def sizes_with(self, wanted: Mapping[Axis, int]) -> dict[Axis, int]:
        """The sizes of all axes that are tied to these, as `axes.tied` names them, or follow
        them."""
        sizes = {
            axis: wanted[self.axes.tied(axis)]
            for axis in self.all_axes
            if self.axes.tied(axis) in wanted
        }
        return self._with_followers(sizes)

    def _with_followers(self, sizes: dict[Axis, int]) -> dict[Axis, int]:
        """The sizes with those of axes that follow others, by the ops that make these axes."""
        for node in self._makers_of_followers:
            types = (self.axes.type_at(value, sizes) for value in node.operands)
            for value, type in zip(node.results, node.op.infer(*types), strict=True):
                for dim, size in zip(self.axes.dims[value], type.shape, strict=True):
                    if len(dim) == 1 and dim[0] in self.axes.follows:
                        sizes[dim[0]] = size
        return sizes

    @cached_property
    def _makers_of_followers(self) -> tuple[Node, ...]:
        """Ops that make an axis which follows another one, as the slots of experts do."""
        if not self.axes.follows:
            return ()
        return tuple(node for node in self.function.nodes if followers_made(node, self.axes))

    @cached_property
    def all_axes(self) -> tuple[Axis, ...]:
        """All axes of the program."""
        dims = self.axes.dims.values()
        return tuple(dict.fromkeys(axis for value in dims for dim in value for axis in dim))

    def _check_length(self, length: int) -> None:
        """Raises `TransformError` if the sequence cannot have this length."""
        if self.sequence is None:
            raise TransformError(
                f"sequence length {length}: the model has no sequence axis; leave out the length"
            )
        if length % self.extents.piece:
            raise TransformError(
                f"sequence length {length}: the model cuts it into pieces of {self.extents.piece}; "
                f"expected a multiple of {self.extents.piece}"
            )
        longest = self.longest_sequence
        if longest is not None and length > longest:
            raise TransformError(
                f"sequence length {length} is too long: the position table has rows for "
                f"{longest:,} positions"
            )
        if self.extents.fixed_sequence and length != self.file_length:
            raise TransformError(
                f"sequence length {length}: the model's is fixed at {self.file_length} by "
                f"{self.extents.fixed_sequence}; export it at the length that you want"
            )

    @cached_property
    def longest_sequence(self) -> int | None:
        """The longest sequence for which the model has positions: the number of rows of its
        shortest position table, without those before the first position. None if it has no such
        table."""
        tied = {self.axes.tied(axis) for axis in self.extents.sequences}
        moving = self.blocks.roles.moving
        rows: list[int] = []
        for node in self.function.nodes:
            if not isinstance(node.op, (Gather, Slice)) or node.operands[0] in moving:
                continue
            if self._repeats_rows(node):
                continue
            along = [axis for axis in self.axes.of(node.result) if self.axes.tied(axis) in tied]
            # Positions run along one sequence; buckets of distances along two.
            if len(along) != 1:
                continue
            table = node.operands[0].type.shape
            axis = node.op.axis if isinstance(node.op, Gather) else _cut_dim(node)
            # A table shorter than the file's sequence is no table of positions.
            if axis is None or table[axis] < along[0].size:
                continue
            before = self._rows_before(node, axis, along[0])
            # Of an index that inputs decide it must be known that it counts positions.
            if before is not None or node.operands[-1] not in moving:
                rows.append(table[axis] - (before or 0))
        return min(rows, default=None)

    def _rows_before(self, node: Node, axis: int, sequence: Axis) -> int | None:
        """The number of a table's rows that a Gather or Slice leaves out before the first position;
        None if its index is not known to grow by one per position."""
        if isinstance(node.op, Slice):
            rows = node.operands[0].type.shape[axis]
            cut = node.op.slices[axis]
            # What ends where the table does is as many of its last rows as there are positions.
            return 0 if range(rows)[cut][-1] == rows - 1 else max(0, cut.start)
        # What is added to positions is what the highest one exceeds the last position by.
        shorter, whole = (ranges.of(node.operands[1]) for ranges in self._ranges_of_lengths)
        if shorter is None or whole is None or whole[1] - shorter[1] != 1:
            return None
        return max(0, int(whole[1]) + 1 - sequence.size)

    @cached_property
    def _ranges_of_lengths(self) -> tuple[Ranges, Ranges]:
        """The ranges of integers with sequences one position shorter, and with those as built."""
        tied = {self.axes.tied(axis) for axis in self.extents.sequences}
        shorter = {a: a.size - 1 for a in self.all_axes if self.axes.tied(a) in tied}
        return (
            Ranges(self.function, self.axes, shorter),
            Ranges(self.function, self.axes, {}),
        )

    def _repeats_rows(self, node: Node) -> bool:
        """Whether a Gather reads some row more than once, as it does with segments: then its index
        is no position."""
        index = self.function.constants.get(node.operands[-1])
        if index is None or not isinstance(node.op, Gather):
            return False
        # Positions may have been repeated for each sample.
        places = self.axes.of(node.operands[-1]).difference(self.batches)
        return len(set(index.reshape(-1).tolist())) < math.prod(axis.size for axis in places)


def _cut_dim(node: Node) -> int | None:
    """The dim that a Slice shortens; None if it shortens several, or none."""
    before, after = node.operands[0].type.shape, node.result.type.shape
    cut = [dim for dim, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    return cut[0] if len(cut) == 1 else None


@collection_paused()
def build_program(
    function: Function,
    *,
    training: bool,
    loss: str | None = None,
    output: str | None = None,
    sequences: Mapping[str, Sequence[int]] | None = None,
) -> Program:
    """Infers the axes of a function, attaches a loss if training, and cuts it into blocks.

    `output` names the main output; by default it is the first. Without `loss`, it is cross-entropy
    if the main output is logits, otherwise mean squared error. `sequences` has dims of inputs, by
    their names, that are stated to be sequences. Raises `TransformError` if the function has no
    such output, no batch, or no parameter that meets an input.
    """
    analysed = partial(_analysed, training=training, loss=loss, sequences=sequences or {})
    function = _with_main_output(function, output, keep_others=not training)
    function = lower_always(function)
    found = rounds_of_partings(function)
    program = analysed(reduce(parted, found, function))
    useful = needed(found, partial(_is_useful, program))
    if sum(map(len, useful)) < sum(map(len, found)):
        program = analysed(reduce(parted, useful, function))
    return program


def _is_useful(program: Program, parting: Parting) -> bool:
    """Whether attention's heads, or the queries of a group, are an axis of a part, within the turns
    in which the parts come. Other parts gain nothing: those of a bottleneck make several sums over
    devices of one, and those of each head are split over heads anyway."""
    blocks = program.blocks
    heads = {*blocks.head_axes, *blocks.inner_axes.values()}
    return any(
        not heads.isdisjoint(blocks.group.get(axis, axis) for axis in within)
        for whole, parts in parting.parameters.items()
        for part in parts
        if part in program.axes.dims  # a later parting may have cut it again
        for within in [_within_turns(program.axes.dims[part], parting.cuts[whole])]
    )


def _within_turns(dims: AxisDims, cut: Cut) -> tuple[Axis, ...]:
    """The axes of a part along the dim in which it was cut, without those of the turns."""
    sizes = accumulate((axis.size for axis in dims[cut.dim]), mul, initial=1)
    turns = next(n for n, size in enumerate(sizes) if size >= cut.turns)
    return dims[cut.dim][turns:]


def _analysed(
    function: Function, training: bool, loss: str | None, sequences: Mapping[str, Sequence[int]]
) -> Program:
    """The program of a function whose first output is the main one."""
    function = canonical_order(function)
    fold = Fold.of(function)
    found = _by_short_function(fold, sequences) if fold else None
    if found is None:
        short = _Analysed.of(function, sequences)
        found = short, Unfolded(short.function, short.axes, {})
    short, whole = found
    extents, axes = short.extents, whole.axes
    function = _with_batched_tables(whole.function, axes, extents.batches)
    if training:
        function, axes = attach_loss(function, axes, loss or short.usual_loss)
    return Program(cut_into_blocks(function, axes, whole.places), training, extents)


def _by_short_function(
    fold: Fold, sequences: Mapping[str, Sequence[int]]
) -> tuple[_Analysed, Unfolded] | None:
    """The analysed short function, and the whole function with what was found there; None if its
    copies are not alike."""
    try:
        short = _Analysed.of(fold.short, sequences, fold.last_copies)
    except CopiesDifferError:
        return None
    whole = fold.unfold(short.function, short.axes, short.extents.axes)
    return None if whole is None else (short, whole)


@dataclass(frozen=True, slots=True)
class _Analysed:
    """A function with its boundaries, its axes, and the axes that a workload sizes."""

    function: Function
    axes: Axes
    extents: Extents

    @classmethod
    def of(
        cls,
        function: Function,
        sequences: Mapping[str, Sequence[int]],
        last_copies: Mapping[Value, Value] | None = None,
    ) -> _Analysed:
        """Analyses a function whose ops are to be visited in the order they have."""
        function, axes = infer_ordered(function, last_copies=last_copies)
        return cls(function, axes, find_extents(function, axes, sequences))

    @property
    def usual_loss(self) -> str:
        """The default loss."""
        function = _with_batched_tables(self.function, self.axes, self.extents.batches)
        logits = is_logits(function, self.axes, function.outputs[0])
        return "cross-entropy" if logits else "mse"


def _with_batched_tables(function: Function, axes: Axes, batches: Sequence[Axis]) -> Function:
    """The function with parameters that carry the batch turned into constants without values. An
    exporter has computed them for the batch of the file, such as a mask or an expanded bias."""
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
        notes=(*function.notes, f"not trained, since they have the batch dimension: {names}"),
    )


def _with_main_output(function: Function, name: str | None, keep_others: bool) -> Function:
    """The function with the named output first; the others follow if they are kept."""
    outputs = list(function.outputs)
    if name is not None:
        found = [value for value in outputs if value.name == name]
        if not found:
            known = ", ".join(value.name for value in outputs)
            raise TransformError(f"the model has no output {name!r}; its outputs are {known}")
        outputs = [found[0], *(value for value in outputs if value is not found[0])]
    return replace(function, outputs=tuple(outputs if keep_others else outputs[:1]))


def name_axes(program: Program) -> dict[str, tuple[Axis, ...]]:
    """Names axes by what they do, for people: batch, sequence, heads, queries, ffn, experts,
    vocabulary, hidden. Per name, the axes (representatives) in model order."""
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
    """The axes that follow another one and that a node's results have but not its operands."""
    given = {axis for value in node.operands for axis in axes.of(value)}
    made = (axis for value in node.results for dim in axes.dims[value] for axis in dim)
    return tuple(axis for axis in made if axis in axes.follows and axis not in given)


def _may_be_padded(program: Program, axis: Axis) -> bool:
    """Whether an axis may be padded: every op goes over it in parallel, looks up rows by an index,
    or ignores masked elements along it; and no constant or free value carries it."""
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
    """The number of trained numbers (elements of parameters)."""
    return sum(math.prod(value.type.shape) for value in function.parameters)
