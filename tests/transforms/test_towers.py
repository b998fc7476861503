"""Blocks of models with several towers: layers that know nothing of each other until they meet."""

from __future__ import annotations

import pytest

from distir import Strategy, Workload
from distir.execute.verify import Verifier
from distir.importers.load import LoadedModel
from distir.ir import Function, Value
from distir.ops.activations import Relu
from distir.ops.arithmetic import Sum
from distir.ops.linalg import MatMul
from distir.ops.lookup import Gather
from distir.ops.norm import LayerNormalization
from tests.transforms.layered import FFN, WIDTH, Layered


class Towers(Layered):
    """A function to which towers of layers are added."""

    def layer(self, x: Value, beside: Value | None = None) -> Value:
        """A norm and two products, added to their operand; the norm reads what is `beside`, too."""
        made = self.norm(x if beside is None else self.sum(x, beside))
        made = self.builder.add(Relu(), self.product(made, FFN))
        made = self.product(made, x.type.shape[-1])
        return self.sum(x, made)

    def tower(self, x: Value, layers: int, beside: Value | None = None) -> Value:
        for _ in range(layers):
            x = self.layer(x, beside)
        return x


def side_by_side(*layers: int) -> Function:
    """Towers of so many layers, each of an input of its own, whose results are added up."""
    made = Towers()
    tops = [made.tower(made.tokens(f"ids{n}"), number) for n, number in enumerate(layers)]
    return made.head(made.builder.add(Sum(), *tops))


def of_the_same_input(layers: int) -> Function:
    """An encoder and a decoder that begin with the same rows, and with what a norm makes of them;
    all layers of the decoder read what the encoder made."""
    made = Towers()
    rows = made.tokens("ids")
    scale, shift = made.parameter(WIDTH), made.parameter(WIDTH)
    start = made.builder.add(LayerNormalization(), rows, scale, shift)
    encoded = made.tower(made.sum(rows, start), layers)
    return made.head(made.tower(made.sum(made.layer(rows), start), layers, encoded))


def of_an_hourglass(depth: int, timed: bool = False) -> Function:
    """Layers that get wider, and narrower again; to those on the way back what was made at their
    width on the way there is added, as in a U-Net. If it is `timed`, all read one more value."""
    made = Towers()
    time = made.tokens("times") if timed else None
    x = made.tokens("ids")
    skipped: list[Value] = []

    def layer(x: Value) -> Value:
        if time is None:
            return made.layer(x)
        width = x.type.shape[-1]
        return made.layer(x, made.builder.add(MatMul(), time, made.parameter(WIDTH, width)))

    for _ in range(depth):
        x = layer(x)
        skipped.append(x)
        width = x.type.shape[-1]
        x = made.builder.add(MatMul(), x, made.parameter(width, 2 * width))
    x = layer(x)
    for beside in reversed(skipped):
        width = x.type.shape[-1]
        x = made.builder.add(MatMul(), x, made.parameter(width, width // 2))
        x = layer(made.sum(x, beside))
    return made.head(x)


def of_two_conditions(layers: int, at_the_end: bool) -> Function:
    """Layers that all read two values, as a time and a text, each by a product of its own; what
    the time is made of may be added `at_the_end`."""
    made = Towers()
    begun = made.tokens("times")
    time = made.builder.add(MatMul(), begun, made.parameter(WIDTH, WIDTH))
    text = made.tokens("text")
    x = made.tokens("ids")
    for _ in range(layers):
        read = [made.builder.add(MatMul(), v, made.parameter(WIDTH, WIDTH)) for v in (time, text)]
        x = made.layer(x, made.sum(*read))
    return made.head(made.sum(x, begun) if at_the_end else x)


def of_equal_ends(layers: int) -> Function:
    """Two towers of layers with two halves, each with its norm behind it; both towers begin with a
    table, and end with the same half."""
    made = Towers()

    def half(x: Value, width: int) -> Value:
        inner = made.builder.add(MatMul(), x, made.parameter(WIDTH, width))
        inner = made.builder.add(MatMul(), inner, made.parameter(width, WIDTH))
        scale, shift = made.parameter(WIDTH), made.parameter(WIDTH)
        return made.builder.add(LayerNormalization(), made.sum(x, inner), scale, shift)

    def tower(x: Value) -> Value:
        for _ in range(layers):
            x = half(half(x, FFN), 2 * FFN)
        return x

    return made.head(made.sum(tower(made.tokens("ids")), tower(made.tokens("others"))))


def workload(function: Function) -> Workload:
    return Workload(model=LoadedModel("towers", function), batch_size=8)


@pytest.mark.parametrize("layers", [(4, 4), (3, 8), (8, 3), (4, 4, 4)])
def test_the_layers_of_every_tower_are_blocks(layers: tuple[int, ...]) -> None:
    found = workload(side_by_side(*layers))
    assert found.num_layers == sum(layers)
    assert len(found.program.blocks.blocks) >= sum(layers)


@pytest.mark.parametrize("layers", [4, 9])
def test_the_layers_of_two_towers_that_begin_alike_are_blocks(layers: int) -> None:
    found = workload(of_the_same_input(layers))
    assert len(found.program.blocks.blocks) >= 2 * layers


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_layers_between_which_values_skip_are_blocks(depth: int, timed: bool) -> None:
    found = workload(of_an_hourglass(depth, timed))
    assert timed or found.num_layers == 2 * depth + 1
    assert len(found.program.blocks.blocks) >= 2 * depth + 1


@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("layers", [4, 9])
def test_layers_that_read_two_values_are_blocks(layers: int, at_the_end: bool) -> None:
    found = workload(of_two_conditions(layers, at_the_end))
    assert found.num_layers == layers
    assert len(found.program.blocks.blocks) >= layers


@pytest.mark.parametrize(
    "function",
    [
        side_by_side(4, 4),
        of_the_same_input(4),
        of_an_hourglass(3),
        of_an_hourglass(3, True),
        of_two_conditions(4, True),
    ],
)
def test_towers_cut_into_stages_compute_what_one_device_does(function: Function) -> None:
    strategy = Strategy(dp=2, tp=2, pp=4, microbatches=2)
    result = Verifier(workload(function)).verify(strategy)
    assert result.passed, result.first_difference


@pytest.mark.parametrize("layers", [4, 5])
def test_halves_of_layers_that_two_towers_end_with_are_no_layers(layers: int) -> None:
    assert workload(of_equal_ends(layers)).num_layers == 2 * layers


def test_tables_whose_rows_are_added_up_are_one_block() -> None:
    """A second table begins nothing: no stage ends between the two, and no layer is counted."""
    made = Towers()
    x = made.sum(made.tokens("positions"), made.tokens("ids"))
    found = workload(made.head(made.tower(x, 4)))
    first = found.program.blocks.blocks[0]
    assert sum(isinstance(node.op, Gather) for node in first.nodes) == 2
    assert found.num_layers == 4
