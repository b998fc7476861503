"""How many layers a model has, wherever its blocks begin and end."""

from __future__ import annotations

import pytest

from distir import Workload, load_model
from distir.workload import Mode
from tests.conftest import shared_path


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("gpt2", 12),
        ("bert-base", 12),  # norms stand behind sums, so that blocks begin in the middle of layers
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
        ("t5-small", 2 + 1),  # the decoder's embedding is in one block with its first attention
        ("mlp-8x64", 1),  # the loss is in one block with the last layer
    ],
)
def test_parts_of_layers_are_recomputed_and_embedding_and_head_are_not(
    name: str, kept: int
) -> None:
    program = Workload(model=load_model(name)).program
    assert len(program.blocks.blocks) - len(program.layers) == kept
