"""Published training recipes, as problems and strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from autotune.launch.facts import Launch, launch_of
from autotune.problem import load_problem
from distir.models.experts import Experts
from distir.models.transformer import TransformerConfig, llama_config
from distir.strategy import Strategy

# gpt-oss-120b's config.json; attention sinks and windows are left out.
GPT_OSS_120B = replace(
    llama_config(
        "gpt-oss-120b",
        layers=36,
        hidden=2880,
        heads=64,
        kv_heads=8,
        head_dim=64,
        ffn=2880,
        vocabulary=201088,
        sequence_length=4096,
    ),
    rotary_base=150000.0,
    qkv_bias=True,
    output_bias=True,
    experts=Experts(count=128, top_k=4, ffn=2880),
)

# Megatron-LM tests/functional_tests/test_cases/gpt/gpt3_15b_8t_release, with GELU for squared ReLU.
NEMOTRON_15B = TransformerConfig(
    name="gpt3-15b-8t",
    layers=32,
    hidden=6144,
    heads=48,
    kv_heads=8,
    fused_qkv=False,
    vocabulary=256000,
    sequence_length=4096,
    learned_positions=False,
    rotary_fraction=0.5,
    qkv_bias=False,
    output_bias=False,
    ffn_bias=False,
    tied_embeddings=False,
)


@dataclass(frozen=True)
class Recipe:
    """A published recipe, and the frameworks whose files are golden."""

    source: str
    targets: tuple[str, ...]
    model: Any
    strategy: Strategy
    workload: Mapping[str, Any]

    @lru_cache(maxsize=16)  # noqa: B019
    def launch(self) -> Launch:
        """The launch of the recipe on H100s."""
        devices = self.strategy.devices
        problem = load_problem(self.model, "hgx-h100", devices=devices, **self.workload)
        simulator: Any = problem.simulator
        return launch_of(problem, self.strategy, simulator.plan(self.strategy))

    def __hash__(self) -> int:
        return hash((self.source, self.strategy))


BRIDGE = "NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/perf_recipes"
TITAN = "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"

RECIPES = {
    "llama3-70b-64": Recipe(
        f"{BRIDGE}/llama/h100/llama3.py llama3_70b_pretrain_64gpu_h100_bf16_config",
        ("megatron", "bridge"),
        "llama3-70b",
        Strategy(
            tp=4, pp=4, cp=2, dp=2, microbatches=128, schedule="interleaved", chunks=5, zero=1,
            sequence_parallel=True, cp_exchange="ring",
        ),
        {"batch_size": 256, "sequence_length": 8192},
    ),
    "llama3-8b-8": Recipe(
        f"{BRIDGE}/llama/h100/llama3.py llama3_8b_pretrain_8gpu_h100_bf16_config",
        ("megatron", "bridge"),
        "llama3-8b",
        Strategy(cp=2, dp=4, microbatches=32, zero=1, cp_exchange="ring"),
        {"batch_size": 128, "sequence_length": 8192},
    ),
    "llama3-8b-fp8-8": Recipe(
        f"{BRIDGE}/llama/h100/llama3.py llama3_8b_pretrain_8gpu_h100_fp8cs_config",
        ("megatron", "bridge"),
        "llama3-8b",
        Strategy(dp=8, microbatches=16, zero=1, recompute="full", recompute_layers=5),
        {"batch_size": 128, "sequence_length": 8192, "precision": "fp8"},
    ),
    "gpt-oss-120b-64": Recipe(
        f"{BRIDGE}/gpt_oss/h100/gpt_oss.py gpt_oss_120b_pretrain_64gpu_h100_bf16_config",
        ("megatron", "bridge"),
        GPT_OSS_120B,
        Strategy(dp=16, pp=4, ep=8, microbatches=80, zero=1, recompute="selective"),
        {"batch_size": 1280, "sequence_length": 4096},
    ),
    "gpt3-175b-128": Recipe(
        "NVIDIA/Megatron-LM examples/gpt3/train_gpt3_175b_distributed.sh",
        ("megatron", "bridge"),
        "gpt3-175B",
        Strategy(tp=8, pp=16, microbatches=1536),
        {"batch_size": 1536, "sequence_length": 2048, "precision": "fp16"},
    ),
    "gpt3-15b-8": Recipe(
        "NVIDIA/Megatron-LM tests/functional_tests/test_cases/gpt/gpt3_15b_8t_release",
        ("megatron", "bridge"),
        NEMOTRON_15B,
        Strategy(tp=8, microbatches=96, sequence_parallel=True),
        {"batch_size": 384, "gradient_precision": "fp32"},
    ),
    "llama3-8b-fsdp-8": Recipe(
        f"{TITAN}, 8B on 8 GPUs",
        ("torchtitan",),
        "llama3-8b",
        Strategy(dp=8, zero=3, recompute="alternate"),
        {"batch_size": 16, "sequence_length": 8192, "gradient_precision": "fp32"},
    ),
    "llama3-405b-512": Recipe(
        f"{TITAN}, 405B on 512 GPUs, 1F1B",
        ("torchtitan",),
        "llama3-405b",
        Strategy(
            dp=8, tp=8, pp=8, microbatches=32, zero=3, recompute="full", sequence_parallel=True
        ),
        {"batch_size": 256, "sequence_length": 8192, "gradient_precision": "fp32",
         "precision": "fp8"},
    ),
    "llama3-405b-512-interleaved": Recipe(
        f"{TITAN}, 405B on 512 GPUs, interleaved",
        ("torchtitan",),
        "llama3-405b",
        Strategy(
            dp=8, tp=8, pp=8, microbatches=32, zero=3, recompute="full", sequence_parallel=True,
            schedule="interleaved", chunks=2,
        ),
        {"batch_size": 256, "sequence_length": 8192, "gradient_precision": "fp32",
         "precision": "fp8"},
    ),
    "llama3-8b-zero3-8": Recipe(
        "no publication: the plain case of the frameworks without pipelines",
        ("deepspeed", "accelerate", "torchtitan"),
        "llama3-8b",
        Strategy(dp=8, zero=3, microbatches=4, recompute="full"),
        {"batch_size": 64, "sequence_length": 8192},
    ),
    "llama3.2-1b-4": Recipe(
        "huggingface/nanotron examples/config_qwen.yaml, with a model of the zoo",
        ("nanotron",),
        "llama3.2-1b",
        Strategy(dp=2, tp=2, microbatches=1, sequence_parallel=True),
        {"batch_size": 6, "sequence_length": 256},
    ),
}  # fmt: skip
