"""Builders compute what the originals compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distir.errors import ImportModelError
from distir.ir import Builder, DType, Function, Value
from distir.models import AttentionKind, T5Config, TransformerConfig, VisionConfig
from distir.models.layers import rotary_tables, rotate
from distir.models.t5 import build_t5
from distir.models.transformer import bert_config, llama_config
from distir.ops.activations import Dropout
from distir.ops.attention import FusedAttention

TINY = TransformerConfig(
    name="tiny", layers=2, hidden=12, heads=4, vocabulary=19, sequence_length=10
)
TINY_LLAMA = llama_config(
    "tiny-llama",
    layers=2,
    hidden=16,
    heads=4,
    kv_heads=2,
    ffn=20,
    vocabulary=19,
    sequence_length=10,
)
TINY_BERT = bert_config(
    "tiny-bert", layers=2, hidden=12, heads=4, vocabulary=19, sequence_length=10
)
TINY_VIT = VisionConfig(
    name="tiny-vit", layers=2, hidden=8, heads=2, patch=4, image=12, classes=5, dropout=0.0
)
VARIANTS = [
    TINY,
    TINY_LLAMA,
    TINY_BERT,
    replace(TINY_LLAMA, name="qk-norm", qk_norm=True, head_dim=6),
    replace(TINY, name="parallel", parallel=True, learned_positions=False, rotary_fraction=0.7),
    replace(TINY_LLAMA, name="windows", windows=(3, 0)),
    replace(TINY_BERT, name="window", windows=(2,)),
    replace(TINY, name="offset", position_offset=2, activation="relu", fused_qkv=False),
]


def run(function: Function, *inputs: Any, seed: int = 0) -> Any:
    """The first output, with parameters drawn at random in their order."""
    rng = np.random.default_rng(seed)
    values: dict[Value, Any] = dict(zip(function.inputs, inputs, strict=True))
    values.update((p, rng.normal(size=p.type.shape) / 3) for p in function.parameters)
    values.update(function.constants)
    for node in function.nodes:
        results = node.op.evaluate(*(values[operand] for operand in node.operands))
        values.update(zip(node.results, results, strict=True))
    return values[function.outputs[0]]


def ids(rows: int = 2, columns: int = 7) -> Any:
    return np.random.default_rng(1).integers(0, 19, size=(rows, columns))


@pytest.mark.parametrize("config", VARIANTS, ids=lambda config: config.name)
def test_fused_and_eager_attention_compute_the_same(config: TransformerConfig) -> None:
    fused = run(config.build(2, 7, "fused"), ids())
    eager = run(config.build(2, 7, "eager"), ids())
    assert fused.shape == (2, 7, 19)
    np.testing.assert_allclose(fused, eager, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_a_decoder_does_not_look_ahead_and_an_encoder_does(attention: AttentionKind) -> None:
    before = ids()
    after = before.copy()
    after[:, -1] = (after[:, -1] + 1) % 19
    for config in (TINY, TINY_LLAMA):
        function = config.build(2, 7, attention)
        change = run(function, after) - run(function, before)
        assert np.abs(change[:, :-1]).max() == 0 < np.abs(change[:, -1]).max()
    encoder = TINY_BERT.build(2, 7, attention)
    assert np.abs((run(encoder, after) - run(encoder, before))[:, 0]).max() > 0


def test_rotary_scores_depend_on_distance_alone() -> None:
    builder = Builder()
    x = builder.input("x", (9, 8))
    y = rotate(builder, x, rotary_tables(builder, 9, 8, 10000.0))
    rng = np.random.default_rng(0)
    function = builder.build([y])
    query, key = (run(function, np.tile(rng.normal(size=8), (9, 1))) for _ in range(2))
    scores = query @ key.T
    np.testing.assert_allclose(scores[np.arange(6), np.arange(3, 9)], scores[0, 3])
    np.testing.assert_allclose(np.linalg.norm(query, axis=1), np.linalg.norm(query[0]))


def test_gpt2_has_the_parameters_of_gpt2_in_their_order() -> None:
    layer = [(12,), (12,), (12, 36), (36,), (12, 12), (12,)]
    layer += [(12,), (12,), (12, 48), (48,), (48, 12), (12,)]
    shapes = [value.type.shape for value in TINY.build(2, 7).parameters]
    assert shapes == [(19, 12), (10, 12), *layer, *layer, (12,), (12,)]


def test_llama_has_no_biases_and_fewer_key_heads() -> None:
    shapes = {value.name: value.type.shape for value in TINY_LLAMA.build(2, 7).parameters}
    assert not [name for name in shapes if name.endswith("bias")]
    assert shapes["layers.0.attention.key.weight"] == (16, 8)
    assert shapes["layers.1.ffn.gate.weight"] == (16, 20)
    assert shapes["head.weight"] == (16, 19)


def test_inputs_are_ids_and_nodes_know_their_layer() -> None:
    function = TINY.build(2, 7)
    assert [(value.name, value.type.dtype) for value in function.inputs] == [("ids", DType.INT64)]
    origins = list(dict.fromkeys(node.origin for node in function.nodes))
    assert origins[:4] == [
        "embedding",
        "layers.0.attention_norm",
        "layers.0.attention",
        "layers.0.ffn_norm",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, r"hidden \(12\) is not divisible by heads \(5\)"),
        ({"kv_heads": 3, "fused_qkv": False}, r"heads \(4\) is not divisible by kv_heads \(3\)"),
        ({"kv_heads": 2}, "fused_qkv needs as many kv_heads"),
        ({"layers": 0}, "layers must be at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        replace(TINY, **change)


def test_a_sequence_beyond_the_position_table_is_refused() -> None:
    with pytest.raises(ImportModelError, match="of 10 positions, but the sequence length is 11"):
        TINY.build(2, 11)


TINY_T5 = T5Config(
    name="tiny-t5", layers=2, hidden=12, heads=3, head_dim=4, ffn=20, vocabulary=19, farthest=6
)


def test_a_t5_decoder_sees_all_of_the_encoder_and_no_later_target() -> None:
    function = build_t5(TINY_T5, 2, 7, 5)
    source, target = ids(), ids(2, 5)
    logits = run(function, source, target)
    assert logits.shape == (2, 5, 19)
    other_target = target.copy()
    other_target[:, -1] += 1
    assert np.abs(run(function, source, other_target % 19) - logits)[:, :-1].max() == 0
    other_source = source.copy()
    other_source[:, -1] += 1
    assert np.abs(run(function, other_source % 19, target) - logits)[:, 0].max() > 0


def test_t5_buckets_are_exact_near_by_and_shared_far_away() -> None:
    function = build_t5(replace(TINY_T5, buckets=8), 2, 40, 40)
    encoder, decoder = (
        array
        for value, array in function.constants.items()
        if "position_bias" in value.name and array is not None
    )
    assert decoder[8].tolist() == [7, 7, 7, 6, 4, 3, 2, 1, 0, *[0] * 31]
    assert encoder[20, 19:24].tolist() == [1, 0, 5, 6, 6]
    assert set(encoder[0].tolist()) == {0, 5, 6, 7}


def test_a_vision_transformer_reads_every_patch() -> None:
    config = TINY_VIT
    function = config.build(2)
    pixels = np.random.default_rng(0).normal(size=(2, 3, 12, 12))
    scores = run(function, pixels)
    assert scores.shape == (2, 5)
    pixels[1, :, -1, -1] += 1
    change = np.abs(run(function, pixels) - scores).max(axis=1)
    assert change[0] == 0 < change[1]
    with pytest.raises(ImportModelError, match="image size 12 is not divisible by patch size 5"):
        replace(config, patch=5)


@pytest.mark.parametrize(
    ("config", "attention", "ops", "on_the_way"),
    [
        (TINY, "fused", 1 + 2 * 2, 2),
        (TINY, "eager", 1 + 3 * 2, 0),
        (TINY_BERT, "eager", 1 + 3 * 2, 0),
        (TINY_T5, "eager", 4 + 2 * 4 + 2 * 6, 0),
        (TINY_VIT, "fused", 1 + 3 * 2, 0),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_dropout_is_where_the_originals_have_it(
    config: TransformerConfig | T5Config | VisionConfig,
    attention: AttentionKind,
    ops: int,
    on_the_way: int,
) -> None:
    def count(dropout: float) -> tuple[int, int]:
        function = replace(config, dropout=dropout).build(2, 7, attention)
        found = [node.op for node in function.nodes]
        return (
            sum(isinstance(op, Dropout) for op in found),
            sum(isinstance(op, FusedAttention) and op.dropout > 0 for op in found),
        )

    assert count(0.0) == (0, 0)
    assert count(0.1) == (ops, on_the_way)
