"""What sources count as FLOPs, by published formulas, and the seconds that follow from a rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.validation.flops import counted_flops
from distir.models import TransformerConfig, find_model
from tests.validation.rows import case, reason

HARDWARE = "HARDWARE FLOPs incl. recompute (factor 96)"
MODEL = "model FLOPs, recompute not counted; full non-causal attention 12*L*h*s"
CAUSAL = "model FLOPs, recompute not counted; attention counted causal"


def gpt(layers: int, hidden: int, vocabulary: int, length: int) -> TransformerConfig:
    return TransformerConfig(
        name="gpt",
        layers=layers,
        hidden=hidden,
        heads=4,
        vocabulary=vocabulary,
        sequence_length=length,
    )


@given(st.integers(1, 9), st.integers(1, 64), st.integers(1, 10_000), st.integers(1, 4096))
def test_hardware_flops_are_those_of_narayanan(
    layers: int, quarter: int, vocabulary: int, length: int
) -> None:
    """Equation 3 of Narayanan et al. 2021, of B sequences of s tokens with full recomputation:
    96 B s l h^2 (1 + s / 6h + V / 16lh)."""
    hidden, tokens = 4 * quarter, 3 * length
    config = gpt(layers, hidden, vocabulary, length)
    share = 1 + length / (6 * hidden) + vocabulary / (16 * layers * hidden)
    assert counted_flops(config, tokens, length, causal=False, again=True) == pytest.approx(
        96 * tokens * layers * hidden**2 * share
    )


def test_causal_attention_counts_half() -> None:
    config = gpt(2, 64, 0 + 1, 128)
    whole, half = (
        counted_flops(config, 128, 128, causal=causal, again=False) for causal in (False, True)
    )
    assert whole - half == 6 * 2 * 64 * 128 * 128


def test_of_a_mixture_the_experts_that_a_token_meets_count() -> None:
    """Of DeepSeek-V3's parameters 37 billion are met by a token (DeepSeek-AI 2024), among them the
    table of embeddings, which is no product."""
    config = find_model("deepseek-v3")
    assert isinstance(config, TransformerConfig)
    flops = counted_flops(config, 1, 0, causal=False, again=False)
    table = config.hidden * config.vocabulary
    assert flops / 6 + table == pytest.approx(37e9, rel=0.02)


def test_a_rate_alone_gives_the_seconds() -> None:
    rate = {"iteration_time_s": "", "tflops_per_gpu": "100"}
    flops = {
        name: case(**rate, tflops_def=text, recompute=recompute).measured.seconds
        for name, text, recompute in (
            ("model", MODEL, "none"),
            ("recomputed model", MODEL, "full"),
            ("causal", CAUSAL, "none"),
            ("hardware", HARDWARE, "full"),
            ("hardware, nothing recomputed", HARDWARE, "none"),
        )
    }
    model = flops["model"]
    assert model is not None
    expected = counted_flops(case().model.config, 32 * 128, 128, causal=False, again=False) / (
        100e12 * 16
    )
    assert model == pytest.approx(expected)
    assert flops["recomputed model"] == flops["hardware, nothing recomputed"] == model
    assert flops["causal"] < model < flops["hardware"]  # type: ignore[operator]


def test_a_rate_that_says_not_what_it_counts_is_none() -> None:
    rate = {"iteration_time_s": "", "tflops_per_gpu": "100"}
    assert reason(**rate) == "what TFLOP/s count is not stated"
    assert reason(**rate, tflops_def="by hand") == "tflops_def is not understood"
    assert case(tflops_per_gpu="100", tflops_def="by hand").measured.seconds == 0.5
    memory = {**rate, "peak_memory_gb": "20", "mem_unit": "GiB"}
    assert case(**memory, tflops_def="by hand").measured.seconds is None
    assert case(**memory, tflops_def=MODEL).measured.seconds == (
        case(**rate, tflops_def=MODEL).measured.seconds
    )
    assert reason(iteration_time_s="") == "nothing measured"
