"""Seconds of rows that state a rate of FLOPs alone: what the source counts as FLOPs, over its rate.

Sources count by closed formulas (Narayanan et al. 2021, equation 3 and appendix; Korthikanti et al.
2022, appendix A): products with parameters, two FLOPs each, and the two products of attention, once
in the forward pass and twice in the backward pass. *Model* FLOPs are those; *hardware* FLOPs have
the forward pass of layers a second time where it is run again. All of attention counts, unless a
source says that it counts what is unmasked alone.
"""

from __future__ import annotations

from autotune.validation.rows import MeasuredRow, UnusableRowError
from autotune.validation.words import meaning_of
from distir.models.transformer import TransformerConfig

__all__ = ["counted_flops", "parameters_of", "seconds_of_rate"]

TERA = 1e12


def seconds_of_rate(
    row: MeasuredRow, config: TransformerConfig, batch: int, length: int, recompute: str
) -> float | None:
    """Seconds of an iteration by `tflops_per_gpu`, or None where that is blank. Raises
    `UnusableRowError` if the row does not say what it counts."""
    rate = row.number_of("tflops_per_gpu")
    if rate is None:
        return None
    counts = meaning_of(row, "tflops_def")
    if counts is None:
        raise UnusableRowError("what TFLOP/s count is not stated")
    again = bool(counts.values["recomputation"]) and recompute in ("full", "needed")
    causal = bool(counts.values["causal"])
    seen = length if counts.values.get("attention", 1) else 0
    flops = counted_flops(config, batch * length, seen, causal=causal, again=again)
    return flops / (rate * TERA * row.needed("num_gpus"))


def counted_flops(
    config: TransformerConfig, tokens: int, length: int, *, causal: bool, again: bool
) -> float:
    """FLOPs of a training step over `tokens`, in sequences of `length`, as sources count them; with
    a length of 0 without attention.
    `causal`: of attention what is unmasked alone; `again`: layers run forward twice."""
    head = config.hidden * config.vocabulary
    attention = config.layers * config.heads * config.depth * length / (2 if causal else 1)
    layers = sum(_layer_parameters(config, layer) for layer in range(config.layers))
    passes = 4 if again else 3
    return tokens * (passes * (2 * layers + 4 * attention) + 3 * 2 * head)


def parameters_of(config: TransformerConfig) -> int:
    """Parameters of products and tables: all experts count, of a tied head nothing does."""
    tables = (1 if config.tied_embeddings else 2) * config.hidden * config.vocabulary
    return tables + sum(
        _layer_parameters(config, layer, every_expert=True) for layer in range(config.layers)
    )


def _layer_parameters(config: TransformerConfig, layer: int, every_expert: bool = False) -> int:
    """Parameters of a layer that one token is multiplied with, or all that there are."""
    matrices = 3 if config.gated else 2
    if config.latent is None:
        own = config.heads + config.num_kv_heads
        projections = 2 * config.hidden * own * config.depth
    else:
        latent = config.latent
        wide = latent.plain_dim + latent.rotary_dim
        queries = (
            latent.query_rank * (config.hidden + config.heads * wide)
            if latent.query_rank
            else config.hidden * config.heads * wide
        )
        keys = config.hidden * (latent.key_rank + latent.rotary_dim)
        values = latent.key_rank * config.heads * (latent.plain_dim + latent.value_dim)
        projections = queries + keys + values + config.heads * latent.value_dim * config.hidden
    experts = config.experts
    if experts is None or not experts.are_in(layer):
        return projections + matrices * config.hidden * config.ffn_width
    width = (experts.count if every_expert else experts.top_k) * experts.ffn + experts.shared_ffn
    return projections + config.hidden * (matrices * width + experts.count)
