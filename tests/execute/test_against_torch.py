"""PyTorch's autograd as a second witness: loss and all gradients of the same small models.

Optional: PyTorch is no dependency; without it the tests are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from distir.execute.sequential import evaluate, with_gradients
from distir.models.layers import AttentionKind
from distir.models.transformer import TransformerConfig, llama_config
from distir.program import build_program

torch = pytest.importorskip("torch", reason="needs PyTorch, an optional second witness")

BATCH, TOKENS = 3, 7
GPT = TransformerConfig(
    name="tiny", layers=2, hidden=16, heads=4, vocabulary=29, sequence_length=TOKENS
)
LLAMA = llama_config(
    "tiny-llama", layers=2, hidden=16, heads=4, kv_heads=2, ffn=24, vocabulary=29,
    sequence_length=TOKENS,
)  # fmt: skip


def attention(query: Any, key: Any, value: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def heads_of(x: Any, heads: int) -> Any:
    return x.reshape(BATCH, TOKENS, heads, -1).transpose(1, 2)


def gpt_logits(p: dict[str, Any], ids: Any) -> Any:
    norm = torch.nn.functional.layer_norm
    x = p["embedding.token.weight"][ids] + p["embedding.position.weight"][:TOKENS]
    for layer in (f"layers.{i}." for i in range(GPT.layers)):

        def named(name: str, layer: str = layer) -> Any:
            return p[layer + name]

        n = norm(x, (16,), named("attention_norm.weight"), named("attention_norm.bias"))
        qkv = n @ named("attention.qkv.weight") + named("attention.qkv.bias")
        mixed = attention(*(heads_of(part, GPT.heads) for part in qkv.chunk(3, dim=-1)))
        mixed = mixed.transpose(1, 2).reshape(BATCH, TOKENS, 16)
        x = x + mixed @ named("attention.output.weight") + named("attention.output.bias")
        n = norm(x, (16,), named("ffn_norm.weight"), named("ffn_norm.bias"))
        up = n @ named("ffn.up.weight") + named("ffn.up.bias")
        up = torch.nn.functional.gelu(up, approximate="tanh")
        x = x + up @ named("ffn.down.weight") + named("ffn.down.bias")
    x = norm(x, (16,), p["norm.weight"], p["norm.bias"])
    return x @ p["embedding.token.weight"].T


def llama_logits(p: dict[str, Any], ids: Any) -> Any:
    def norm(x: Any, weight: Any) -> Any:
        return torch.nn.functional.rms_norm(x, (16,), weight, LLAMA.norm_epsilon)

    depth = 4
    rates = LLAMA.rotary_base ** (-torch.arange(0, depth, 2, dtype=torch.float64) / depth)
    angles = torch.arange(TOKENS, dtype=torch.float64)[:, None] * rates
    angles = torch.cat([angles, angles], dim=-1)

    def rotated(x: Any) -> Any:
        low, high = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-high, low], dim=-1) * angles.sin()

    x = p["embedding.token.weight"][ids]
    for layer in (f"layers.{i}." for i in range(LLAMA.layers)):

        def named(name: str, layer: str = layer) -> Any:
            return p[layer + name]

        n = norm(x, named("attention_norm.weight"))
        query = rotated(heads_of(n @ named("attention.query.weight"), 4))
        key = rotated(heads_of(n @ named("attention.key.weight"), 2)).repeat_interleave(2, 1)
        value = heads_of(n @ named("attention.value.weight"), 2).repeat_interleave(2, 1)
        mixed = attention(query, key, value).transpose(1, 2).reshape(BATCH, TOKENS, 16)
        x = x + mixed @ named("attention.output.weight")
        n = norm(x, named("ffn_norm.weight"))
        gate = torch.nn.functional.silu(n @ named("ffn.gate.weight"))
        x = x + (gate * (n @ named("ffn.up.weight"))) @ named("ffn.down.weight")
    return norm(x, p["norm.weight"]) @ p["head.weight"]


@pytest.mark.parametrize("kind", ["fused", "eager"])
@pytest.mark.parametrize(("config", "logits"), [(GPT, gpt_logits), (LLAMA, llama_logits)])
def test_loss_and_gradients_are_those_of_autograd(
    config: TransformerConfig, logits: Callable[[dict[str, Any], Any], Any], kind: AttentionKind
) -> None:
    program = build_program(config.build(BATCH, TOKENS, kind), training=True)
    function, gradients = with_gradients(program.function)
    rng = np.random.default_rng(0)
    parameters = {v: 0.3 * rng.normal(size=v.type.shape) for v in function.parameters}
    inputs = {v: rng.integers(0, config.vocabulary, v.type.shape) for v in program.function.inputs}
    seeds = {v: np.ones(v.type.shape) for v in function.inputs if v not in inputs}
    arrays = evaluate(function, {**inputs, **seeds}, parameters)
    ours = dict(zip(function.outputs, arrays, strict=True))

    ids, labels = (torch.from_numpy(array) for array in inputs.values())
    theirs = {v.name: torch.from_numpy(a).requires_grad_() for v, a in parameters.items()}
    loss = torch.nn.functional.cross_entropy(
        logits(theirs, ids).reshape(-1, config.vocabulary), labels.reshape(-1)
    )
    loss.backward()
    (total,) = program.function.outputs
    assert float(ours[total]) == pytest.approx(loss.item(), rel=1e-12)
    for value, gradient in gradients.items():
        expected = theirs[value.name].grad.numpy()
        np.testing.assert_allclose(ours[gradient], expected, rtol=1e-9, atol=1e-12)
