"""Blocks begin and end where layers do, and all layers that do the same are one kind of block."""

from __future__ import annotations

from collections import Counter

import pytest

from distir import Workload, load_model
from distir.importers.load import LoadedModel
from distir.ir import Function, Value
from distir.ops.activations import Gelu, Relu
from distir.transforms.blocks import Blocks
from tests.transforms.layered import BATCH, FFN, LENGTH, WIDTH, Layered


class Layers(Layered):
    """A function to which layers of two halves are added."""

    def patches(self) -> Value:
        """What is made of an image: a product that no tensor parallelism can split."""
        image = self.builder.input("image", (BATCH, LENGTH, 48))
        made = self.sum(self.product(image, WIDTH), self.parameter(LENGTH, WIDTH))
        return self.builder.add(Gelu(), made)

    def half(self, x: Value, ffn: int, read: Value | None = None, last: bool = True) -> Value:
        """Two products, of what is `read` too, added to what they read; the norm comes first or
        `last`."""
        made = x if last else self.norm(x)
        made = self.product(made, ffn)
        if read is not None:
            made = self.sum(made, self.product(read, ffn))
        made = self.product(self.builder.add(Relu(), made), WIDTH)
        made = self.sum(x, made)
        return self.norm(made) if last else made

    def layer(self, x: Value, last: bool, read: Value | None = None) -> Value:
        return self.half(self.half(x, FFN, read, last), 2 * FFN, None, last)


def blocks_of(function: Function) -> Blocks:
    return Workload(model=LoadedModel("layers", function), batch_size=8).program.blocks


def kinds(blocks: Blocks) -> list[int]:
    """How many blocks each kind has, the most first."""
    return [count for _, count in Counter(blocks.representative).most_common()]


@pytest.mark.parametrize("last", [False, True], ids=["norm first", "norm last"])
@pytest.mark.parametrize("beginning", ["table", "normed table", "patches", "normed patches"])
@pytest.mark.parametrize("layers", [3, 8])
def test_all_layers_are_one_kind_of_block(layers: int, beginning: str, last: bool) -> None:
    """Whatever they come behind, and though nothing comes behind the last one's norm but a head."""
    made = Layers()
    x = made.patches() if "patches" in beginning else made.tokens("ids")
    if "normed" in beginning:
        x = made.norm(x)
    for _ in range(layers):
        x = made.layer(x, last)
    blocks = blocks_of(made.head(x if last else made.norm(x)))
    assert kinds(blocks) == [layers, 1, 1]
    inside = blocks.blocks[1 : 1 + layers]
    assert all(len(block.inputs) == len(block.outputs) == 1 for block in inside)
    assert all(len(block.parameters) == 8 for block in inside)


@pytest.mark.parametrize("layers", [4, 12])
def test_layers_without_an_axis_to_split_end_where_they_do(layers: int) -> None:
    """A norm inside of a layer needs whole what its first product makes; another ends the layer,
    and what comes before the first."""
    made = Layers()
    x = made.norm(made.product(made.builder.input("image", (BATCH, LENGTH, 48)), WIDTH))
    for _ in range(layers):
        inner = made.norm(made.builder.add(Relu(), made.product(x, WIDTH)))
        x = made.norm(made.sum(x, made.product(inner, WIDTH)))
    blocks = blocks_of(made.head(x))
    assert kinds(blocks) == [layers, 1, 1]
    workload = Workload(model=LoadedModel("layers", blocks.function), batch_size=8)
    assert workload.num_layers == layers


@pytest.mark.parametrize("layers", [4, 8])
def test_what_makes_embeddings_as_wide_as_layers_is_no_layer(layers: int) -> None:
    made = Layers()
    x = made.product(made.norm(made.tokens("ids")), WIDTH)
    for _ in range(layers):
        x = made.layer(x, last=False)
    function = made.head(made.norm(x))
    assert Workload(model=LoadedModel("layers", function), batch_size=8).num_layers == layers


@pytest.mark.parametrize("last", [False, True], ids=["norm first", "norm last"])
@pytest.mark.parametrize("layers", [(3, 4), (6, 5), (2, 7)])
def test_an_encoder_and_a_decoder_end_where_their_layers_do(
    layers: tuple[int, int], last: bool
) -> None:
    """The decoder begins with its table, whatever its first layer makes of the encoder's output,
    and its last layer differs only in that it does not hand that output on."""
    encoder, decoder = layers
    made = Layers()
    memory = made.tokens("ids")
    for _ in range(encoder):
        memory = made.layer(memory, last)
    if not last:
        memory = made.norm(memory)
    x = made.tokens("targets")
    for _ in range(decoder):
        x = made.layer(x, last, memory)
    blocks = blocks_of(made.head(x))
    expected = [encoder, decoder - 1, 1, 1, 1, 1]
    assert kinds(blocks) == sorted(expected, reverse=True)
    assert len(blocks.blocks[1 + encoder].parameters) == (1 if last else 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert-base", [12, 1, 1]),
        ("vit-b", [12, 1, 1]),
        ("t5-small", [6, 5, 1, 1, 1, 1]),
        ("gpt2", [12, 1, 1]),
    ],
)
def test_layers_of_known_models_are_one_kind_of_block(name: str, expected: list[int]) -> None:
    assert kinds(Workload(model=load_model(name)).program.blocks) == expected
