"""The zoo: published models by name, as data, and families whose names carry sizes.

    ZOO.get("gpt3-13b")           a configuration; upper and lower case are the same
    find_model("mlp-16x1024")     a configuration from the zoo or from a family
    config.build(2, 128)          the function at batch 2 and sequence 128

`sequence_length` is the length that a model was first trained with.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from distir.errors import ImportModelError, UnknownNameError, shown
from distir.ir import Function
from distir.models.experts import Experts
from distir.models.latent import Latent
from distir.models.layers import AttentionKind
from distir.models.mlp import MlpConfig
from distir.models.t5 import T5Config
from distir.models.transformer import TransformerConfig, bert_config, llama_config
from distir.models.vision import VisionConfig
from distir.registry import Registry


@runtime_checkable
class ModelConfig(Protocol):
    """A model in the zoo: its sizes, and a function that builds it."""

    @property
    def name(self) -> str:
        """The name of the model."""
        ...

    @property
    def sequence_length(self) -> int | None:
        """The usual sequence length; None if there is no sequence or its length is fixed."""
        ...

    @property
    def longest(self) -> int | None:
        """The longest sequence that can be built; None if there is no limit."""
        ...

    def build(
        self, batch_size: int, sequence_length: int, attention: AttentionKind = "fused"
    ) -> Function:
        """The model's function at these sizes."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """Models whose names contain their sizes: `pattern` has a group per size, and `make` takes the
    name and the sizes."""

    pattern: re.Pattern[str]
    make: Callable[..., ModelConfig]

    def find(self, name: str) -> ModelConfig | None:
        """The model of this name, or None if the family has no such name."""
        match = self.pattern.fullmatch(name.lower())
        return self.make(name, *map(int, match.groups())) if match else None


ZOO: Registry[ModelConfig] = Registry("model")
FAMILIES: Registry[Family] = Registry("model family")


def find_model(name: str) -> ModelConfig:
    """The model of this name in the zoo or in a family. Raises `UnknownNameError`, with similar
    names, if there is none."""
    if (found := _find_in_family(name)) is not None:
        return found
    stood_for = next((each.summary for each in FAMILIES if each.name == name.lower()), None)
    if stood_for is not None:
        raise ImportModelError(f"{shown(name)} stands for names with numbers: {stood_for}")
    if name not in ZOO:
        raise UnknownNameError("model", name, [*ZOO.names(), *FAMILIES.names()])
    return ZOO.get(name)


def has_model(name: str) -> bool:
    """Whether `find_model` knows the name."""
    return name in ZOO or _find_in_family(name) is not None


def _find_in_family(name: str) -> ModelConfig | None:
    found = (family.value.find(name) for family in FAMILIES)
    return next((config for config in found if config is not None), None)


def _add(source: str, *configs: TransformerConfig) -> None:
    """Adds models to the zoo; their sizes and the source describe them."""
    for config in configs:
        sizes = f"{config.layers} layers, hidden {config.hidden}, {config.heads} heads"
        if config.num_kv_heads != config.heads:
            sizes += f" over {config.num_kv_heads}"
        if config.experts is not None:
            sizes += f", {config.experts.top_k} of {config.experts.count} experts"
            sizes += " and a shared one" if config.experts.shared_ffn else ""
        ZOO.add(config.name, config, f"{sizes} ({source})")


# --- GPT ------------------------------------------------------------------------------------------


def _gpt2(name: str, layers: int, hidden: int, heads: int) -> TransformerConfig:
    return TransformerConfig(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=50257,
        sequence_length=1024,
        dropout=0.1,
    )


def _gpt3(name: str, layers: int, hidden: int, heads: int) -> TransformerConfig:
    return replace(_gpt2(name, layers, hidden, heads), sequence_length=2048)


def _megatron(name: str, layers: int, hidden: int, heads: int) -> TransformerConfig:
    return replace(_gpt3(name, layers, hidden, heads), vocabulary=51200)


_add("DistIR", _gpt2("gpt2-xs", 4, 768, 12))
_add(
    "Radford et al. 2019",
    _gpt2("gpt2", 12, 768, 12),
    _gpt2("gpt2-medium", 24, 1024, 16),
    _gpt2("gpt2-large", 36, 1280, 20),
    _gpt2("gpt2-xl", 48, 1600, 25),
)
# Table 2.1, except where it contradicts itself: it gives 1.3B 24 heads of width 128 and a hidden
# size of 2048, and 13B a hidden size of 5140. All attention is dense here.
_add(
    "Brown et al. 2020",
    _gpt3("gpt3-125M", 12, 768, 12),
    _gpt3("gpt3-350M", 24, 1024, 16),
    _gpt3("gpt3-760M", 24, 1536, 16),
    _gpt3("gpt3-1.3B", 24, 2048, 16),
    _gpt3("gpt3-2.7B", 32, 2560, 32),
    _gpt3("gpt3-6.7B", 32, 4096, 32),
    _gpt3("gpt3-13B", 40, 5120, 40),
    _gpt3("gpt3-175B", 96, 12288, 96),
)
_add(
    "Narayanan et al. 2021, table 1",
    _megatron("megatron-1.7B", 24, 2304, 24),
    _megatron("megatron-3.6B", 30, 3072, 32),
    _megatron("megatron-7.5B", 36, 4096, 32),
    _megatron("megatron-18.4B", 40, 6144, 48),
    _megatron("megatron-39.1B", 48, 8192, 64),
    _megatron("megatron-76.1B", 60, 10240, 80),
    _megatron("megatron-145.6B", 80, 12288, 96),
    _megatron("megatron-310.1B", 96, 16384, 128),
    _megatron("megatron-529.6B", 105, 20480, 128),
    _megatron("megatron-1T", 128, 25600, 160),
)
_add("Korthikanti et al. 2022, table 3", _megatron("megatron-22B", 48, 6144, 64))

# --- LLaMA and related models ---------------------------------------------------------------------


def _llama2(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int
) -> TransformerConfig:
    return llama_config(
        name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocabulary=32000,
        sequence_length=4096,
    )


def _llama3(
    name: str, layers: int, hidden: int, heads: int, ffn: int, tied: bool = False
) -> TransformerConfig:
    return replace(
        _llama2(name, layers, hidden, heads, 8, ffn),
        vocabulary=128256,
        sequence_length=8192,
        rotary_base=500000.0,
        tied_embeddings=tied,
    )


def _qwen2(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, tied: bool = False
) -> TransformerConfig:
    return replace(
        _llama2(name, layers, hidden, heads, kv_heads, ffn),
        vocabulary=151936 if tied else 152064,
        rotary_base=1e6,
        norm_epsilon=1e-6,
        tied_embeddings=tied,
        qkv_bias=True,
    )


def _qwen3(
    name: str, layers: int, hidden: int, heads: int, ffn: int, tied: bool = False
) -> TransformerConfig:
    return replace(
        _qwen2(name, layers, hidden, heads, 8, ffn, tied),
        vocabulary=151936,
        head_dim=128,
        qkv_bias=False,
        qk_norm=True,
    )


_add(
    "Touvron et al. 2023",
    _llama2("llama2-7b", 32, 4096, 32, 32, 11008),
    _llama2("llama2-13b", 40, 5120, 40, 40, 13824),
    _llama2("llama2-70b", 80, 8192, 64, 8, 28672),
)
_add(
    "Grattafiori et al. 2024",
    _llama3("llama3-8b", 32, 4096, 32, 14336),
    _llama3("llama3-70b", 80, 8192, 64, 28672),
    _llama3("llama3-405b", 126, 16384, 128, 53248),
)
_add(
    "Meta 2024",
    _llama3("llama3.2-1b", 16, 2048, 32, 8192, tied=True),
    _llama3("llama3.2-3b", 28, 3072, 24, 8192, tied=True),
)
_add(
    "Jiang et al. 2023; v0.3, which has no sliding window",
    replace(_llama3("mistral-7b", 32, 4096, 32, 14336), vocabulary=32768, rotary_base=1e6),
)
_add(
    "Qwen Team 2024",
    _qwen2("qwen2.5-0.5b", 24, 896, 14, 2, 4864, tied=True),
    _qwen2("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, tied=True),
    _qwen2("qwen2.5-3b", 36, 2048, 16, 2, 11008, tied=True),
    _qwen2("qwen2.5-7b", 28, 3584, 28, 4, 18944),
    _qwen2("qwen2.5-14b", 48, 5120, 40, 8, 13824),
    _qwen2("qwen2.5-32b", 64, 5120, 40, 8, 27648),
    _qwen2("qwen2.5-72b", 80, 8192, 64, 8, 29568),
)
_add(
    "Qwen Team 2025",
    _qwen3("qwen3-0.6b", 28, 1024, 16, 3072, tied=True),
    _qwen3("qwen3-1.7b", 28, 2048, 16, 6144, tied=True),
    _qwen3("qwen3-4b", 36, 2560, 32, 9728, tied=True),
    _qwen3("qwen3-8b", 36, 4096, 32, 12288),
    _qwen3("qwen3-14b", 40, 5120, 40, 17408),
    _qwen3("qwen3-32b", 64, 5120, 64, 25600),
)

# --- mixtures of experts --------------------------------------------------------------------------


def _mixtral(name: str, layers: int, hidden: int, heads: int, ffn: int) -> TransformerConfig:
    return replace(
        _llama2(name, layers, hidden, heads, 8, ffn),
        rotary_base=1e6,
        experts=Experts(count=8, top_k=2, ffn=ffn),
    )


def _qwen3_moe(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int
) -> TransformerConfig:
    return replace(
        _qwen3(name, layers, hidden, heads, ffn),
        kv_heads=kv_heads,
        experts=Experts(count=128, top_k=8, ffn=ffn),
    )


def _gpt_oss(name: str, layers: int, experts: int) -> TransformerConfig:
    """Without the sinks of attention, of which every head has one, and without the limit of its
    activations."""
    return replace(
        _llama3(name, layers, 2880, 64, 2880),
        head_dim=64,
        vocabulary=201088,
        rotary_base=150_000.0,
        qkv_bias=True,
        output_bias=True,
        windows=(128, 0),
        experts=Experts(count=experts, top_k=4, ffn=2880, biases=True),
    )


def _deepseek(
    name: str, layers: int, hidden: int, heads: int, ffn: int, query_rank: int, experts: Experts
) -> TransformerConfig:
    return replace(
        _llama2(name, layers, hidden, heads, heads, ffn),
        vocabulary=102400,
        norm_epsilon=1e-6,
        latent=Latent(
            query_rank=query_rank, key_rank=512, plain_dim=128, rotary_dim=64, value_dim=128
        ),
        experts=experts,
    )


_add(
    "Jiang et al. 2024",
    _mixtral("mixtral-8x7b", 32, 4096, 32, 14336),
    _mixtral("mixtral-8x22b", 56, 6144, 48, 16384),
)
_add(
    "Qwen Team 2025",
    _qwen3_moe("qwen3-30b-a3b", 48, 2048, 32, 4, 768),
    _qwen3_moe("qwen3-235b-a22b", 94, 4096, 64, 4, 1536),
)
_add(
    "OpenAI 2025",
    _gpt_oss("gpt-oss-20b", 24, 32),
    _gpt_oss("gpt-oss-120b", 36, 128),
)
_add(
    "DeepSeek-AI 2024",
    _deepseek(
        "deepseek-v2-lite", 27, 2048, 16, 10944, 0,
        Experts(
            count=64, top_k=6, ffn=1408, normalized=False, shared_ffn=2 * 1408, dense_layers=1
        ),
    ),
    _deepseek(
        "deepseek-v2", 60, 5120, 128, 12288, 1536,
        Experts(
            count=160, top_k=6, ffn=1536, normalized=False, scale=16.0, shared_ffn=2 * 1536,
            dense_layers=1, groups=8, chosen_groups=3,
        ),
    ),
    replace(
        _deepseek(
            "deepseek-v3", 61, 7168, 128, 18432, 1536,
            Experts(
                count=256, top_k=8, ffn=2048, scoring="sigmoid", scale=2.5, corrected=True,
                shared_ffn=2048, dense_layers=3, groups=8, chosen_groups=4, group_best=2,
            ),
        ),
        vocabulary=129280,
    ),
)  # fmt: skip

# --- encoders -------------------------------------------------------------------------------------


def _bert(name: str, layers: int, hidden: int, heads: int) -> TransformerConfig:
    return bert_config(
        name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=30522,
        sequence_length=512,
    )


_add(
    "Devlin et al. 2019; uncased, with the head that predicts masked words",
    _bert("bert-base", 12, 768, 12),
    _bert("bert-large", 24, 1024, 16),
)

# --- encoder and decoder --------------------------------------------------------------------------


def _add_t5(name: str, layers: int, hidden: int, heads: int, head_dim: int, ffn: int) -> None:
    config = T5Config(
        name=name, layers=layers, hidden=hidden, heads=heads, head_dim=head_dim, ffn=ffn
    )
    sizes = f"{layers} + {layers} layers, hidden {hidden}, {heads} heads"
    ZOO.add(name, config, f"{sizes} (Raffel et al. 2020)")


_add_t5("t5-small", 6, 512, 8, 64, 2048)
_add_t5("t5-base", 12, 768, 12, 64, 3072)
_add_t5("t5-large", 24, 1024, 16, 64, 4096)
_add_t5("t5-3b", 24, 1024, 32, 128, 16384)
_add_t5("t5-11b", 24, 1024, 128, 128, 65536)

# --- vision ---------------------------------------------------------------------------------------


def _add_vit(name: str, layers: int, hidden: int, heads: int, patch: int) -> None:
    config = VisionConfig(name=name, layers=layers, hidden=hidden, heads=heads, patch=patch)
    sizes = f"{layers} layers, hidden {hidden}, {heads} heads, patches of {patch} by {patch}"
    ZOO.add(name, config, f"{sizes} (Dosovitskiy et al. 2021)")


_add_vit("vit-b", 12, 768, 12, 16)
_add_vit("vit-l", 24, 1024, 16, 16)
_add_vit("vit-h", 32, 1280, 16, 14)

# --- MLPs -----------------------------------------------------------------------------------------


def _add_mlp(name: str, layers: int, width: int) -> None:
    config = MlpConfig(name=name, layers=layers, width=width, bias=False)
    ZOO.add(name, config, f"{layers} linear layers of {width}, no bias, each with ReLU (DistIR)")


def _mlp(name: str, layers: int, width: int) -> MlpConfig:
    return MlpConfig(name=name, layers=layers, width=width)


_add_mlp("mlp-xs", 8, 512)
_add_mlp("mlp-small", 16, 8192)
_add_mlp("mlp-medium", 64, 16384)
_add_mlp("mlp-large", 96, 32768)
FAMILIES.add(
    "mlp-<layers>x<width>",
    Family(re.compile(r"mlp-(\d{1,18})x(\d{1,18})"), _mlp),
    "linear layers with bias, each with ReLU, such as mlp-16x1024",
)
