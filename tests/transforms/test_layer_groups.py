"""Pieces of a program are grouped into layers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.ir import Builder, DType
from distir.ops.activations import Relu, Tanh
from distir.ops.arithmetic import Add
from distir.ops.linalg import MatMul
from distir.ops.lookup import Gather
from distir.ops.norm import RMSNormalization
from distir.program import Program, build_program
from distir.transforms.layer_groups import group_layers

HIDDEN = 48


@pytest.mark.parametrize(
    ("pieces", "layers"),
    [
        ("e AF AF AF h", "e AF AF AF h"),
        ("e AFAE AFAE h", "e AF AE AF AE h"),  # experts in every other layer
        ("e DEDEDEAE DEDEDEAE h", "e DE DE DE AE DE DE DE AE h"),
        ("e MFMEMFAE MFMEMFAE h", "e MF ME MF AE MF ME MF AE h"),
        ("e ACF ACF h", "e ACF ACF h"),  # a decoder's
        ("e AF AE AE AE h", "e AF AE AE AE h"),  # the first layer has no experts
        ("e AF AG AE AE AH h", "e AF AG AE AE AH h"),
        ("e CF CF Ch", "e CF CF C h"),  # a head hands on less than it takes
        ("e BF AF AF AF h", "e BF AF AF AF h"),  # the first attention is of its own kind
        ("e F AF AF AF h", "e FA FA FA F h"),  # the first attention is in the embedding
        ("e MF MF AF MF MF AF MF h", "e MF MF AF MF MF AF MF h"),  # the last repetition breaks off
        ("e M M M A M M h", "e M M M A M M h"),
        ("e F", "e F"),
        ("", ""),
    ],
)
def test_pieces_that_come_again_are_layers(pieces: str, layers: str) -> None:
    families = [ord(letter) for letter in pieces if letter != " "]
    hands_on = [letter not in "eh" for letter in pieces if letter != " "]
    found = group_layers(families, hands_on)
    assert [[chr(families[i]) for i in group] for group in found] == [
        list(group) for group in layers.split()
    ]
    assert [i for group in found for i in group] == list(range(len(families)))


def _layers(kinds: str, widths: dict[str, int]) -> Program:
    """Layers that are a product, something that depends on the layer's kind, and a product."""
    b = Builder("layers")
    x = b.add(Gather(), b.parameter("table", (77, HIDDEN)), b.input("x", (5, 7), DType.INT64))
    for place, kind in enumerate(kinds):
        width = widths[kind]
        y = b.add(RMSNormalization(), x, b.parameter(f"s{place}", (HIDDEN,)))
        y = b.add(MatMul(), y, b.parameter(f"u{place}", (HIDDEN, width)))
        y = b.add(Relu() if kind.islower() else Tanh(), y)
        y = b.add(MatMul(), y, b.parameter(f"d{place}", (width, HIDDEN)))
        x = b.add(Add(), x, y)
    head = b.add(MatMul(), x, b.parameter("last", (HIDDEN, 79)))
    return build_program(b.build([head]), training=True)


@pytest.mark.parametrize("kinds", ["aaaA", "aaAaa", "aAaAaA", "aaaAaaaAa", "Aaaaaa", "aaaaaaaB"])
def test_layers_of_several_kinds_are_counted_and_recomputed(kinds: str) -> None:
    """As every fourth layer rotates no positions, or one has other widths."""
    program = _layers(kinds, {"a": 112, "A": 112, "B": 160})
    assert program.num_layers == len(kinds)
    _check_layers(program, len(kinds))


def test_blocks_between_layers_that_never_follow_each_other_are_parts_of_layers() -> None:
    """They are recomputed, and not counted beside the layers that they belong to."""
    program = _layers("aBaCa", {"a": 112, "B": 160, "C": 176})
    assert program.num_layers == 3
    _check_layers(program, 5)


def _check_layers(program: Program, count: int) -> None:
    """Checks that all weights of so many layers, and no others, are in the layers of a program."""
    blocks = [program.blocks.blocks[index] for index in program.layers]
    names = {value.name for block in blocks for value in block.parameters}
    assert {f"{part}{place}" for part in "ud" for place in range(count)} <= names
    assert names.isdisjoint({"table", "last"})


@given(st.data())
def test_every_piece_is_in_one_layer_and_layers_are_in_order(data: st.DataObject) -> None:
    pattern = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    families = (pattern * 12)[: data.draw(st.integers(0, 30))]
    for place in data.draw(st.lists(st.integers(0, 29), max_size=5)):
        if place < len(families):
            families[place] = data.draw(st.integers(0, 4))
    count = len(families)
    hands_on = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    found = group_layers(families, hands_on)
    assert all(found)
    assert [piece for group in found for piece in group] == list(range(count))
