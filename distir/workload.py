"""The workload: a model, a mode, a batch, a precision and an optimizer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal

from distir.arguments import Checked
from distir.axes.model import Axis
from distir.axes.rescale import rescale
from distir.errors import (
    ImportModelError,
    StrategyError,
    TransformError,
    UnknownNameError,
    shown,
)
from distir.importers.load import LoadedModel
from distir.importers.onnx_bind import names_in
from distir.ir.core import Node
from distir.ir.types import DType
from distir.limits import MOST_SAMPLES, MOST_TOKENS, MOST_WIDTH
from distir.mesh import mesh_axes, undivided
from distir.ops.optimizer import AdamStep, MomentumStep, NesterovStep, SGDStep
from distir.ops.ring import Circulating
from distir.ops.routing import Dispatch
from distir.program import Program, build_program, followers_made, parameter_count
from distir.strategy import CP_EXCHANGES, Strategy
from distir.transforms.lower import without_dropout

Mode = Literal["training", "inference"]


TF32 = "tf32"
"""The type in which matrix units multiply fp32: its range, with ten bits of its fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Element types of a step.

    Values are kept in `compute`, and products run in it, unless `product` names a narrower type
    in which they run on devices that have it. The optimizer updates the `master` copy of
    parameters, or, without one, the parameters themselves; it keeps its moments in `moment`.
    """

    name: str
    compute: DType
    gradient: DType
    master: DType | None
    moment: DType = DType.FLOAT32
    product: str | None = None
    keeps_computed: bool = False
    """Whether the gradients of the last microbatch are kept, as they were computed, beside the
    accumulated ones."""

    @property
    def cast(self) -> str | None:
        """The type that operands of products are cast to, so that what only products read is kept
        in it. None in TF32: matrix units read fp32 and round it as they do."""
        return None if self.product == TF32 else self.product

    def narrower(self, supports: Callable[[str], bool]) -> str | None:
        """The narrower type in which products run on a device that `supports` some types; None if
        there is none or the device lacks it."""
        return self.product if self.product is not None and supports(self.product) else None

    @property
    def gradient_bytes(self) -> int:
        """Bytes per element that the gradient of a parameter takes for the whole step."""
        return self.gradient.itemsize + (self.compute.itemsize if self.keeps_computed else 0)


PRECISIONS = {
    "fp32": Precision(name="fp32", compute=DType.FLOAT32, gradient=DType.FLOAT32, master=None),
    "tf32": Precision(
        name="tf32", compute=DType.FLOAT32, gradient=DType.FLOAT32, master=None, product=TF32
    ),
    "fp16": Precision(
        name="fp16", compute=DType.FLOAT16, gradient=DType.FLOAT16, master=DType.FLOAT32
    ),
    "bf16": Precision(
        name="bf16", compute=DType.BFLOAT16, gradient=DType.BFLOAT16, master=DType.FLOAT32
    ),
    "pure-bf16": Precision(
        name="pure-bf16",
        compute=DType.BFLOAT16,
        gradient=DType.BFLOAT16,
        master=None,
        moment=DType.BFLOAT16,
    ),
    "fp8": Precision(
        name="fp8",
        compute=DType.BFLOAT16,
        gradient=DType.BFLOAT16,
        master=DType.FLOAT32,
        product="fp8",
    ),
}

GRADIENT_PRECISIONS = ("compute", "fp32", "both")
"""The type in which gradients of parameters are accumulated: the one they are computed in, or fp32.
With `both` it is fp32, and those of the last microbatch stay in the type they were computed in."""

DEFAULT_SEQUENCE_LENGTH = 1024
"""The sequence length of models that leave it open."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer: the op of its step, and the number of moments it keeps per parameter."""

    step: type[SGDStep | MomentumStep | AdamStep]
    num_moments: int

    @property
    def flops_per_element(self) -> int:
        """FLOPs of a step per element of a parameter."""
        return self.step.flops_per_element


OPTIMIZERS = {
    "sgd": Optimizer(SGDStep, 0),
    "momentum": Optimizer(MomentumStep, 1),
    "adam": Optimizer(AdamStep, 2),
}

OUTER_OPTIMIZERS = {"nesterov": NesterovStep()}
"""The steps of replicas that synchronise every few steps, by the names of strategies, which have
`mean` for none. Beside its moments each keeps a copy of the parameters that it updates."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Workload(Checked):
    """A model with everything else that does not depend on how it is distributed.

    `batch_size` is the number of samples per step over all devices. `sequence_length` is None for
    models without a sequence, or to keep the model's own length. `loss` and `output` name the loss
    and the main output if the defaults of `build_program` are not wanted. Raises `UnknownNameError`
    or `StrategyError` for values that make no sense.
    """

    model: LoadedModel
    mode: Mode = "training"
    batch_size: int = 1
    sequence_length: int | None = None
    precision: str = "bf16"
    gradient_precision: str = "compute"
    optimizer: str = "adam"
    loss: str | None = None
    output: str | None = None
    dropout: bool = True
    """Whether training uses the dropout that the model has; inference never does."""
    vocabulary_multiple: int = 1
    """What each piece of a vocabulary, and of other output axes that may be padded, is padded to a
    multiple of, however many devices share it (Megatron-LM: 128)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Names match in upper and lower case.
        for name in ("mode", "precision", "gradient_precision", "optimizer", "loss"):
            given = getattr(self, name)
            if isinstance(given, str):
                object.__setattr__(self, name, given.lower())
        if self.mode not in ("training", "inference"):
            raise UnknownNameError("mode", self.mode, ("training", "inference"))
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, PRECISIONS)
        if self.gradient_precision not in GRADIENT_PRECISIONS:
            raise UnknownNameError(
                "gradient precision", self.gradient_precision, GRADIENT_PRECISIONS
            )
        if self.optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", self.optimizer, OPTIMIZERS)
        if self.batch_size < 1:
            raise StrategyError(f"the batch size is {self.batch_size}; expected at least 1")
        if self.batch_size > MOST_SAMPLES:
            raise StrategyError(
                f"the batch size is {shown(self.batch_size)}; expected at most {MOST_SAMPLES:,}"
            )
        multiple = self.vocabulary_multiple
        if type(multiple) is not int or not 1 <= multiple <= MOST_WIDTH:
            raise StrategyError(
                f"vocabulary_multiple is {shown(multiple)}; expected a whole number of at least 1, "
                f"at most {MOST_WIDTH:,}"
            )
        if self.sequence_length is not None and not 1 <= self.sequence_length <= MOST_TOKENS:
            raise StrategyError(
                f"the sequence length is {shown(self.sequence_length)}; expected at least 1, at "
                f"most {MOST_TOKENS:,}"
            )
        longest = self.model.longest
        if self.sequence_length is not None and longest and self.sequence_length > longest:
            raise StrategyError(
                f"sequence length {self.sequence_length} exceeds the {longest} positions that "
                f"{self.model.name} has"
            )

    @property
    def training(self) -> bool:
        """Whether a step has a backward pass and an optimizer."""
        return self.mode == "training"

    @property
    def types(self) -> Precision:
        """Element types of the step."""
        types = PRECISIONS[self.precision]
        if self.gradient_precision == "compute" or types.compute is DType.FLOAT32:
            return types
        keeps = self.gradient_precision == "both"
        return replace(types, gradient=DType.FLOAT32, keeps_computed=keeps)

    @cached_property
    def program(self) -> Program:
        """The model's program, with loss and dropout if training."""
        function = self.model.function
        if not (self.training and self.dropout):
            function = without_dropout(function)
        program = build_program(
            function,
            training=self.training,
            loss=self.loss,
            output=self.output,
            sequences=self.model.sequences,
        )
        _check_batches(program, self.model)
        return program

    def resized(self, **changes: Any) -> Workload:
        """The workload with another batch size, sequence length, precision or optimizer.

        The program, which depends on none of these, is shared, and so are counted FLOPs if the
        lengths are equal. Raises `ValueError` for changes that need another program.
        """
        if not {"model", "mode", "loss", "output", "dropout"}.isdisjoint(changes):
            raise ValueError(
                "the model, mode, loss, output or dropout of a workload cannot be changed; make a "
                "new workload"
            )
        made = replace(self, **changes)
        made.__dict__["program"] = self.program
        if made.length == self.length:
            made.__dict__["_forward_flops"] = self._forward_flops
        return made

    @property
    def length(self) -> int | None:
        """The sequence length in force: the one asked for, otherwise the model's usual one, or the
        file's; None for a model without a sequence."""
        if self.sequence_length is not None or self.program.sequence is None:
            return self.sequence_length
        if not self.length_is_open:
            return self.model.sequence_length or self.program.file_length
        usual = min(
            DEFAULT_SEQUENCE_LENGTH, self.program.longest_sequence or DEFAULT_SEQUENCE_LENGTH
        )
        return usual - usual % self.program.extents.piece or self.program.file_length

    @property
    def length_is_open(self) -> bool:
        """Whether nobody states how long a sequence is: neither the workload nor its model."""
        stated = self.sequence_length is not None or self.model.sequence_length is not None
        is_fixed = self.program.sequence is None or self.program.extents.fixed_sequence is not None
        return not stated and not is_fixed and self._sequence_is_open

    @property
    def _sequence_is_open(self) -> bool:
        """Whether the file or the function leaves the length of the sequence to its user."""
        program = self.program
        return bool(self.model.sequences) or any(
            symbol is not None and program.sequence in dim
            for value in self.model.function.inputs
            for symbol, dim in zip(
                self.model.symbols.get(value.name, ()), program.axes.dims[value], strict=False
            )
        )

    def sizes(self, samples: int) -> dict[Axis, int]:
        """Axis sizes when `samples` are computed at once. Raises `TransformError` if the model
        cannot have that length."""
        program = self.program
        if self.sequence_length is None and program.sequence and program.file_length == self.length:
            # So that further sequences, such as a decoder's, keep their own lengths.
            return program.sizes(samples, kept=self._fixed_beside_batch)
        return program.sizes(samples, self._possible_length, self._fixed_beside_batch)

    def at_its_length(self) -> Workload:
        """The workload with its file read again at the length in force, if the file computes
        lengths that do not follow the sequence; otherwise the workload itself.

        Raises `ImportModelError` if the file cannot have that length, and `TransformError` if it
        makes a sequence of another length of an input that has it.
        """
        model, length = self.model, self.length
        if model.read_again is None or model.at_other_lengths is None:
            return self
        if length is None or length == self.program.file_length:
            return self
        if self.program.extents.fixed_sequence is None and self._lengths_follow:
            return self
        names = self._symbols_of_sequence or model.lengths
        try:
            again = model.read_again(dict.fromkeys(names, length))
        except ImportModelError as error:
            usual = "the usual length" if self.length_is_open else "as asked"
            raise ImportModelError(
                f"{model.name} cannot have {length:,} tokens, {usual}; state another length by "
                f"--sequence-length: {error}"
            ) from error
        own = replace(
            again,
            symbols=model.symbols,
            lengths=model.lengths,
            at_other_lengths=None,
            fixed_length=length,
        )
        made = replace(self, model=own)
        found = made.program.file_length
        if found not in (None, length):
            raise TransformError(
                f"sequence length {length}: with {' = '.join(names)} = {length}, {model.name} "
                f"makes a sequence of {found}; state the size of the input: --size {names[0]}=N"
            )
        return made

    @property
    def _symbols_of_sequence(self) -> list[str]:
        """The names that the file has for the length of its sequence."""
        tied, program = self.program.axes.tied, self.program
        extents = program.extents
        sequences = {tied(axis) for axis in extents.sequences or extents.beside_batch[:1]}
        return [
            text
            for value in self.model.function.inputs
            for text, dim in zip(
                self.model.symbols.get(value.name, ()), program.axes.dims[value], strict=False
            )
            if text in self.model.lengths and not sequences.isdisjoint(map(tied, dim))
        ]

    @cached_property
    def _lengths_follow(self) -> bool:
        """Whether the axes predict every shape of the function at other lengths. They do not where
        the file computes a length itself, such as the number of distances between positions."""
        program, here, there = self.program, self.model.function, self.model.at_other_lengths
        if there is None:
            return True
        counts = [(len(each.inputs), len(each.nodes)) for each in (here, there)]
        if counts[0] != counts[1]:
            return False
        dims, tied = program.axes.dims, program.axes.tied
        sequences = {tied(axis) for axis in program.extents.sequences}
        wanted: dict[Axis, int] = {}
        for value, other in zip(here.inputs, there.inputs, strict=True):
            for dim, size in zip(dims[value], other.type.shape, strict=True):
                for axis in dim if len(dim) == 1 else (a for a in dim if tied(a) in sequences):
                    wanted[tied(axis)] = size // math.prod(a.size for a in dim if a is not axis)
        sizes = program.sizes_with(wanted)
        return all(
            value not in dims or program.axes.type_at(value, sizes).shape == other.type.shape
            for node, twin in zip(here.nodes, there.nodes, strict=True)
            for value, other in zip(node.results, twin.results, strict=True)
        )

    def check_model(self) -> None:
        """Raises `DistirError` if the model cannot have what is stated of it: `TransformError` if
        not its length, `StrategyError` if there is nothing to pad."""
        self.sizes(self.batch_size)
        if self.vocabulary_multiple > 1 and not self.program.paddable:
            raise StrategyError(
                f"vocabulary_multiple = {self.vocabulary_multiple} pads vocabularies and classes, "
                f"but {self.model.name} has none that can be padded; leave it out"
            )

    @cached_property
    def _possible_length(self) -> int | None:
        """The sequence length in force. Raises `TransformError` if a function that says what its
        sequence is makes other lengths of it, such as one more, which do not follow."""
        fixed, length = self.model.fixed_length, self.length
        if fixed not in (None, length):
            raise TransformError(
                f"sequence length {length}: {self.model.name} computes other lengths from it and "
                f"was read at {fixed}; load it again for another"
            )
        if length not in (None, fixed, self.program.file_length) and not self._lengths_follow:
            raise TransformError(
                f"sequence length {length}: {self.model.name} computes other lengths from it; "
                "Workload.at_its_length() reads it at this one"
            )
        if not self.model.sequences:
            return self.length
        function = self.program.function
        sizes = self.program.sizes(1, self.length, self._fixed_beside_batch)
        without_values = replace(function, constants=dict.fromkeys(function.constants))
        try:
            rescale(without_values, self.program.axes, sizes)
        except TransformError as error:
            raise TransformError(
                f"sequence length {self.length}: {error}; a function that takes no sequence_length "
                "is simulated with the length that it is built with"
            ) from error
        return self.length

    @cached_property
    def _fixed_beside_batch(self) -> frozenset[Axis]:
        """The axes beside the batch whose sizes the model fixes, as it does where it is no file
        that names them."""
        program, model = self.program, self.model
        own = {value.name for value in model.function.inputs}  # not those of the loss
        return frozenset(
            axis
            for value in program.function.inputs
            if value.name in own
            for symbol, dim in zip_longest(
                model.symbols.get(value.name, ()), program.axes.dims[value]
            )
            for axis in (dim if symbol is None else ())
            if axis in program.extents.beside_batch
        )

    @property
    def tokens_per_sample(self) -> int:
        """Positions per sample: the sequence length, or 1 where there is no sequence."""
        return self.length or 1

    @cached_property
    def forward_flops_per_sample(self) -> float:
        """FLOPs of the products in the forward pass of one sample. Attention counts in full, even
        if masked; experts count on tokens, not on free slots. Products that are the same for
        all samples, such as those of parameters alone, do not count."""
        return self.forward_flops({})

    def forward_flops(self, longer: Mapping[Axis, int]) -> float:
        """`forward_flops_per_sample` where some axes have the given, padded sizes."""
        key = frozenset(longer.items())
        if key not in self._forward_flops:
            self._forward_flops[key] = self._make_forward_flops(longer)
        return self._forward_flops[key]

    @property
    def model_flops(self) -> float:
        """FLOPs of products in one iteration, as PaLM counts them (Chowdhery et al. 2022, appendix
        B): the backward pass is twice the forward one, attention is counted in full."""
        forward = self.forward_flops_per_sample * self.batch_size
        return forward * (3.0 if self.training else 1.0)

    def padding_fraction(self, padded: Mapping[Axis, int]) -> float:
        """FLOPs of products on padding, as a fraction of those of the model, where these axes are
        as long."""
        if not padded:
            return 0.0
        return self.forward_flops(padded) / self.forward_flops_per_sample - 1.0

    @cached_property
    def _forward_flops(self) -> dict[object, float]:
        return {}

    def _make_forward_flops(self, longer: Mapping[Axis, int]) -> float:
        sizes = {**self.sizes(1), **longer}
        blocks = self.program.blocks
        counts = Counter(blocks.representative)
        return sum(
            count * self._flops_of(blocks.blocks[first].nodes, sizes)
            for first, count in counts.items()
        )

    def share_along(self, axes: Collection[Axis]) -> float:
        """The part of the forward pass's FLOPs in products that go over one of these axes, given as
        representatives: what a mesh axis that splits them splits."""
        program, sizes = self.program, self.sizes(self.batch_size)
        group = program.blocks.group
        counts = Counter(program.blocks.representative)
        along = total = 0.0
        for first, count in counts.items():
            nodes = program.blocks.blocks[first].nodes
            for node, flops in zip(nodes, self._flops_of_each(nodes, sizes), strict=True):
                total += count * flops
                if any(group.get(axis, axis) in axes for axis in program.axes.kinds[node]):
                    along += count * flops
        return along / total if total else 1.0

    def _flops_of(self, nodes: Sequence[Node], sizes: Mapping[Axis, int]) -> float:
        """The FLOPs of the nodes that depend on samples, or are done for each of them."""
        program = self.program
        group, moving = program.blocks.group, program.blocks.roles.moving
        batches = {group.get(axis, axis) for axis in program.batches}
        return sum(
            flops
            for node, flops in zip(nodes, self._flops_of_each(nodes, sizes), strict=True)
            if not moving.isdisjoint(node.operands)
            or any(group.get(axis, axis) in batches for axis in program.axes.kinds[node])
        )

    def _flops_of_each(self, nodes: Sequence[Node], sizes: Mapping[Axis, int]) -> Iterator[float]:
        """The FLOPs of nodes that are products; 0 of others."""
        axes = self.program.axes
        filled: dict[Axis, float] = {}
        for node in nodes:
            operands = [axes.type_at(value, sizes) for value in node.operands]
            results = [axes.type_at(value, sizes) for value in node.results]
            op = node.op.rescaled(operands, results)
            for axis in followers_made(node, axes):
                filled[axis] = op.filled(operands, results)
            parts = (filled.get(axis, 1.0) for axis in axes.kinds[node])
            yield op.model_flops(operands, results) * math.prod(parts)

    @cached_property
    def active_parameters(self) -> int:
        """The number of trained numbers that one token meets: of the experts' parameters, those of
        the experts that it goes through."""
        function, axes = self.program.function, self.program.axes
        part: dict[Axis, Fraction] = {}
        for node in function.nodes:
            if isinstance(node.op, Dispatch):
                (experts,) = axes.dims[node.result][1]
                part[experts] = Fraction(node.op.top_k, experts.size)
        return sum(
            int(
                value.type.num_elements
                * math.prod(part.get(a, Fraction(1)) for a in axes.of(value))
            )
            for value in function.parameters
        )

    # --- facts for search spaces ------------------------------------------------------------------

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        """The sizes of all sequences and of the axes that follow them; empty for a model without a
        sequence."""
        return self._sequence_lengths

    @cached_property
    def num_parameters(self) -> int:
        """The number of trained numbers of the model (elements of parameters)."""
        return parameter_count(self.program.function)

    @cached_property
    def _sequence_lengths(self) -> tuple[int, ...]:
        if self.length is None or self.program.sequence is None:
            return ()
        sizes = self.sizes(1)
        split = (*self.program.extents.sequences, *self.program.axes.follows)
        return tuple(dict.fromkeys(sizes.get(axis, axis.size) for axis in split))

    @property
    def num_blocks(self) -> int:
        """The number of blocks, and so the most stages that the model can be cut into."""
        return len(self.program.blocks.blocks)

    @property
    def num_layers(self) -> int:
        """The number of layers, such as a transformer's: what occurs more than once; of all blocks
        if nothing does."""
        return self.program.num_layers

    @property
    def internal_axes(self) -> tuple[tuple[str, int], ...]:
        """Label and size of every axis that tensor parallelism must divide."""
        program = self.program
        return tuple((program.label(a), a.size) for a in program.blocks.internal_axes)

    @property
    def expert_axes(self) -> tuple[tuple[str, int], ...]:
        """Label and size of every axis that expert parallelism must divide."""
        program = self.program
        return tuple((program.label(a), a.size) for a in program.blocks.expert_axes)

    @property
    def inner_axes(self) -> Mapping[str, int]:
        """Per label of an internal axis, the size of the axis inside it that tensor parallelism can
        split too: the query heads per head of keys and values."""
        program = self.program
        return {program.label(a): b.size for a, b in program.blocks.inner_axes.items()}

    @property
    def cp_exchanges(self) -> tuple[str, ...]:
        """Ways in which context parallelism can bring keys and values together: in a ring where an
        op can take its columns one after the other, by heads where attention has an axis of
        them."""
        return self._cp_exchanges

    @cached_property
    def _cp_exchanges(self) -> tuple[str, ...]:
        program = self.program
        circulates = any(isinstance(node.op, Circulating) for node in program.function.nodes)
        able = {"gather": True, "ring": circulates, "all-to-all": bool(program.blocks.head_axes)}
        return tuple(name for name in CP_EXCHANGES if able[name])

    def explain_lists(self, strategy: Strategy) -> str | None:
        """Why the axis lists of a strategy name no axes of the model, or do not divide them; None
        if they fit."""
        try:
            axes = mesh_axes(self.program, strategy)
        except StrategyError as error:
            return str(error)
        samples = self.batch_size // strategy.microbatches
        if samples not in self._sizes_of_samples:
            self._sizes_of_samples[samples] = self.sizes(samples)
        return undivided(self.program, axes, self._sizes_of_samples[samples])

    @cached_property
    def _sizes_of_samples(self) -> dict[int, dict[Axis, int]]:
        """A cache of `sizes`, by number of samples."""
        return {}


def _check_batches(program: Program, model: LoadedModel) -> None:
    """Raises `ImportModelError` if the file computes an input's size from the batch, such as `2*b`,
    and no axis of that size is the batch: its samples would be counted wrong."""
    sized = [
        (value, text, dim, names_in(text))
        for value in program.function.inputs
        for text, dim in zip(
            model.symbols.get(value.name, ()), program.axes.dims[value], strict=False
        )
        if text is not None
    ]
    batches = [(axis,) for axis in program.batches]
    of_batch = {text for _, text, dim, names in sized if dim in batches and names == [text]}
    for value, text, dim, names in sized:
        counts = of_batch.isdisjoint(names) or not set(program.batches).isdisjoint(dim)
        if names != [text] and (dim in batches or not counts):
            raise ImportModelError(
                f"input {value.name!r} of {model.name} has the size {shown(text)}, which leaves "
                "open how many of its rows make one sample; export the model with one row per "
                "sample, or give that size a name of its own, such as 'rows', to make each row a "
                "sample"
            )
