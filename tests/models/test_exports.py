"""Models of the zoo against real exports of the same models."""

from __future__ import annotations

from distir.importers.load import load_function
from distir.models import TransformerConfig, find_model
from distir.models.transformer import llama_config
from tests.conftest import shared_path
from tests.models.test_zoo import num_parameters, product_flops


def test_gpt2_agrees_with_its_export_but_for_biases_that_the_exporter_dropped() -> None:
    exported = load_function(shared_path("models/gpt2.onnx"))
    config = find_model("gpt2")
    assert isinstance(config, TransformerConfig)
    built = config.build(2, 128, "eager")
    biases = config.layers * (3 + 1 + 4 + 1) * config.hidden
    assert biases == 82_944
    assert num_parameters(built) == num_parameters(exported) + biases
    assert product_flops(built) == product_flops(exported)


def test_llama_agrees_with_its_export() -> None:
    exported = load_function(shared_path("models/llama-8layer.onnx"))
    built = llama_config(
        "llama-8layer",
        layers=8,
        hidden=1024,
        heads=16,
        kv_heads=4,
        ffn=2816,
        vocabulary=32000,
        sequence_length=128,
    ).build(2, 128, "eager")
    assert num_parameters(built) == num_parameters(exported)
    assert product_flops(built) == product_flops(exported)
