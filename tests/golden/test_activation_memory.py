"""Activation memory of a transformer layer against the published closed forms.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), table
2: bytes per layer with half-precision activations, for s tokens, b samples, hidden size h, a heads
and t-way tensor parallelism. The layer has dropout and its attention is spelled out. None of this
is a formula in the code: the bytes follow from what the backward pass reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from distir.importers.load import LoadedModel, load_source
from distir.importers.probe import build_at_probe_sizes
from distir.ir.function import Function
from distir.models.transformer import TransformerConfig
from distir.models.zoo import find_model
from distir.ops.collective import AllToAll
from distir.plan import Planner
from distir.simulation.pricing.liveness import storages
from distir.strategy import Strategy
from distir.workload import Workload

SAMPLES, TOKENS, TENSOR = 4, 1024, 4


@pytest.fixture(scope="module")
def config() -> TransformerConfig:
    found = find_model("gpt2-medium")
    assert isinstance(found, TransformerConfig)
    return replace(found, dropout=0.1)


@pytest.fixture(scope="module")
def planner(config: TransformerConfig) -> Planner:
    def build(batch_size: int, sequence_length: int) -> Function:
        return config.build(batch_size, sequence_length, "eager")

    model = LoadedModel("gpt2-medium with dropout", build_at_probe_sizes(build, config.longest))
    return Planner(Workload(model=model, batch_size=SAMPLES, sequence_length=TOKENS))


def saved_bytes_per_layer(planner: Planner, strategy: Strategy, layer: int = 3) -> int:
    """What an inner layer keeps for its backward pass, each piece of memory once."""
    program = planner.block_programs(strategy)[layer]
    roots = storages(program.forward, {})
    kept: set[Any] = {roots.get(value, value) for value in program.saved}
    return sum(value.type.size_bytes for value in kept)


Formula = Callable[[int, int, int, int], float]
"""Of attention heads `a`, tokens `s`, hidden size `h` and tensor-parallel degree `t`."""

UNSHARDED: Formula = lambda a, s, h, t: 34 + 5 * a * s / h  # noqa: E731
TENSOR_PARALLEL: Formula = lambda a, s, h, t: 10 + 24 / t + 5 * a * s / (h * t)  # noqa: E731
SEQUENCE_PARALLEL: Formula = lambda a, s, h, t: (34 + 5 * a * s / h) / t  # noqa: E731
SELECTIVE: Formula = lambda a, s, h, t: 34 / t  # noqa: E731
FULL: Formula = lambda a, s, h, t: 2  # noqa: E731


@pytest.mark.parametrize(
    ("strategy", "formula"),
    [
        (Strategy(), UNSHARDED),
        (Strategy(tp=TENSOR), TENSOR_PARALLEL),
        (Strategy(tp=TENSOR, sequence_parallel=True), SEQUENCE_PARALLEL),
        (Strategy(tp=TENSOR, sequence_parallel=True, recompute="selective"), SELECTIVE),
        (Strategy(recompute="full"), FULL),
    ],
    ids=["unsharded", "tensor", "sequence", "selective", "full"],
)
def test_a_layer_keeps_what_the_paper_says(
    planner: Planner,
    config: TransformerConfig,
    strategy: Strategy,
    formula: Formula,
) -> None:
    expected = formula(config.heads, TOKENS, config.hidden, TENSOR)
    unit = TOKENS * SAMPLES * config.hidden
    assert saved_bytes_per_layer(planner, strategy) == expected * unit


def test_every_other_layer_is_recomputed(planner: Planner) -> None:
    kept = [
        saved_bytes_per_layer(planner, Strategy(recompute="full", recompute_every=2), layer)
        for layer in (3, 4, 5, 6)
    ]
    full = saved_bytes_per_layer(planner, Strategy(recompute="full"))
    everything = saved_bytes_per_layer(planner, Strategy())
    assert kept == [full, everything, full, everything]


def test_gathered_activations_that_are_kept_rest_whole(
    planner: Planner, config: TransformerConfig
) -> None:
    """The inputs of the two first products rest gathered, 2sbh each, instead of in t parts."""
    split = Strategy(tp=TENSOR, sequence_parallel=True)
    kept = replace(split, keep_gathered="activations")
    more = saved_bytes_per_layer(planner, kept) - saved_bytes_per_layer(planner, split)
    unit = TOKENS * SAMPLES * config.hidden
    assert more == 2 * 2 * unit * (1 - 1 / TENSOR)


def test_selective_saves_memory_where_attention_is_fused() -> None:
    """What norms, dropout and the activation function make is computed again."""
    planner = Planner(Workload(model=load_source("gpt2"), batch_size=SAMPLES))
    selective = saved_bytes_per_layer(planner, Strategy(recompute="selective"))
    assert selective < 0.7 * saved_bytes_per_layer(planner, Strategy())


def test_selective_keeps_a_byte_of_what_dropout_dropped() -> None:
    """Per token and element of the width: the input, queries, keys and values, what attention makes
    and its projection, and the inner product, 2 bytes each, of 1, 3, 1, 1 and 4 widths; a byte for
    the mask of the last dropout. All else is made again of these."""
    planner = Planner(Workload(model=load_source("gpt2"), batch_size=SAMPLES))
    kept = saved_bytes_per_layer(planner, Strategy(recompute="selective"))
    assert kept / (SAMPLES * TOKENS * 768) == 2 * (1 + 3 + 1 + 1 + 4) + 1


def test_selective_recomputation_keeps_latents_and_exchanged_tokens() -> None:
    """Per token and layer, as DeepSeek-V3 keeps (DeepSeek-AI 2024, section 3.2.3): norms, the
    products that expand latents, and gated activations are made again. What has been exchanged is
    not exchanged once more: the tokens of 8 experts are kept."""
    model = load_source("deepseek-v3")
    planner = Planner(Workload(model=model, batch_size=64, sequence_length=TOKENS))
    strategy = Strategy(dp=64, ep=64, recompute="selective")
    program = planner.block_programs(strategy)[10]
    exchanges = [node for node in program.backward if isinstance(node.op, AllToAll)]
    assert len(exchanges) == 3
    kept = saved_bytes_per_layer(planner, strategy, 10) / TOKENS
    latents, heads, gates = 1536 + 512 + 64, 128 * 128, 2 * (8 + 1) * 2048
    expected = 2 * (2 * 7168 + latents + heads + gates + 8 * 7168)
    assert kept == pytest.approx(expected, rel=0.01)


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load_source("llama2-7b")


def llama_bytes_per_token(model: LoadedModel, *, fuse: bool, recompute: str = "none") -> float:
    """What an inner layer of LLaMA keeps per token, in units of its width, with bf16."""
    planner = Planner(Workload(model=model, batch_size=1, sequence_length=TOKENS), fuse=fuse)
    kept = saved_bytes_per_layer(planner, Strategy(recompute=recompute))
    return kept / TOKENS / 4096


def test_a_fused_gate_keeps_what_goes_in(llama: LoadedModel) -> None:
    """Two inputs of norms and their results, queries, keys, values, what attention makes: 16 bytes
    per element of the width; and of the inner width, 11008 / 4096 of it, the gate, what it lets
    through and the product of both, 2 bytes each. Without fusion also the gate's activation. Norms
    keep a number per row beside."""
    inner = 11008 / 4096
    fused = 8 * 2 + 3 * 2 * inner
    assert llama_bytes_per_token(llama, fuse=True) == pytest.approx(fused, rel=1e-3)
    apart = 8 * 2 + 4 * 2 * inner
    assert llama_bytes_per_token(llama, fuse=False) == pytest.approx(apart, rel=1e-3)


def test_every_other_product_is_run_again(llama: LoadedModel) -> None:
    """The layer's input, what attention makes, and of the seven products with a weight the first
    (queries), third (values), and fifth (the gate); the seventh is the next layer's input."""
    kept = 2 + 2 + 2 + 2 + 2 * 11008 / 4096
    assert llama_bytes_per_token(llama, fuse=True, recompute="alternate") == pytest.approx(
        kept, rel=1e-2
    )
