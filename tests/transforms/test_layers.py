"""How many layers a model has, wherever its blocks begin and end."""

from __future__ import annotations

import pytest

from distir import Workload, load_model
from distir.importers.load import LoadedModel
from distir.ir import Builder
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add
from distir.ops.linalg import MatMul
from distir.ops.norm import LayerNormalization, Softmax
from distir.ops.tensor import Transpose
from distir.program import build_program
from distir.workload import Mode
from tests.conftest import shared_path


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("gpt2", 12),
        ("bert-base", 12),
        ("vit-b", 12),
        ("t5-small", 6 + 6),  # the decoder's last layer hands on no output of the encoder
        ("mlp-8x64", 4),  # of two products each: what is inside can be split
        ("llama3.2-1b", 16),
    ],
)
def test_layers_are_counted_that_blocks_at_the_ends_have_parts_of(
    name: str, layers: int, mode: Mode
) -> None:
    workload = Workload(model=load_model(name), mode=mode)
    assert workload.num_layers == layers


@pytest.mark.parametrize(("name", "layers"), [("gpt2", 12), ("llama-8layer", 8), ("mlp16", 8)])
def test_layers_of_real_exports_are_counted(name: str, layers: int) -> None:
    loaded = load_model(shared_path(f"models/{name}.onnx"))
    assert Workload(model=loaded).num_layers == layers


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("gpt2", 1 + 1),
        ("bert-base", 1 + 1),
        ("t5-small", 2 + 1),
        ("vit-b", 1 + 1),
        ("mlp-8x64", 1),  # the loss is in one block with the last layer
    ],
)
def test_parts_of_layers_are_recomputed_and_embedding_and_head_are_not(
    name: str, kept: int
) -> None:
    program = Workload(model=load_model(name)).program
    assert len(program.blocks.blocks) - len(program.layers) == kept


def test_what_comes_again_without_weights_is_counted_where_nothing_else_does() -> None:
    """As attention between tokens as they are: three of five are blocks of one family."""
    builder = Builder("bare")
    x = builder.add(MatMul(), builder.input("x", (6, 8, 48)), builder.parameter("first", (48, 56)))
    for _ in range(5):
        scores = builder.add(MatMul(), x, builder.add(Transpose((0, 2, 1)), x))
        x = builder.add(MatMul(), builder.add(Softmax(), scores), x)
    last = builder.add(MatMul(), x, builder.parameter("last", (56, 79)))
    program = build_program(builder.build([last]), training=True)
    assert program.num_layers == len(program.layers) == len(program.blocks.blocks) > 3


@pytest.mark.parametrize("per_stage", [(2, 2, 2, 2), (3, 4, 6, 3), (1, 1, 3)])
@pytest.mark.parametrize("norm", [True, False])
def test_layers_whose_sizes_grow_from_stage_to_stage_are_counted(
    per_stage: tuple[int, ...], norm: bool
) -> None:
    """Those that make the sizes grow are layers like the others, and the head is none."""
    builder = Builder("growing")
    x = builder.input("x", (11, 32))
    for stage, layers in enumerate(per_stage):
        width = 32 << stage
        for layer in range(layers):
            name = f"{stage}.{layer}"
            if layer == 0:
                x = builder.add(
                    MatMul(), x, builder.parameter(f"grow{name}", (x.type.shape[-1], width))
                )
            made = x
            if norm:
                scale, shift = (
                    builder.parameter(f"{n}{name}", (width,)) for n in ("scale", "shift")
                )
                made = builder.add(LayerNormalization(), made, scale, shift)
            made = builder.add(MatMul(), made, builder.parameter(f"up{name}", (width, 3 * width)))
            made = builder.add(Relu(), made)
            made = builder.add(MatMul(), made, builder.parameter(f"down{name}", (3 * width, width)))
            x = builder.add(Add(), x, made)
    head = builder.parameter("head", (x.type.shape[-1], 100))
    function = builder.build([builder.add(MatMul(), x, head)])
    assert Workload(model=LoadedModel("growing", function)).num_layers == sum(per_stage)
