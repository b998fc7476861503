"""Models that torchtitan 0.3 registers, and what their functions state
(torchtitan/models/*/config_registry.py)."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.launch.facts import Facts


@dataclass(frozen=True, slots=True)
class Registered:
    """A registry function: its module and name, and its defaults that are not the framework's."""

    module: str
    config: str
    local_batch: int
    sequence_length: int
    recompute: str = "alternate"
    tp: int = 1
    ep: int = 1
    schedule: str = "1F1B"
    precision: str = "bf16"
    """`fp8` where a converter makes its products those of fp8, which no option takes back."""
    compiled: bool = False
    async_tp: bool = False


REGISTERED: dict[str, Registered] = {
    "llama3-8b": Registered("llama3", "llama3_8b", 1, 8192),
    "llama3-70b": Registered("llama3", "llama3_70b", 8, 8192, "full", tp=8),
    "llama3-405b": Registered(
        "llama3", "llama3_405b", 2, 8192, "full",
        tp=8, precision="fp8", compiled=True, async_tp=True,
    ),
    "qwen3-0.6b": Registered("qwen3", "qwen3_0_6b", 4, 4096),
    "qwen3-1.7b": Registered("qwen3", "qwen3_1_7b", 4, 4096),
    "qwen3-14b": Registered("qwen3", "qwen3_14b", 4, 4096, "full"),
    "qwen3-32b": Registered("qwen3", "qwen3_32b", 2, 4096, "full"),
    "qwen3-30b-a3b": Registered("qwen3", "qwen3_30b_a3b", 2, 4096, "full"),
    "deepseek-v2-lite": Registered(
        "deepseek_v3", "deepseek_v3_16b", 4, 4096, ep=8, schedule="Interleaved1F1B"
    ),
    "deepseek-v3": Registered(
        "deepseek_v3", "deepseek_v3_671b", 4, 4096, ep=2, schedule="Interleaved1F1B"
    ),
}  # fmt: skip
"""By the zoo's name."""


def registered(facts: Facts) -> Registered | None:
    """What the registry function of a model states; None for one that is not known, or that has
    another precision than is wanted."""
    known = REGISTERED.get(facts["zoo"]) if facts["zoo"] else None
    if known is None or known.precision != "fp8":
        return known
    return known if facts.get("precision", known.precision) == known.precision else None


def model_called(module: str, config: str) -> str | None:
    """The zoo's name of a registry function."""
    found = (n for n, each in REGISTERED.items() if (each.module, each.config) == (module, config))
    return next(found, None)
