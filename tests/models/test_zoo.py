"""Known truths of the zoo: parameter counts, FLOPs, names."""

from __future__ import annotations

import math

import pytest

from distir import Workload, load_model
from distir.axes import infer_axes
from distir.cost.work import OpClass
from distir.errors import ImportModelError, UnknownNameError
from distir.importers.load import load_source
from distir.importers.probe import build_at_probe_sizes
from distir.ir import Function
from distir.models import (
    FAMILIES,
    ZOO,
    AttentionKind,
    TransformerConfig,
    find_model,
    has_model,
)
from distir.ops.tensor import Boundary
from distir.transforms.lower import has_dropout


def num_parameters(function: Function) -> int:
    return sum(value.type.num_elements for value in function.parameters)


def product_flops(function: Function) -> float:
    works = [node.op.work(node.operand_types, node.result_types) for node in function.nodes]
    return sum(
        float(work.flops) for work in works if work.kind in (OpClass.PRODUCT, OpClass.ATTENTION)
    )


def transformer(name: str) -> TransformerConfig:
    config = find_model(name)
    assert isinstance(config, TransformerConfig)
    return config


PUBLISHED_PARAMETERS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "bert-base": 109_514_298,
    "t5-small": 60_506_624,
    "t5-11b": 11_307_321_344,
    "vit-b": 86_567_656,
    "vit-l": 304_326_632,
    "vit-h": 632_045_800,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-20b": 20_914_757_184 - 24 * 64,  # without the sinks of heads
    "gpt-oss-120b": 116_829_156_672 - 36 * 64,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
}
"""As counted in the published checkpoints."""


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameters_are_those_of_the_published_checkpoint(name: str) -> None:
    assert num_parameters(find_model(name).build(2, 24)) == PUBLISHED_PARAMETERS[name]


TRAINED_WITH_DROPOUT = ("gpt2", "gpt3-175B", "megatron-1T", "bert-base", "t5-small", "vit-b")


@pytest.mark.parametrize("name", TRAINED_WITH_DROPOUT)
def test_nothing_is_dropped_in_inference_or_where_it_is_turned_off(name: str) -> None:
    model = load_source(name)
    assert has_dropout(Workload(model=model).program.function)
    assert not has_dropout(Workload(model=model, dropout=False).program.function)
    assert not has_dropout(Workload(model=model, mode="inference").program.function)


@pytest.mark.parametrize("name", ["llama2-7b", "mistral-7b", "qwen3-8b", "deepseek-v3"])
def test_later_decoders_drop_nothing(name: str) -> None:
    assert not has_dropout(load_source(name).function)


PUBLISHED_ACTIVE_BILLIONS = {
    "mixtral-8x7b": 12.9,  # Jiang et al. 2024: 12.9B of 46.7B
    "mixtral-8x22b": 39.2,  # Mistral AI: 39B of 141B
    "qwen3-30b-a3b": 3.4,  # Qwen Team 2025: 3.3B, named A3B
    "qwen3-235b-a22b": 22.2,  # Qwen Team 2025: 22B
    "gpt-oss-20b": 4.2,  # OpenAI 2025: 3.6B, which leaves one table of words out
    "gpt-oss-120b": 5.7,  # OpenAI 2025: 5.1B, likewise
    "deepseek-v2-lite": 2.7,  # DeepSeek-AI 2024: 2.4B, which leaves one table of words out
    "deepseek-v2": 21.4,  # DeepSeek-AI 2024: 21B
    "deepseek-v3": 37.6,  # DeepSeek-AI 2024: 37B
}
"""Parameters that a token meets, embedding and head included."""


@pytest.mark.parametrize("name", PUBLISHED_ACTIVE_BILLIONS)
def test_a_token_meets_as_many_parameters_as_published(name: str) -> None:
    workload = Workload(model=load_model(name))
    assert round(workload.active_parameters / 1e9, 1) == PUBLISHED_ACTIVE_BILLIONS[name]


@pytest.mark.parametrize("length", [1024, 4096, 4100])
def test_flops_of_a_mixture_are_those_of_the_active_parameters(length: int) -> None:
    """2 per parameter and token but for the table of words, and 4·s·L·h of attention in full; at
    4,100 tokens some slots of the experts stay free, which costs time but is no work."""
    config = transformer("mixtral-8x7b")
    workload = Workload(model=load_model("mixtral-8x7b"), sequence_length=length)
    norms = (2 * config.layers + 1) * config.hidden
    products = workload.active_parameters - config.vocabulary * config.hidden - norms
    attention = 4 * length * config.layers * config.hidden
    expected = length * (2 * products + attention)
    assert workload.forward_flops_per_sample == pytest.approx(expected, rel=1e-12)


GPT_NAMES = [e.name for e in ZOO if e.name.startswith(("gpt2", "gpt3", "megatron"))]


@pytest.mark.parametrize("name", GPT_NAMES)
def test_parameters_of_gpt_follow_the_formula(name: str) -> None:
    """12·L·h²·(1 + 13/12h) + (V + s)·h (Narayanan et al. 2021), which leaves out the last norm."""
    config = transformer(name)
    layers, hidden = config.layers, config.hidden
    last_norm = 2 * hidden
    assert num_parameters(config.build(2, 24)) == (
        12 * layers * hidden**2
        + 13 * layers * hidden
        + (config.vocabulary + config.sequence_length) * hidden
        + last_norm
    )


@pytest.mark.parametrize("name", ["gpt2", "gpt3-1.3B", "gpt3-175B", "megatron-22B"])
def test_forward_flops_of_gpt_follow_the_formula(name: str) -> None:
    """24·B·s·L·h²·(1 + s/6h) + 2·B·s·h·V (Narayanan et al. 2021, appendix), attention in full."""
    config = transformer(name)
    batch, sequence = 3, 1024
    layers, hidden = config.layers, config.hidden
    attention = 4 * batch * sequence**2 * layers * hidden
    expected = (
        24 * batch * sequence * layers * hidden**2
        + attention
        + 2 * batch * sequence * hidden * config.vocabulary
    )
    assert product_flops(config.build(batch, sequence, "eager")) == expected
    assert product_flops(config.build(batch, sequence, "fused")) == expected - attention / 2


@pytest.mark.parametrize("attention", ["fused", "eager"])
@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "qwen3-8b", "bert-base"])
def test_axes_are_batch_sequence_and_two_boundaries_per_layer(
    name: str, attention: AttentionKind
) -> None:
    config = transformer(name)
    function = build_at_probe_sizes(lambda b, s: config.build(b, s, attention), config.longest)
    bounded, axes = infer_axes(function)
    assert sum(isinstance(node.op, Boundary) for node in bounded.nodes) == 2 * config.layers + (
        1 if config.head_transform else 0  # the square layer before a tied head
    )
    (ids,) = bounded.inputs
    (logits,) = bounded.outputs
    assert axes.dims[logits][:2] == axes.dims[ids]
    assert math.prod(axis.size for axis in axes.dims[logits][2]) == config.vocabulary
    assert all(len(dim) == 1 for dim in axes.dims[logits])


def test_names_match_without_regard_to_case() -> None:
    assert find_model("GPT3-13b") is find_model("gpt3-13B")


def test_unknown_names_list_the_near_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model 'gpt3-13'; did you mean.*gpt3-13B"):
        find_model("gpt3-13")
    assert not has_model("gpt3-13")


def test_what_names_of_a_family_look_like_is_no_name() -> None:
    for family in FAMILIES:
        assert not has_model(family.name)
        with pytest.raises(ImportModelError, match=r"stands for names with numbers: .*such as"):
            find_model(family.name.upper())


def test_mlp_names_carry_their_sizes() -> None:
    function = find_model("mlp-16x1024").build(64, 1)
    assert num_parameters(function) == 16 * (1024**2 + 1024)
    assert function.inputs[0].type.shape == function.outputs[0].type.shape == (64, 1024)
    with pytest.raises(ImportModelError, match="0 layers"):
        find_model("mlp-0x16")


def test_every_entry_has_a_line_about_it() -> None:
    assert all(entry.summary and "\n" not in entry.summary for entry in (*ZOO, *FAMILIES))


@pytest.mark.parametrize("name", ZOO.names())
def test_every_model_builds_at_probe_sizes(name: str) -> None:
    config = find_model(name)
    function = build_at_probe_sizes(config.build, config.longest)
    assert function.name == config.name
    assert len(function.outputs) == 1
