"""Rows become plans: what is stated counts, what is blank is completed or excludes the row."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.validation import Case, make_case
from autotune.validation.cases import device_imbalance, even_cuts
from autotune.validation.hardware import network_rate
from autotune.validation.predict import as_counted, outside_bytes, prepare
from autotune.validation.rows import COLUMNS, MeasuredRow
from autotune.validation.software import facts_of, known_software, values_of
from autotune.validation.words import meaning_of
from distir.cost import SoftwareStack, load_stack
from distir.factoring import ExpertFactors, expert_factors
from distir.models import TransformerConfig, find_model
from distir.strategy import Strategy
from tests.validation.rows import BASE, case, reason, row


def test_the_row_is_the_strategy() -> None:
    assert case().strategy == Strategy(dp=4, tp=2, pp=2, microbatches=4)
    assert case(schedule="interleaved 1F1B", vpp="2").strategy == Strategy(
        dp=4, tp=2, pp=2, microbatches=4, schedule="interleaved", chunks=2
    )
    whole = {"pp": "1", "dp": "8"}
    assert case(zero_stage="zero3", recompute="full", **whole).strategy == Strategy(
        dp=8, tp=2, microbatches=2, zero=3, recompute="full"
    )


@pytest.mark.parametrize(
    ("text", "whole", "staged", "keeps"),
    [
        ("zero1", 1, 1, "none"),
        ("zero2", 2, 1, "none"),
        ("deepspeed_z2", 2, 1, "none"),
        ("DeepSpeed stage 3", 3, 1, "none"),
        ("FSDP2", 3, 1, "none"),
        ("FSDP2, gathered for every microbatch", 3, 3, "none"),
        ("FSDP2 (reshard_after_forward=always)", 3, 3, "none"),
        ("FSDP (ZeRO-2, no reshard)", 3, 1, "parameters"),
        ("FSDP2, reshard_after_forward=False", 3, 1, "parameters"),
        ("optimizer sharding", 1, 1, "none"),
        ("deepspeed zero-3", 3, 1, "none"),
        ("FSDP2, no resharding after each forward", 3, 1, "parameters"),
        ("FSDP2, not gathered again for each microbatch", 3, 1, "none"),
        ("FSDP2, 2 samples per microbatch", 3, 1, "none"),
    ],
)
def test_with_stages_nothing_is_brought_together_for_every_microbatch(
    text: str, whole: int, staged: int, keeps: str
) -> None:
    """Unless the row says that it is. Without stages ZeRO is what the row calls it."""
    alone = case(zero_stage=text, pp="1", dp="8").strategy
    assert (alone.zero, alone.keep_gathered) == (whole, keeps)
    assert case(zero_stage=text).strategy.zero == staged


def test_a_schedule_that_nobody_states_is_1f1b() -> None:
    assumed = case(schedule="")
    assert assumed.strategy.schedule == "1f1b"
    assert any(each.startswith("schedule = 1f1b: ") for each in assumed.assumptions)


def test_how_far_full_recomputation_goes_is_the_software_s() -> None:
    sharded = case(zero_stage="zero3 (FSDP FULL_SHARD)", recompute="full")
    assert sharded.software.name == "PyTorch FSDP"
    assert sharded.strategy.recompute == "needed"
    assert case(zero_stage="zero3 (FSDP FULL_SHARD)", recompute="none").strategy.recompute == "none"


def test_the_row_is_the_model() -> None:
    config = case().model.config
    assert (config.layers, config.hidden, config.heads, config.ffn_width) == (4, 256, 4, 1024)
    # 1000 is padded to a multiple of 128 · tp.
    assert config.vocabulary == 1024
    assert case(gated_mlp="yes", kv_heads="2").model.config.gated


def test_the_row_is_a_mixture_of_experts() -> None:
    stated = {"gated_mlp": "yes", "kv_heads": "2", "num_experts": "8", "moe_topk": "2"}
    plain = case(**stated, ep="4")
    assert plain.strategy.ep == 4
    experts = plain.model.config.experts
    assert experts is not None
    assert (experts.count, experts.top_k, experts.ffn) == (8, 2, 1024)
    # Four replicas with two devices each share experts by eight: those of tp as well.
    folded = case(**stated, ep="8")
    assert folded.strategy.ep == 8
    assert reason(**stated, ep="16") == "ep does not fit"
    assert reason(**stated) == "ep not stated"
    plain = case(**{**stated, "gated_mlp": "no"}, ep="4").model
    assert (plain.config.gated, plain.config.experts is not None) == (False, True)


BY_DEFAULT = {"routing_kernels": 34}
"""What a mixture of Megatron-Core that states no fusion does."""


@pytest.mark.parametrize(
    ("notes", "stated"),
    [
        ("moe-token-dispatcher-type=flex", {"sends_copies_once": True}),
        ("moe-token-dispatcher-type=alltoall", {"sends_copies_once": False}),
        ("HybridEP", {"sends_copies_once": True, "pads_experts": False}),
        ("", {}),
    ],
)
def test_a_mixture_states_its_token_dispatcher_or_is_said_not_to(
    notes: str, stated: dict[str, bool]
) -> None:
    mixture = {"num_experts": "8", "moe_topk": "2", "ep": "2", "gated_mlp": "yes"}
    told = case(source="megatron-core", notes=notes, **mixture)
    assert told.facts == {**BY_DEFAULT, **stated}
    assert any("token dispatcher" in each for each in told.assumptions) == (not stated)
    dense = case(source="megatron-core", notes=notes)
    assert not any("token dispatcher" in each for each in dense.assumptions)


def test_rows_say_what_their_stack_does() -> None:
    plain = case(source="megatron-core")
    assert plain.facts == {}
    told = case(source="megatron-core", notes="dispatcher deepep; EP a2a overlap")
    assert told.facts == {"sends_copies_once": True, "overlaps_exchanges": True}
    assert any(each.startswith("sends_copies_once = true") for each in told.assumptions)
    assert case(notes="cuda graph full_iteration").facts == {"dispatch": "compiled"}
    assert case(notes="tp-comm-overlap=True").facts == {"overlaps_activations": True}
    assert case(notes="tp_comm_overlap: false").facts == {"overlaps_activations": False}
    assert case(notes="compile, async TP").facts == {"overlaps_activations": True}
    for fact, value in told.facts.items():
        assert getattr(prepared_stack(told), fact) == value
    own = load_stack(plain.software.stack)
    assert prepared_stack(plain) == replace(own, overlaps_activations=False)


def prepared_stack(own: Case) -> SoftwareStack:
    """The stack that a case is costed with."""
    (prepared,) = prepare([own])
    return prepared.stack


@pytest.mark.parametrize(
    "dated",
    [
        {"source": "Megatron-LM (2021)"},
        {"source": "Megatron-LM", "date": "2022-06-01"},
        {"source": "Megatron-LM", "notes": "arXiv 2104.04473"},
        {"source": "Megatron-LM", "release": "April 2021"},
        {"source": "Narayanan et al."},
    ],
)
def test_only_a_dated_row_is_of_the_early_megatron(dated: dict[str, str]) -> None:
    early = case(**dated)
    assert early.software.stack == "megatron-2021"
    assert early.software_known
    assert early.model.attention == "eager"


@pytest.mark.parametrize(
    "notes", ["", "2024-11", "flash attention, 2023", "accessed 2025; first release 2021"]
)
def test_an_undated_megatron_has_neither_eager_attention_nor_dropout(notes: str) -> None:
    own = case(source="Megatron-LM", notes=notes)
    assert own.software.stack == "megatron"
    assert not own.software_known
    assert own.model.attention == "fused"
    assert own.model.config.dropout == 0
    volta = case(source="Megatron-LM", notes=notes, hardware="V100")
    assert not volta.software_known
    assert volta.software.stack == "megatron-2021"


def test_words_about_attention_and_dropout_count() -> None:
    early = {"source": "Megatron-LM", "date": "2021"}
    assert case(**early).model.config.dropout == 0.1
    told = case(**early, notes="FlashAttention-2; no dropout")
    assert (told.model.attention, told.model.config.dropout) == ("fused", 0)
    assert case(source="megatron-core", notes="without flash").model.attention == "eager"


MIXTURE = {
    "source": "megatron-core",
    "gated_mlp": "yes",
    "kv_heads": "2",
    "num_experts": "8",
    "moe_topk": "2",
    "ep": "4",
}


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        ({"notes": "tokens via Deep-EP"}, {"sends_copies_once": True}),
        (
            {"token_dispatcher": "hybrid_ep"},
            {"sends_copies_once": True, "pads_experts": False},
        ),
        ({"notes": "moe_router_padding_for_fp8=True"}, {"pads_experts": False}),
        ({"notes": "token-drop run"}, {"pads_experts": False}),
        ({"notes": "FP8 dispatch"}, {"sends_narrow_tokens": True}),
        ({"token_dispatcher": "flex"}, {"sends_copies_once": True}),
        ({"notes": "moe_token_dispatcher_type: flex"}, {"sends_copies_once": True}),
        ({"token_dispatcher": "alltoall"}, {"sends_copies_once": False}),
        ({"notes": "plain all-to-all"}, {"sends_copies_once": False}),
        ({"notes": "--moe-token-dispatcher-type alltoall"}, {"sends_copies_once": False}),
        ({"notes": "AllGather dispatcher"}, {"sends_copies_once": False}),
        ({"notes": "a2a hidden behind another microbatch"}, {"overlaps_exchanges": True}),
        ({"notes": "exchanges of experts are overlapped"}, {"overlaps_exchanges": True}),
        ({"notes": "overlap_moe_expert_parallel_comm=True"}, {"overlaps_exchanges": True}),
        ({"notes": "overlap_moe_expert_parallel_comm=False"}, {"overlaps_exchanges": False}),
        ({"notes": "no overlap of all-to-all"}, {"overlaps_exchanges": False}),
        ({"notes": "SequentialMLP"}, {"groups_experts": False}),
        ({"notes": "--moe-grouped-gemm"}, {"groups_experts": True}),
        ({"notes": "cuda graph ['attn', 'moe_router']"}, {"routing_kernels": 0}),
    ],
)
def test_what_a_mixture_s_software_does_is_read_in_many_words(
    said: dict[str, str], facts: dict[str, object]
) -> None:
    assert case(**{**MIXTURE, **said}).facts == {**BY_DEFAULT, **facts}


BRIDGE = {**MIXTURE, "source": "NVIDIA-NeMo/Megatron-Bridge"}


ALL_AS_ONE = {
    "dispatch": "compiled",
    "sends_copies_once": True,
    "overlaps_exchanges": True,
    "pads_experts": False,
}
HYBRID = {"sends_copies_once": True, "pads_experts": False, "routing_kernels": 0}


@pytest.mark.parametrize(
    ("release", "model", "hardware", "facts"),
    [
        ("25.09", "Qwen3_235B_a22B", "GB200", {"dispatch": "compiled"}),
        ("25.09", "Qwen3_235B_a22B", "B200", {}),
        ("25.09", "DeepSeekV3", "H100", {"sends_copies_once": True, "overlaps_exchanges": True}),
        ("25.09", "DeepSeekV3", "GB200", {}),
        ("25.11", "DeepSeekV3", "GB300", HYBRID),
        ("25.11", "Qwen3_30B_a3B", "B200", {"routing_kernels": 0}),
        ("25.11", "Qwen3_235B_a22B", "H100", {"overlaps_exchanges": True}),
        ("26.02", "Qwen3_235B_a22B", "H100", {}),
        ("26.08", "Qwen3_30B_a3B", "GB200", ALL_AS_ONE),
        ("26.08", "Mixtral", "GB200", {}),
    ],
)
def test_what_all_presets_of_a_release_have_holds_for_rows_that_do_not_state_it(
    release: str, model: str, hardware: str, facts: dict[str, object]
) -> None:
    precision = "fp8" if hardware == "H100" else "mxfp8"
    said = {"release": release, "model": model, "hardware": hardware, "precision": precision}
    told = {"fp8_scaling": "blocks"} if precision == "mxfp8" else {}
    assert case(**BRIDGE, **said).facts == {**told, **facts}
    joined = case(**BRIDGE, **said, notes="settings joined from a preset")
    assert joined.facts == told


def test_recipes_of_a_month_are_those_of_its_release() -> None:
    said = {"model": "Qwen3-235B-A22B", "hardware": "GB300", "precision": "mxfp8"}
    dated = "tuned performance recipe; date 2026-08-17; HybridEP"
    told = {"fp8_scaling": "blocks", "routing_kernels": 10}
    assert case(**BRIDGE, **said, notes=dated).facts == {**told, **ALL_AS_ONE}
    for other in (dated.replace("2026-08", "2026-05"), dated.replace("performance ", "")):
        assert "dispatch" not in case(**BRIDGE, **said, notes=other).facts


def test_recipes_with_one_graph_overlap_exchanges() -> None:
    said = {**BRIDGE, "notes": "recipe: HybridEP, full-iteration CUDA graph"}
    assert case(**said, precision="mxfp8").facts["overlaps_exchanges"] is True
    assert "overlaps_exchanges" not in case(**said, precision="bf16").facts


@pytest.mark.parametrize(
    ("said", "kernels"),
    [
        ({**BRIDGE, "release": "25.11", "model": "Qwen3_30B_a3B", "hardware": "GB200"}, 0),
        ({**BRIDGE, "release": "25.11", "model": "DeepSeekV3", "hardware": "GB300"}, 0),
        ({**BRIDGE, "release": "25.11", "model": "DeepSeekV3", "hardware": "B200"}, None),
        ({**BRIDGE, "release": "25.11", "model": "Mixtral", "hardware": "GB200"}, None),
        ({**BRIDGE, "release": "25.11", "notes": "settings joined from a preset"}, None),
        ({**BRIDGE, "hardware": "H100"}, None),
        ({**BRIDGE, "token_dispatcher": "hybridep"}, 10),
        ({**BRIDGE, "notes": "functional run, NOT tuned"}, 24),
        ({**MIXTURE, "source": "Megatron-LM, examples"}, 34),
        ({**MIXTURE, "source": "Megatron-LM", "notes": "moe_router_fusion: true"}, 12),
        ({**MIXTURE, "source": "NVIDIA-NeMo/Automodel", "token_dispatcher": "deepep"}, None),
    ],
)
def test_kernels_of_routing_are_those_of_the_recipe(
    said: dict[str, str], kernels: int | None
) -> None:
    """None: as many as the stack has, which is as in recipes."""
    assert case(**said).facts.get("routing_kernels") == kernels


@pytest.mark.parametrize(
    ("said", "etp"),
    [
        ({"etp": "1"}, 1),
        ({"etp": "2"}, 2),
        ({"notes": "expert-tensor-parallel 1"}, 1),
        ({"notes": "expert_tensor_parallel_size=2"}, 2),
        ({"notes": "ETP=1"}, 1),
        ({}, 0),
    ],
)
def test_tensor_parallelism_of_experts_is_read_from_columns_and_words(
    said: dict[str, str], etp: int
) -> None:
    strategy = case(**MIXTURE, **said).strategy
    assert strategy.etp == etp
    assert strategy.expert_order == "nearest"
    assert case(**{**MIXTURE, "source": "a lab"}, **said).strategy.expert_order == "replicas"


def test_the_devices_nearest_to_each_other_share_megatron_s_experts() -> None:
    """Of cp 2 and dp 2 with ep 2, the pair of `cp`, as launch.md has it of Megatron-Core."""
    own = case(**{**MIXTURE, "ep": "2"}, dp="2", cp="2").strategy
    factors = expert_factors(own.ep, own.dp, own.cp, own.tp, own.etp, own.expert_order)
    assert factors == ExpertFactors(cp=2)


@pytest.mark.parametrize(
    ("notes", "imbalance"),
    [
        ("forced expert balance", 1.0),
        ("MoE router force-balanced", 1.0),
        ("moe_router_force_load_balancing", 1.0),
        ("fake balanced gate", 1.0),
        ("token-drop run", 1.0),
        ("REAL unbalanced routing", 1.6),
        ("", 1.6),
        ("imbalance 2.5", 2.5),
        ("capacity factor 1.25", 1.25),
        ("natural routing; 1.10x fixed capacity", 1.1),
    ],
)
def test_imbalance_is_stated_or_as_literature_has_it(notes: str, imbalance: float) -> None:
    """Of 8 experts on 8 devices each has one, so that the fullest expert is the fullest device."""
    own = case(**{**MIXTURE, "ep": "8"}, notes=notes)
    experts = own.model.config.experts
    assert experts is not None
    assert experts.imbalance == pytest.approx(imbalance)
    assert any(each.startswith("imbalance = ") for each in own.assumptions)


@given(st.floats(1, 8), st.integers(1, 64), st.integers(1, 64))
def test_many_experts_on_a_device_even_out(of_experts: float, few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert 1 <= device_imbalance(of_experts, more) <= device_imbalance(of_experts, few)
    assert device_imbalance(of_experts, 1) == pytest.approx(of_experts)


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("full (2 of 4 layers)", 1),
        ("4 of the 4 layers", 0),
        ("block, 1 layer", 1),
        ("every layer", 0),
        ("activation checkpointing on all layers", 0),
    ],
)
def test_some_of_the_layers_are_as_many_of_every_stage(text: str, layers: int) -> None:
    strategy = case(recompute=text).strategy
    assert (strategy.recompute, strategy.recompute_layers) == ("full", layers)
    assert reason(recompute="full (3 of 4 layers)") == "recomputation of some layers only"


@pytest.mark.parametrize(
    ("said", "offload"),
    [
        ({"flags": "optimizer CPU offload"}, "optimizer"),
        ({"notes": "ZeRO-Offload", "zero_stage": "zero2"}, "optimizer"),
        ({"notes": "parameter and optimizer offload"}, "optimizer,parameters"),
        ({"notes": "activations are offloaded"}, "activations"),
        ({"notes": "no CPU offload"}, ""),
    ],
)
def test_what_rests_on_the_host_is_part_of_the_plan(said: dict[str, str], offload: str) -> None:
    assert case(**said).strategy.offload == offload
    if offload:
        assert reason(**said, gpus_per_node="4") == "offload to a host that is not known"


def test_megatron_with_experts_or_on_hopper_is_not_that_of_2021() -> None:
    experts = {"gated_mlp": "yes", "kv_heads": "2", "num_experts": "8", "moe_topk": "2", "ep": "4"}
    assert case(source="Megatron-LM", **experts).software.stack == "megatron"
    assert case(source="Megatron-LM", hardware="H100").software.stack == "megatron"
    assert case(source="Megatron-LM", **experts).model.config.dropout == 0


@pytest.mark.parametrize(
    ("text", "zero", "group"),
    [
        ("zero1 (shard group 2)", 1, 2),
        ("ZeRO-1, shard group 2", 1, 2),
        ("zero1 (sharded within a node of 2)", 1, 2),
        ("HSDP (2 within node)", 3, 2),
        ("zero2 (shard group 2)", 2, 2),
        ("fsdp2 (shard group 2)", 3, 2),
        ("zero1 (shard group 4)", 1, 0),
        ("zero1 (shard group 64)", 1, 0),
        ("zero1 (distributed optimizer)", 1, 0),
    ],
)
def test_a_stated_shard_group_is_the_degree_of_zero(text: str, zero: int, group: int) -> None:
    """Of four replicas: a group of all of them, or more, is what ZeRO does untold."""
    strategy = case(zero_stage=text, num_gpus="8", pp="1").strategy
    assert (strategy.zero, strategy.zero_degree) == (zero, group)


@pytest.mark.parametrize(
    "text", ["full (block, 2 layers per stage)", "full (2 layers of every pipeline stage)"]
)
def test_layers_of_every_stage_that_are_recomputed_are_counted(text: str) -> None:
    strategy = case(recompute=text).strategy
    assert (strategy.recompute, strategy.recompute_layers) == ("full", 2)
    assert case(recompute="full").strategy.recompute_layers == 0
    assert reason(recompute="full (2 layers)") == "recomputation of some layers only"


def test_a_shard_group_that_does_not_divide_excludes_a_row() -> None:
    assert reason(zero_stage="zero1 (shard group 3)") == "the shard group does not divide dp · cp"


def test_a_name_says_what_no_column_does() -> None:
    stated = {"gated_mlp": "yes", "num_experts": "8", "moe_topk": "2", "ep": "4"}
    config = case(**stated, model="DeepSeekV3", notes="router force-balanced").model.config
    known = find_model("deepseek-v3")
    assert isinstance(known, TransformerConfig)
    assert config.latent == known.latent
    assert config.experts == replace(known.experts, count=8, top_k=2, ffn=1024)  # type: ignore[type-var]
    assert config.layers == 4
    assert case(**stated, kv_heads="2", model="Qwen3 MoE 30B").model.config.depth == 128
    windows = case(**stated, kv_heads="2", model="GPT OSS 120B", notes="sliding-window attention")
    assert windows.model.config.windows == (128, 0)
    owned = case(**stated, kv_heads="2", model="openai/gpt-oss-20b")
    assert owned.model.config.windows == (128, 0)
    assert reason(**stated, kv_heads="2", model="gpt-oss") == "attention in windows"
    assert reason(**stated, kv_heads="2", model="Llama 4") == "attention in windows"
    assert reason(notes="sliding-window attention") == "attention in windows"


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("precision", "ternary"),
        ("recompute", "sometimes"),
        ("schedule", "by hand"),
        ("zero_stage", "zero7"),
        ("gated_mlp", "perhaps"),
        ("sequence_parallel", "half"),
        ("flags", "thermal event"),
    ],
)
def test_unknown_words_exclude_a_row_and_name_the_column(column: str, text: str) -> None:
    assert reason(**{column: text}) == f"{column} is not understood"


SELECTION = "recomputation of a selection that is not simulated"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"micro_batch": ""}, "micro_batch not stated"),
        ({"num_layers": ""}, "num_layers not stated"),
        ({"hardware": ""}, "hardware not stated"),
        ({"hardware": "abacus"}, "hardware is not known"),
        ({"dp": "3"}, "the degrees do not multiply to num_gpus"),
        ({"micro_batch": "3"}, "global_batch is not divisible by dp · micro_batch"),
        ({"flags": "LoRA"}, "LoRA"),
        ({"flags": "failed"}, "failed for a reason that is not known"),
        ({"flags": "LoRA", "schedule": ""}, "LoRA"),
        ({"notes": "QLoRA of all layers"}, "LoRA"),
        ({"notes": "with CPU offload"}, "offload of what is not stated"),
        ({"notes": "activation offload 20 layers"}, "offload of some layers' activations"),
        ({"notes": "sliding window of 4096"}, "attention in windows"),
        ({"model": "Nemotron_3_Nano", "num_layers": ""}, "layers that are no transformer's"),
        ({"model": "Nemotron-22B", "num_layers": ""}, "num_layers not stated"),
        ({"model": "Wide-ResNet-50", "hidden": ""}, "layers that are no transformer's"),
        ({"model": "GShard-MoE 2.4B"}, "experts in some of the layers"),
        ({"tokens_per_sec_per_gpu": "9", "global_batch": ""}, "global_batch not stated"),
        ({"recompute": "selective (moe, core_attn)"}, SELECTION),
        ({"model": "Gemma-3 27B"}, "attention in windows"),
        ({"model": "Llama-4 Scout"}, "attention in windows"),
        ({"flags": "with stars"}, "flags is not understood"),
        ({"flags": "with stars", "micro_batch": ""}, "micro_batch not stated"),
        ({"schedule": "interleaved"}, "chunks per pipeline rank not stated"),
        ({"iteration_time_s": ""}, "nothing measured"),
        ({"hidden": "many"}, "hidden is not a number above zero"),
        ({"hidden": "2.5"}, "hidden is not a whole number"),
        ({"gated_mlp": "yes", "ffn_hidden": ""}, "ffn_hidden not stated"),
    ],
)
def test_a_row_is_excluded_with_its_reason(changes: dict[str, str], expected: str) -> None:
    assert reason(**changes) == expected


def test_a_blank_is_completed_by_what_the_software_does_and_listed() -> None:
    stated = case()
    assert not any(each.startswith("vocab") for each in stated.assumptions)
    blank = case(vocab="", source="NVIDIA/Megatron-LM:README.md (2021)", recompute="")
    assert blank.software.name == "Megatron-LM, 2019-2023"
    assert blank.strategy.recompute == "full"
    assert any(each.startswith("vocab = 50257") for each in blank.assumptions)
    assert any(each.startswith("recompute = full") for each in blank.assumptions)


def test_unknown_sources_fall_back_to_the_general_entry() -> None:
    assert case(source="", notes="").software.name == "an eager PyTorch stack"
    volta = case(source="", notes="", hardware="V100", precision="")
    assert (volta.precision, volta.model.attention) == ("fp16", "eager")


def test_gradients_and_stages_are_the_software_s() -> None:
    megatron = case(source="NVIDIA/Megatron-LM:README.md")
    assert megatron.gradient_precision == "fp32"
    assert megatron.cuts == (3,)
    for source in ("NVIDIA/NeMo:docs/performance.md", "NVIDIA-NeMo/Megatron-Bridge:docs"):
        assert case(source=source).gradient_precision == "compute"
    launcher = case(source="NVIDIA/NeMo-Framework-Launcher:README.md")
    assert launcher.gradient_precision == "fp32"
    assert case(source="NVIDIA/Megatron-LM:README.md", precision="fp16").gradient_precision == (
        "compute"
    )
    assert case(source="huggingface/nanotron:docs").cuts is None
    assert case(source="huggingface/nanotron:docs", pp="1", dp="8").cuts == ()


def test_a_measured_time_is_stated_or_follows_from_tokens_per_second() -> None:
    assert case().measured.seconds == 0.5
    # 32 samples of 128 tokens on 16 devices: 256 tokens each.
    from_rate = case(iteration_time_s="", tokens_per_sec_per_gpu="1024")
    assert from_rate.measured.seconds == pytest.approx(0.25)
    derived = case(iteration_time_s="", iter_time_derived_s="0.75")
    assert derived.measured.seconds == 0.75


def test_predictions_never_see_what_was_measured() -> None:
    slow, fast = case(iteration_time_s="9"), case(iteration_time_s="1")
    for name in ("model", "strategy", "cuts", "hardware", "software", "precision", "assumptions"):
        assert getattr(slow, name) == getattr(fast, name)


def test_a_run_out_of_memory_has_no_time() -> None:
    assert case(flags="CUDA out of memory", iteration_time_s="").measured.out_of_memory
    measured = case(flags="OOM", iteration_time_s="").measured
    assert measured.out_of_memory
    assert measured.seconds is None


def test_counters_of_memory_show_more_than_tensors() -> None:
    """40 GB of tensors: nvidia-smi shows 1.23 times that, half a GB of context, and 0.7 GB for each
    of two groups, the replicas and the stages."""
    outside = outside_bytes(Strategy(dp=4, pp=2, microbatches=2), load_stack())
    assert outside == pytest.approx(1.9e9)
    assert as_counted(40e9, "allocated", outside) == 40e9
    assert as_counted(40e9, "reserved", outside) == pytest.approx(42e9)
    assert as_counted(40e9, "device", outside) == pytest.approx(51.1e9)


@pytest.mark.parametrize(
    ("text", "gigabits"),
    [
        ("1600 Gbps node-node RoCE", 200),
        ("NVLink; 4x Omni-Path 100 Gb/s per node (Jean Zay)", 50),
        ("8x HDR InfiniBand 200 Gb/s per node", 200),
        ("config: inter-node 800 Gbps; intra-node 150 GB/s", 100),
        ("400 Gb/s per GPU", 400),
        ("RoCE 8x200G", 200),
        ("HDR 200G per GPU", 200),
        ("8x 400 Gb/s InfiniBand", 400),
        ("InfiniBand 8x400Gb/s", 400),
        ("InfiniBand 8x 400 Gb/s per node", 400),
        ("Mellanox ConnectX-7 8 x NDR InfiniBand 400 Gbit/s", 400),
        ("400 Gb/s each GPU", 400),
        ("NVLink 900 GB/s; InfiniBand 400 Gb/s/GPU", 400),
        ("InfiniBand 8x50 GB/s", 400),
        ("RoCE, 50 GB/s per GPU network", 400),
        ("EFA 3200 Gbps", 400),
        ("3.2 Tbps EFA", 400),
        ("1,600 Gbps per node", 200),
        ("3200 Gb/s per node (400 Gb/s per GPU)", 400),
        ("NVLink + InfiniBand 8x200 Gb/s", 200),
        ("NVLink and 400 Gb/s IB", 50),
        ("NVIDIA GPU nodes with 400 Gb/s InfiniBand", 50),
        ("16x H100 nodes 400 Gb/s InfiniBand", 50),
        ("4x A100 40G, HDR 200 Gb/s", 25),
        ("A100-80G; InfiniBand 200 Gb/s", 25),
        ("PCIe 256 Gb/s; HDR 100 Gb/s", 12.5),
        ("2x200 Gb/s per GPU", 400),
        ("8x 400 Gb/s per GPU", 400),
        ("200 Gb/s x8", 200),
        ("8 NICs of 400 Gb/s", 400),
        ("Slingshot 11, 4 NICs x 25 GB/s per node", 100),
        ("8x400 GbE", 400),
        ("100 Gigabit Ethernet", 12.5),
        ("10 Gbit Ethernet", 1.25),
    ],
)
def test_a_network_is_shared_by_the_devices_of_a_node(text: str, gigabits: float) -> None:
    found = network_rate(text, 8)
    assert found is not None
    assert found.bytes_per_second == pytest.approx(gigabits * 1e9 / 8)


@pytest.mark.parametrize(
    ("text", "said_of"),
    [
        ("400 Gb/s InfiniBand", False),
        ("EFA 3200 Gbps", False),
        ("1600 Gbps node-node RoCE", True),
        ("8x200G", True),
        ("200G per GPU", True),
        ("200 Gb/s per node", True),
    ],
)
def test_a_rate_is_told_that_may_be_a_node_s_or_a_device_s(text: str, said_of: bool) -> None:
    assumed = case(interconnect=text, gpus_per_node="8").assumptions
    told = [each for each in assumed if each.startswith("network =")]
    assert bool(told) is not said_of


@pytest.mark.parametrize(
    "text",
    [
        *("", "RoCE RDMA between nodes", "NVLink intra-node", "Selene", "900 GB/s"),
        *("nvlink 900 GB/s", "8x H100 80G", "PCIe 64 GB/s", "GPUs with 80G"),
    ],
)
def test_networks_of_unstated_bandwidth_have_none(text: str) -> None:
    assert network_rate(text, 8) is None


def test_hardware_has_the_memory_and_the_nodes_that_the_row_states() -> None:
    cluster = case(hardware="V100 16GB (AWS)", gpus_per_node="4", precision="fp16").hardware.cluster
    assert cluster.device.memory_bytes == 16 * 2**30
    assert cluster.levels[0].size == 4
    assert cluster.num_devices == 16


def test_stages_are_cut_evenly_with_embedding_and_head_as_layers_where_needed() -> None:
    # 8 layers and 4 stages: the first block is the embedding, the last the head.
    assert even_cuts(8, 4) == (3, 5, 7)
    # 22 layers and 8 stages: (22 + 2) / 8 = 3 blocks each.
    assert even_cuts(22, 8) == (3, 6, 9, 12, 15, 18, 21)
    assert even_cuts(7, 4) is None


@given(st.integers(1, 60), st.integers(1, 12))
def test_even_cuts_differ_by_embedding_and_head_alone(layers: int, stages: int) -> None:
    cuts = even_cuts(layers, stages)
    if cuts is not None:
        bounds = [0, *cuts, layers + 2]
        sizes = [end - begin for begin, end in pairwise(bounds)]
        inner = sizes[1:-1]
        assert sum(sizes) == layers + 2
        assert len(set(inner)) <= 1
        assert all(math.ceil(layers / stages) <= size for size in sizes)


@given(st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=12), max_size=6))
def test_any_text_makes_a_case_or_an_exclusion(changes: dict[str, str]) -> None:
    made = make_case(row(**{name: text.strip() for name, text in changes.items()}))
    assert isinstance(made, Case) or made.reason


def test_every_base_column_is_known() -> None:
    assert set(BASE) <= set(COLUMNS)


def test_a_unit_of_memory_that_is_not_understood_leaves_the_time() -> None:
    odd = {"peak_memory_gb": "40", "mem_unit": "buckets"}
    measured = case(**odd).measured
    assert measured.seconds == 0.5
    assert measured.memory_bytes is None
    assert reason(**odd, iteration_time_s="") == "mem_unit is not understood"


@pytest.mark.parametrize("none", ["0", "none", "n/a"])
def test_no_experts_and_no_chunks_are_as_good_as_blank(none: str) -> None:
    stated = case(num_experts=none, moe_topk=none, ep=none, vpp=none)
    assert stated.experts == 0
    assert stated.strategy == case().strategy


def test_sizes_beyond_reason_exclude_a_row() -> None:
    assert reason(num_layers="1000000") == "more than 2,000 layers"
    assert reason(global_batch="100000000") == "too many microbatches to schedule"


def test_a_row_that_names_no_software_is_known_as_such() -> None:
    assert case(source="megatron-core").software_known
    assert not case(source="a lab").software_known
    row = case(source="megatron-core").row
    untold = make_case(row, tells_software=False)
    assert isinstance(untold, Case)
    assert not untold.software_known
    assert untold.software.stack == "fsdp-eager"


def said(notes: str) -> MeasuredRow:
    return MeasuredRow(1, {"notes": notes, "num_experts": "8", "source": "somebody"})


@pytest.mark.parametrize(
    ("notes", "fact", "value"),
    [
        ("DeepEP off, alltoall dispatcher", "sends_copies_once", False),
        ("without DeepEP", "sends_copies_once", False),
        ("DeepEP disabled", "sends_copies_once", False),
        ("DeepEP not used", "sends_copies_once", False),
        ("enable_deepep=False", "sends_copies_once", False),
        ("enable_deepep: true", "sends_copies_once", True),
        ("DeepEP off; HybridEP on", "sends_copies_once", True),
        ("ragged_all_to_all", "sends_copies_once", False),
        ("expert parallelism via all-to-all", "sends_copies_once", False),
        ("expert parallel 8", "sends_copies_once", None),
        ("all-to-all not overlapped", "overlaps_exchanges", False),
        ("EP A2A overlap: off", "overlaps_exchanges", False),
        ("MoE comm overlap disabled", "overlaps_exchanges", False),
        ("exposed all-to-all", "overlaps_exchanges", False),
        ("A2A communication is exposed", "overlaps_exchanges", False),
        ("moe_a2a_overlap=True", "overlaps_exchanges", True),
        ("1F1B EP overlap", "overlaps_exchanges", True),
        ("tp comm overlap, moe-grouped-gemm", "overlaps_exchanges", None),
        ("overlap grad reduce, expert parallel 8", "overlaps_exchanges", None),
        ("tp comm overlap, moe-grouped-gemm", "overlaps_activations", True),
        ("no tp comm overlap", "overlaps_activations", False),
        ("without async TP", "overlaps_activations", False),
        ("unfused RMSNorm", "spells_norms_out", True),
        ("eager RMS norm", "spells_norms_out", True),
        ("fused RMSNorm kernel", "spells_norms_out", False),
        ("without fused RMSNorm", "spells_norms_out", True),
        ("fused softmax", "spells_norms_out", None),
        ("grouped_mm", "groups_experts", True),
        ("moe_grouped_gemm: false", "groups_experts", False),
        ("experts in a loop: looped experts", "groups_experts", False),
        ("megablox", "groups_experts", True),
        ("without full-iteration graphs", "dispatch", None),
        ("full-iteration graph", "dispatch", "compiled"),
        ("float8 tensorwise", "fp8_scaling", "current"),
        ("FP8 delayed scaling", "fp8_scaling", "delayed"),
        ("router fusion off", "routing_kernels", None),
        ("router fusion", "routing_kernels", 12),
    ],
)
def test_what_rows_deny_is_not_taken_for_what_they_say(
    notes: str, fact: str, value: object
) -> None:
    assert {each.name: each.value for each in facts_of(said(notes))}.get(fact) == value


def test_torchtitan_reduces_gradients_in_fp32_unless_a_row_says_otherwise() -> None:
    assert case(software="torchtitan").gradient_precision == "fp32"
    said = case(software="torchtitan", notes="gradients reduced in bf16")
    assert said.gradient_precision == "compute"


def test_what_software_does_has_a_reason() -> None:
    for software in known_software():
        assert software.does.keys() <= software.because.keys()


@pytest.mark.parametrize(
    ("software", "value"),
    [
        ("Megatron-LM", False),
        ("Megatron-Core 0.8", False),
        ("Megatron-Core 0.8, --tp-comm-overlap", True),
        ("NeMo 24.09 on Megatron-Core", None),
        ("Megatron-Bridge 25.09", None),
        ("torchtitan", None),
    ],
)
def test_software_does_what_rows_do_not_say(software: str, value: bool | None) -> None:
    """NVIDIA's own recipes pipeline tensor parallelism with products, Megatron-LM if it is told."""
    found = case(software=software)
    assert found.stack_fields.get("overlaps_activations") == value
    told = any(each.startswith("overlaps_activations = ") for each in found.assumptions)
    assert told == (value is not None)


def test_the_column_of_the_dispatcher_counts_before_words() -> None:
    row = MeasuredRow(1, {"notes": "DeepEP is faster", "token_dispatcher": "alltoall"})
    (fact,) = facts_of(row)
    assert (fact.name, fact.value) == ("sends_copies_once", False)


@pytest.mark.parametrize(
    ("notes", "name", "value"),
    [
        ("expert TP 4", "etp", 4),
        ("expert tensor parallel size of 1", "etp", 1),
        ("max/mean expert load 1.8", "imbalance", 1.8),
        ("capacity factor 1.25", "imbalance", 1.25),
        ("selective recompute", "recompute", "selective"),
        ("selective activation checkpointing", "recompute", "selective"),
        ("full activation checkpointing", "recompute", "full"),
        ("recompute everything", "recompute", "full"),
        ("full recompute of 4 layers", "recompute", None),
        ("no activation recomputation", "recompute", "none"),
        ("recompute/schedule/overlap not in the table", "recompute", None),
        ("--grad-reduce-in-bf16", "bf16_gradients", "compute"),
        ("grad_reduce_in_fp32=False", "bf16_gradients", "compute"),
        ("gradients reduced in bf16", "bf16_gradients", "compute"),
        ("grad_reduce_in_fp32: true", "bf16_gradients", "fp32"),
        ("--accumulate-allreduce-grads-in-fp32", "bf16_gradients", "fp32"),
        ("bf16 parameters", "bf16_gradients", None),
        ("no bf16 gradients", "bf16_gradients", "fp32"),
        ("--no-grad-reduce-in-bf16", "bf16_gradients", "fp32"),
        ("without grad-reduce-in-bf16", "bf16_gradients", "fp32"),
        ("grad_reduce_in_bf16: false", "bf16_gradients", "fp32"),
        ("bf16 gradients, fp32 accumulation", "bf16_gradients", None),
        ("gradient all-reduce in bf16", "bf16_gradients", "compute"),
    ],
)
def test_numbers_and_policies_in_words_fill_blanks(notes: str, name: str, value: object) -> None:
    told = values_of(said(notes)).get(name)
    assert (told.value if told is not None else None) == value


@pytest.mark.parametrize(
    ("recompute", "layers"),
    [
        ("2 of 6 layers per stage", 2),
        ("full, 2 of 6 per stage", 2),
        ("full (block, 2 layers of every stage)", 2),
        ("8 out of 24 layers", 2),
        ("8/24 layers", 2),
        ("8 layers of 24", 2),
        ("every layer", 0),
        ("everything", 0),
        ("activation checkpointing", 0),
    ],
)
def test_recomputation_of_some_layers_is_said_in_many_ways(recompute: str, layers: int) -> None:
    strategy = case(num_layers="24", dp="2", pp="4", recompute=recompute).strategy
    assert (strategy.recompute, strategy.recompute_layers) == ("full", layers)


@pytest.mark.parametrize(
    ("notes", "because"),
    [
        ("ZeRO-Infinity with NVMe offload", "offload to disks"),
        ("fine-grained activation offloading (moe_act)", "offload of some activations"),
        ("recipe llama3_8b_lora", "LoRA"),
        ("SWA 4096", "attention in windows"),
        (
            "SFT with packed sequences",
            "fine-tuning on packed sequences of lengths that are not stated",
        ),
    ],
)
def test_what_is_not_simulated_is_left_out_for_what_it_is(notes: str, because: str) -> None:
    assert reason(notes=notes) == because


@pytest.mark.parametrize(
    ("notes", "offload"),
    [
        ("cpu offload of optimizer states", "optimizer"),
        ("zero offload", "optimizer"),
        ("offload: none", ""),
        ("cpu_offload=False", ""),
        ("offloads activations to the CPU", "activations"),
    ],
)
def test_what_rests_on_the_host_is_said_in_many_ways(notes: str, offload: str) -> None:
    assert case(notes=notes, gpus_per_node="8").strategy.offload == offload


def test_tpus_are_known_and_grace_hopper_is_not_an_h200() -> None:
    assert case(hardware="TPU v5p", num_gpus="16").hardware.family == "TPU v5p"
    assert reason(hardware="GH200") == "hardware is not known"


@pytest.mark.parametrize(
    "text", ["A100 PCIe 80GB", "H100 NVL", "H100 PCIe", "A800 PCIe", "V100-PCIE-16GB", "H200 NVL"]
)
def test_devices_without_nvswitch_are_not_taken_for_those_with_it(text: str) -> None:
    assert reason(hardware=text) == "hardware without NVSwitch is not known"


@pytest.mark.parametrize(
    "text", ["H100 SXM, PCIe 5 to the host", "8x H100 with NVLink, PCIe Gen5 to host"]
)
def test_a_host_may_be_reached_by_pcie(text: str) -> None:
    assert case(hardware=text).hardware.family == "H100"


@pytest.mark.parametrize(
    ("zero_stage", "zero", "degree"),
    [
        ("zero1 (shard group 4)", 1, 4),
        ("ZeRO-2, shard 2", 2, 2),
        ("distributed optimizer, 4 instances", 1, 4),
        ("zero1, num_distributed_optimizer_instances=2", 1, 8),
        ("zero1 within a node", 1, 4),
        ("zero1 over all ranks", 1, 0),
        ("zero1 (shard group 16)", 1, 0),
        ("HSDP (shard 8, replicate 2)", 3, 8),
        ("hybrid_shard", 3, 4),
        ("hsdp", 3, 4),
        ("MiCS 8", 3, 8),
    ],
)
def test_who_shares_what_zero_shards_is_said_in_many_ways(
    zero_stage: str, zero: int, degree: int
) -> None:
    """Of 16 replicas of two devices each, on nodes of eight."""
    strategy = case(num_gpus="32", dp="16", pp="1", zero_stage=zero_stage).strategy
    assert (strategy.zero, strategy.zero_degree) == (zero, degree)


def test_instances_that_do_not_divide_replicas_are_refused() -> None:
    stated = {"num_gpus": "32", "dp": "16", "pp": "1"}
    assert reason(**stated, zero_stage="distributed optimizer, 3 instances") == (
        "optimizer instances do not divide dp · cp"
    )


@pytest.mark.parametrize(
    "recompute",
    [
        "selective",
        "selective AC",
        "selective activation checkpointing",
        "SAC",
        "selective (attn only)",
        "per-op SAC",
        "core_attn",
        "--recompute-granularity selective",
        "dots_saveable",
    ],
)
def test_selective_recomputation_is_said_in_many_ways(recompute: str) -> None:
    assert case(recompute=recompute).strategy.recompute == "selective"


@pytest.mark.parametrize(
    ("recompute", "every"),
    [
        ("every other layer", 2),
        ("every second block", 2),
        ("selective (every 2nd layer)", 2),
        ("selective layer", 2),
        ("every third layer", 3),
        ("every 4th layer", 4),
        ("every second", 2),
        ("layer 3", 3),
        ("layer (2)", 2),
        ("full layers", 1),
        ("layerwise", 1),
        ("every layer", 1),
        ("gradient checkpointing", 1),
        ("--recompute-granularity full", 1),
    ],
)
def test_one_of_several_layers_may_be_recomputed(recompute: str, every: int) -> None:
    strategy = case(recompute=recompute).strategy
    assert (strategy.recompute, strategy.recompute_every) == ("full", every)


@pytest.mark.parametrize(
    "recompute", ["gradient checkpointing off", "activation checkpointing: none"]
)
def test_recomputation_may_be_denied(recompute: str) -> None:
    assert case(recompute=recompute).strategy.recompute == "none"


@pytest.mark.parametrize(
    "recompute", ["selective (mlp)", "save_qkv_proj", "half the layers", "minimal_offloaded"]
)
def test_other_selections_are_refused(recompute: str) -> None:
    assert reason(recompute=recompute) == "recomputation of a selection that is not simulated"


@pytest.mark.parametrize(
    ("column", "texts", "means"),
    [
        ("flags", ("ok", "none", "tuned", "N/A"), {}),
        ("flags", ("OOM!", "oom (step 1)", "CUDA out of memory"), {"oom": 1}),
        ("sequence_parallel", ("Y", "enabled"), {"sequence_parallel": 1}),
        ("sequence_parallel", ("N", "disabled"), {"sequence_parallel": 0}),
        ("recompute", ("recompute_granularity=full", "AC: full"), {"recompute": "full"}),
        (
            "recompute",
            ("recompute_granularity: selective", "--recompute-activations", "AC: selective op"),
            {"recompute": "selective"},
        ),
        ("recompute", ("N/A", "-"), {}),
        ("zero_stage", ("stage 3", "zero_stage=3"), {"zero": 3}),
        ("zero_stage", ("fully sharded", "megatron fsdp"), {"zero": 3}),
        ("zero_stage", ("dist opt",), {"zero": 1}),
        ("schedule", ("VPP 4",), {"schedule": "interleaved"}),
        ("schedule", ("PipeDream-1F1B",), {"schedule": "1f1b"}),
        ("tflops_def", ("model TFLOPs", "MODEL_TFLOP/s/GPU"), {"recomputation": 0, "causal": 0}),
    ],
)
def test_columns_are_understood_as_other_sources_fill_them(
    column: str, texts: tuple[str, ...], means: dict[str, object]
) -> None:
    for text in texts:
        found = meaning_of(MeasuredRow(1, {column: text}), column)
        assert found is not None
        assert found.values == means, text


@pytest.mark.parametrize(
    ("words", "stack"),
    [
        ("PyTorch FSDP2 + torch.compile", "fsdp-compiled"),
        ("PyTorch FSDP2 without torch.compile", "fsdp-eager"),
        ("PyTorch FSDP2", "fsdp-eager"),
        ("torchtitan", "fsdp-compiled"),
        ("torchtitan, eager", "fsdp-eager"),
        ("torchtitan, compile: false", "fsdp-eager"),
        ("torchtitan, torch.compile", "fsdp-compiled"),
        ("ROCm/Megatron-LM", "megatron"),
        ("LLM Foundry", "llm-foundry"),
    ],
)
def test_whether_a_stack_compiles_is_read(words: str, stack: str) -> None:
    hardware = "MI300X" if "ROCm" in words else "H100"
    assert case(software=words, hardware=hardware).software.stack == stack


EXPERTS = {"model": "mixtral-8x7b", "num_experts": "8", "moe_topk": "2", "kv_heads": "4"}


@pytest.mark.parametrize(
    ("of_both", "other"),
    [
        ({}, {"interconnect": "100 Gbps"}),
        ({}, {"gpus_per_node": "4"}),
        ({}, {"vocab": "2000"}),
        ({}, {"kv_heads": "2"}),
        ({}, {"gated_mlp": "yes"}),
        ({**EXPERTS, "ep": "2"}, {"moe_topk": "1"}),
    ],
    ids=["network", "node", "vocabulary", "heads of keys", "gated", "chosen experts"],
)
def test_runs_on_another_cluster_or_of_another_model_do_not_compete(
    of_both: dict[str, str], other: dict[str, str]
) -> None:
    first, second = case(**of_both), case(**{**of_both, **other})
    assert first.strategy == second.strategy
    assert first.choice_group != second.choice_group


@pytest.mark.parametrize(
    ("of_both", "other"),
    [
        ({}, {"tp": "4", "dp": "2"}),
        ({**EXPERTS, "ep": "2"}, {"ep": "4"}),
        ({}, {"zero_stage": "1", "micro_batch": "1"}),
    ],
    ids=["padded vocabulary", "experts per device", "ZeRO"],
)
def test_what_a_strategy_does_to_its_model_makes_no_other_one(
    of_both: dict[str, str], other: dict[str, str]
) -> None:
    first, second = case(**of_both), case(**{**of_both, **other})
    assert first.strategy != second.strategy
    assert first.choice_group == second.choice_group
