"""A program that was analysed by a few copies of what repeats in it is the one that an analysis of
the whole finds, but for names of axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir import load_model
from distir.axes.model import Axis
from distir.errors import TransformError
from distir.ir import Function, Value
from distir.models.layers import normalize
from distir.ops.activations import Gelu, Relu, Silu
from distir.ops.arithmetic import Mul
from distir.ops.linalg import MatMul
from distir.ops.tensor import Concat, Reshape, Transpose
from distir.program import Program, build_program
from distir.transforms.fold import Fold, Unfolded
from tests.conftest import shared_path
from tests.laws.scenarios import LAYERS, Chain, models
from tests.slow import shares


def programs(function: Function, training: bool) -> tuple[Program, Program, list[object]]:
    """The program as it is made, the one without folding, and what folding gave, if tried."""
    tried: list[Unfolded | None] = []
    unfold = Fold.unfold

    def noted(*args: object) -> Unfolded | None:
        tried.append(unfold(*args))  # type: ignore[arg-type]
        return tried[-1]

    with mock.patch.object(Fold, "unfold", noted):
        folded = build_program(function, training=training)
    with mock.patch.object(Fold, "of", return_value=None):
        whole = build_program(function, training=training)
    return folded, whole, [*tried]


def described(program: Program) -> list[object]:
    """All that is known of a program, with values and axes numbered as they come."""
    function, axes, blocks = program.function, program.axes, program.blocks
    values: dict[Value, int] = {}
    numbers: dict[Axis, int] = {}
    for value in (*function.sources(), *(v for node in function.nodes for v in node.results)):
        values.setdefault(value, len(values))
    for value in values:
        for dim in axes.dims[value]:
            for axis in dim:
                numbers.setdefault(axis, len(numbers))
    number = numbers.__getitem__
    nodes = {node: index for index, node in enumerate(function.nodes)}

    def all_of(them: object) -> list[int]:
        return [values[value] for value in them]  # type: ignore[attr-defined]

    lines: list[object] = [str(value.type) for value in values]
    lines += [[list(map(number, dim)) for dim in axes.dims[value]] for value in values]
    for node in function.nodes:
        loops = [list(map(number, loop)) for loop in axes.loops[node]]
        kinds = [(number(axis), kind) for axis, kind in axes.kinds[node].items()]
        lines.append((node.op, all_of(node.operands), all_of(node.results), loops, kinds))
    lines.append((all_of(function.inputs), all_of(function.parameters), all_of(function.outputs)))
    lines.append((function.notes, [axis.size for axis in numbers]))
    classes: dict[Axis, int] = {}
    lines.append([classes.setdefault(axes.tied(axis), len(classes)) for axis in numbers])
    lines.append([number(axes.leader(axis)) for axis in numbers])
    for block in blocks.blocks:
        lines.append([nodes[node] for node in block.nodes])
        crossing = (block.inputs, block.outputs, block.results, block.free, block.parameters)
        lines.append([all_of(each) for each in crossing])
    lines.append(blocks.representative)
    lines.append([number(blocks.group.get(axis, axis)) for axis in numbers])
    roles = blocks.roles
    lines += [sorted(all_of(r)) for r in (roles.free, roles.weights, roles.activations)]
    for found in (blocks.internal_axes, blocks.expert_axes, blocks.head_axes, blocks.output_axes):
        lines.append([number(axis) for axis in found])
    lines.append({number(axis): number(inner) for axis, inner in blocks.inner_axes.items()})
    lines.append({name: list(map(number, found)) for name, found in program.families.items()})
    lines.append(sorted(map(number, program.paddable)))
    extents = program.extents
    for found in (extents.batches, extents.sequences, extents.beside_batch):
        lines.append(list(map(number, found)))
    lines.append((extents.fixed_sequence, program.longest_sequence))
    lines.append([number(axis) for axis in program.all_axes])
    lines.append({number(axis): list(map(number, m)) for axis, m in program.members.items()})
    sized = program.sizes(6)
    lines.append([sized.get(axis, axis.size) for axis in numbers])
    return lines


def check(function: Function, training: bool) -> list[object]:
    """Compares; returns what folding gave."""
    try:
        folded, whole, tried = programs(function, training)
    except TransformError:
        return []  # no batch, or a table of float logits: for both
    ours, theirs = described(folded), described(whole)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other
    return tried


# --- models that people use -----------------------------------------------------------------------

NAMES = (
    "gpt2", "gpt3-1.3B", "llama3.2-1b", "qwen3-0.6b", "mixtral-8x7b", "deepseek-v2-lite",
    "bert-base", "t5-small", "t5-base", "vit-b", "mlp-xs", "mlp-9x64",
)  # fmt: skip
EXPORTS = ("gpt2", "llama-8layer", "mlp16")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_folding_changes_nothing_in_zoo_models(name: str, training: bool) -> None:
    tried = check(load_model(name).function, training)
    assert tried
    assert None not in tried


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", EXPORTS)
def test_folding_changes_nothing_in_real_exports(name: str, training: bool) -> None:
    tried = check(load_model(str(shared_path(f"models/{name}.onnx"))).function, training)
    assert tried
    assert None not in tried


# --- models that nobody uses ----------------------------------------------------------------------


class Stack(Chain):
    """Layers that hand on activations `[4, 6, 24]`, and more of what layers can do."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.builder.input("words", (4, 6, 24))
        self.other = self.x
        """What a second stack, or a layer far back, has made."""
        self.kept: list[Value] = []
        """Given away besides the main output."""


Layer = Callable[[Stack, Value], Value]


def _attention(c: Stack, x: Value) -> Value:
    return c.add(x, _attended(c, x, x))


def _cross_attention(c: Stack, x: Value) -> Value:
    return c.add(x, _attended(c, x, c.other))


def _attended(c: Stack, x: Value, memory: Value) -> Value:
    q, k, v = c.dense(x), c.dense(memory), c.dense(memory)
    scores = c.builder.add(MatMul(), q, c.builder.add(Transpose((0, 2, 1)), k))
    return c.dense(c.builder.add(MatMul(), scores, v))


def _with_kept_keys(c: Stack, x: Value) -> Value:
    keys = c.dense(x)
    c.kept.append(keys)
    scores = c.builder.add(MatMul(), x, c.builder.add(Transpose((0, 2, 1)), keys))
    return c.add(x, c.dense(c.builder.add(MatMul(), scores, keys)))


def _with_given_keys(c: Stack, x: Value) -> Value:
    c.count += 1
    keys = c.builder.input(f"keys{c.count}", (4, 5, 24))
    keys = c.builder.add(Concat(1), keys, c.dense(x))
    c.kept.append(keys)
    scores = c.builder.add(MatMul(), x, c.builder.add(Transpose((0, 2, 1)), keys))
    return c.add(x, c.dense(c.builder.add(MatMul(), scores, keys)))


def _mixed(c: Stack, x: Value) -> Value:
    """Sequence and features change places."""
    turned = c.builder.add(Transpose((0, 2, 1)), x)
    y = c.builder.add(Gelu(), c.dense(turned, 12))
    return c.add(x, c.builder.add(Transpose((0, 2, 1)), c.dense(y, 6)))


def _changing_places(c: Stack, x: Value) -> Value:
    """Rows become columns: what comes out is not what went in."""
    return c.builder.add(Relu(), c.builder.add(Transpose((0, 2, 1)), x))


def _shuffled(c: Stack, x: Value) -> Value:
    """The features in two halves that are dealt together, as channels are in ShuffleNet."""
    batch, rows, columns = x.type.shape
    x = c.builder.add(Reshape((batch, rows, 2, columns // 2)), x)
    return c.builder.add(Reshape((batch, rows, columns)), c.builder.add(Transpose((0, 1, 3, 2)), x))


def _regrouped(c: Stack, x: Value) -> Value:
    """Rows and columns cut another way, which no axes have."""
    batch, rows, columns = x.type.shape
    y = c.builder.add(Reshape((batch, columns * rows // 9, 9)), x)
    y = c.builder.add(Relu(), y)
    return c.add(x, c.builder.add(Reshape((batch, rows, columns)), y))


def _in_heads(c: Stack, x: Value) -> Value:
    batch, rows, columns = x.type.shape
    y = c.builder.add(Reshape((batch, rows, 4, columns // 4)), c.dense(x, columns))
    y = c.builder.add(Silu(), y)
    return c.add(x, c.dense(c.builder.add(Reshape((batch, rows, columns)), y), columns))


def _looks_far_back(c: Stack, x: Value) -> Value:
    found, c.other = c.other, x
    return c.add(c.builder.add(Relu(), c.dense(x)), found) if same_shape(found, x) else x


def _remembers(c: Stack, x: Value) -> Value:
    c.other = x
    return x


def _collects(c: Stack, x: Value) -> Value:
    """Everything made so far is read again at the end."""
    c.kept.append(x)
    return c.dense(_gelu(c, x))


def _gelu(c: Stack, x: Value) -> Value:
    return c.builder.add(Gelu(), c.dense(x, 2 * WIDE))


def _norm(c: Stack, x: Value) -> Value:
    c.count += 1
    return normalize(c.builder, x, f"norm{c.count}", "rms", 1e-5)


def _squares(c: Stack, x: Value) -> Value:
    """No parameters at all."""
    return c.builder.add(Mul(), x, x)


def same_shape(a: Value, b: Value) -> bool:
    return a.type.shape == b.type.shape


WIDE = 24
STACKED: tuple[Layer, ...] = (
    *LAYERS[:5], _attention, _cross_attention, _with_kept_keys, _with_given_keys, _mixed,
    _changing_places, _shuffled, _regrouped, _in_heads, _looks_far_back, _remembers, _collects,
    _norm, _squares,
)  # fmt: skip


def _fits(layer: Layer, x: Value) -> bool:
    """Whether a layer can read this; a few change rows and columns, and many want 24 columns."""
    if layer in (_changing_places, _squares, _remembers):
        return True
    return x.type.shape == (4, 6, 24)


@dataclass(frozen=True)
class Plan:
    """Runs of a few layers, each repeated often, as nobody builds them: with caches, shuffles,
    looks back, and outputs on the way."""

    pieces: Sequence[tuple[Sequence[Layer], int]]
    every: int | None
    """Every which of the values that are kept is read again at the end."""
    head: int | None
    gives: bool
    """Whether what is kept is given away too."""

    def build(self) -> Function:
        stack = Stack()
        x = stack.x
        for piece, count in self.pieces:
            for _ in range(count):
                for layer in piece:
                    if _fits(layer, x):
                        x = layer(stack, x)
        for value in stack.kept[:: self.every] if self.every else ():
            x = stack.add(x, value) if same_shape(x, value) else x
        x = stack.dense(x, self.head) if self.head else x
        kept = dict.fromkeys(value for value in stack.kept if value is not x)
        return stack.builder.build([x, *(kept if self.gives else ())])


stacks = st.builds(
    Plan,
    st.lists(
        st.tuples(st.lists(st.sampled_from(STACKED), min_size=1, max_size=3), st.integers(1, 9)),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([None, None, 1, 2]),
    st.sampled_from([None, WIDE, 29]),
    st.booleans(),
)


@shares(4, seconds=1)
@settings(max_examples=15)
@given(stacks, st.booleans())
def test_folding_changes_nothing_in_any_stack(share: int, plan: Plan, training: bool) -> None:
    check(plan.build(), training)


@pytest.mark.parametrize("copies", range(4, 9))
def test_copies_that_go_on_cutting_a_shared_axis_are_not_settled(copies: int) -> None:
    """Every copy cuts the axis of a shared weight once more; in the end all have the finest."""
    sharing = LAYERS[4]
    plan = Plan([((sharing, sharing, _shuffled), copies)], None, None, gives=False)
    check(plan.build(), training=False)


@pytest.mark.parametrize("training", [True, False])
def test_layers_are_equal_only_if_their_pieces_share_axes_alike(training: bool) -> None:
    """Pieces of layers may be equal one by one, and yet not what they hand on."""
    sharing = LAYERS[4]
    pieces = [((sharing, _norm), 9), ((_collects, _cross_attention), 7)]
    plan = Plan([*pieces, ((sharing,), 2)], None, WIDE, gives=True)
    check(plan.build(), training)


@shares(3, seconds=1)
@settings(max_examples=8)
@given(models, st.booleans())
def test_folding_changes_nothing_in_any_model(
    share: int, function: Function, training: bool
) -> None:
    check(function, training)
