"""What texts of cells mean: as they stand, as options, denied, and beside remarks."""

from __future__ import annotations

import pytest

from tests.validation.rows import case, reason


@pytest.mark.parametrize(
    ("text", "recompute"),
    [
        ("--recompute-granularity full", "full"),
        ("--recompute-granularity=selective", "selective"),
        ("recompute-activations", "selective"),
        ("recompute_activations: true", "selective"),
        ("--checkpoint-activations", "full"),
        ("checkpoint=False", "none"),
        ("Activation Ckpt TRUE", "full"),
        ("activations_checkpoint_granularity: selective", "selective"),
        ("gradient_checkpointing = off", "none"),
        ("remat_policy=full", "full"),
        ("without activation checkpointing", "none"),
        ("We do not use any activation checkpointing", "none"),
        ("no remat", "none"),
        ("as usual (full)", "full"),
    ],
)
def test_an_option_or_a_denial_says_what_is_recomputed(text: str, recompute: str) -> None:
    assert case(recompute=text, software="Megatron-LM").strategy.recompute == recompute


@pytest.mark.parametrize(
    "text", ["recompute=mlp", "checkpoint every blue moon", "without doubt", "unclear (perhaps)"]
)
def test_an_option_with_another_value_is_not_guessed(text: str) -> None:
    assert "recompute" in reason(recompute=text)


@pytest.mark.parametrize(
    ("text", "zero", "degree"),
    [
        ("--use-distributed-optimizer", 1, 0),
        ("use_distributed_optimizer=False", 0, 0),
        ("zero1=-1", 1, 0),
        ("zero1=4", 1, 4),
        ("Zero1 4", 1, 4),
        ("ZeRO-1 over 4 ranks", 1, 4),
        ("zero1=-1, fsdp=True", 3, 0),
        ("zero1=-1, fsdp=False", 1, 0),
        ("FSDP2", 3, 0),
        ("FSDP=4", 3, 4),
        ("FSDP: off", 0, 0),
        ("FSDP 4 within a slice, data parallelism over 2 slices", 3, 4),
        ("HSDP (replicate 2, shard 4)", 3, 4),
        ("HSDP, replicate=2", 3, 4),
        ('sharding="stage2", sharding_degree=4', 2, 4),
        ('sharding="stage2", sharding_degree=1', 0, 0),
        ("DDPStrategyZero1", 1, 0),
        ("ZeRO-DP O3", 3, 0),
        ("deepspeed (zero3)", 3, 0),
    ],
)
def test_sharding_is_read_with_its_degree(text: str, zero: int, degree: int) -> None:
    found = case(zero_stage=text, pp="1", dp="8").strategy
    assert (found.zero, found.zero_degree) == (zero, degree)


@pytest.mark.parametrize(
    ("text", "zero", "degree"),
    [
        ("fully sharded (2 nodes)", 3, 0),
        ("FSDP full shard, 4 GPUs per node", 3, 0),
        ("FSDP 4 nodes", 3, 0),
        ("ZeRO-3, fully sharded, 4 layers", 3, 0),
        ("ZeRO-1, TP over 4 GPUs", 1, 0),
        ("FSDP: 1", 3, 0),
        ("zero3=1", 3, 0),
        ("use_distributed_optimizer: 1", 1, 0),
        ("FSDP=4", 3, 4),
        ("ZeRO-3: off", 0, 0),
        ("FSDP (off)", 0, 0),
        ("fsdp=False, zero=1", 1, 0),
        ("HSDP, 2 replicas", 3, 4),
    ],
)
def test_not_every_number_beside_sharding_is_a_degree(text: str, zero: int, degree: int) -> None:
    found = case(zero_stage=text, pp="1", dp="8").strategy
    assert (found.zero, found.zero_degree) == (zero, degree)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("zero_stage", "Megatron distributed optimizer, no FSDP"),
        ("zero_stage", "optimizer states sharded, no FSDP"),
        ("recompute", "checkpoint: 0.4"),
        ("recompute", "MLP recomputed, attention not recomputed"),
        ("recompute", "only MLP; no recompute of attention"),
        ("recompute", "MLP only (no attention)"),
        ("gated_mlp", "gated (GELU)"),
        ("flags", "NaN (done)"),
    ],
)
def test_what_is_denied_beside_something_else_is_not_the_meaning(column: str, text: str) -> None:
    assert reason(**{column: text}) == f"{column} is not understood"


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("TF32", "tf32"),
        ("fp32 (allow_tf32=True)", "tf32"),
        ("TF32 (no AMP)", "tf32"),
        ("tf32=False", "fp32"),
        ("fp32 (w/o TF32)", "fp32"),
        ("fp32 (TF32=0)", "fp32"),
        ("TF32 disabled", "fp32"),
        ("fp32", "fp32"),
    ],
)
def test_tf32_may_be_denied(text: str, precision: str) -> None:
    assert case(precision=text).precision == precision


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("pure bf16", "pure-bf16"),
        ("bf16 (pure)", "pure-bf16"),
        ("pure_bf16=true", "pure-bf16"),
        ("full bfloat16", "pure-bf16"),
        ("bf16 weights, gradients and optimizer states", "pure-bf16"),
        ("bf16 without master weights", "pure-bf16"),
        ("bf16, no fp32 master weights", "pure-bf16"),
        ("pure_bf16=false, bf16", "bf16"),
        ("bf16, not pure", "bf16"),
        ("bf16 mixed precision", "bf16"),
        ("bf16 with fp32 master weights", "bf16"),
    ],
)
def test_the_optimizer_may_keep_nothing_in_fp32(text: str, precision: str) -> None:
    assert case(precision=text).precision == precision


@pytest.mark.parametrize(
    ("text", "expected"),
    [("sequence parallel, no TP overlap", True), ("--sequence-parallel", True), ("sp=off", False)],
)
def test_a_remark_behind_an_option_is_no_value(text: str, expected: bool) -> None:
    assert case(sequence_parallel=text).strategy.sequence_parallel == expected


def test_a_number_beside_sharding_that_is_not_read_is_told() -> None:
    told = case(zero_stage="ZeRO-1 (bucket 200)", pp="1", dp="8").assumptions
    assert any("200 is not read" in each for each in told)
    told = case(zero_stage="zero1=4", pp="1", dp="8").assumptions
    assert not any("is not read" in each for each in told)


@pytest.mark.parametrize(
    ("unit", "scale", "counter"),
    [
        ("MB (Max CUDA memory allocated)", 1e6, "allocated"),
        ("MiB, nvidia-smi memory.used", 2.0**20, "device"),
        ("GB reserved", 1e9, "reserved"),
        ("GiB torch.cuda.max_memory_reserved", 2.0**30, "reserved"),
        ("GB (peak memory used by PyTorch allocator)", 1e9, "allocated"),
        ("GiB peak reserved", 2.0**30, "reserved"),
        ("GB (allocated vs reserved not stated)", 1e9, "allocated"),
        ("GiB per device (XLA peak)", 2.0**30, "compiler"),
        ("GB", 1e9, "allocated"),
    ],
)
def test_memory_has_a_unit_and_a_counter(unit: str, scale: float, counter: str) -> None:
    found = case(peak_memory_gb="3", mem_unit=unit).measured
    assert (found.memory_bytes, found.counter) == (3 * scale, counter)


def test_memory_in_a_unit_that_is_not_known_is_told_beside_a_time() -> None:
    found = case(peak_memory_gb="3", mem_unit="furlongs")
    assert found.measured.memory_bytes is None
    assert any("furlongs" in each for each in found.assumptions)
    without = case(peak_memory_gb="", mem_unit="GiB")
    assert not any("not compared" in each for each in without.assumptions)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("bf16 (FSDP MP PURE)", "bf16"),
        ("mixed bf16", "bf16"),
        ("BF16", "bf16"),
        ("fp16", "fp16"),
        ("fp32", "fp32"),
    ],
)
def test_words_for_precision_are_understood(text: str, precision: str) -> None:
    assert case(precision=text).precision == precision


@pytest.mark.parametrize(
    ("unit", "scale", "counter"),
    [
        ("GiB allocated", 2**30, "allocated"),
        ("GiB peak reserved", 2**30, "reserved"),
        ("GB (nvidia-smi, max node)", 1e9, "device"),
        ("GiB per device (XLA peak)", 2**30, "compiler"),
    ],
)
def test_memory_has_a_unit_and_says_what_it_counts(unit: str, scale: float, counter: str) -> None:
    measured = case(peak_memory_gb="10", mem_unit=unit).measured
    assert measured.memory_bytes == 10 * scale
    assert measured.counter == counter
