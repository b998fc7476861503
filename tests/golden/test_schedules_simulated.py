"""Published bubbles and memory of schedules, through the whole simulator: `p` ranks of equal
blocks, `m` microbatches, `v` chunks, links that are free.

In an MLP of square layers the forward pass, the input part and the weight part of the backward pass
are one product each, so `f = b = w`. What is left over are biases, and the first layer, whose input
needs no gradient.
"""

from __future__ import annotations

import pytest

from distir import Strategy
from tests.golden.test_pipeline import simulator

P, M, V = 4, 16, 2

CHUNKS = {"interleaved": V, "breadth-first": V, "zb-v": V}


def strategy(schedule: str) -> Strategy:
    return Strategy(pp=P, microbatches=M, schedule=schedule, chunks=CHUNKS.get(schedule, 1))


BUBBLES = {
    "gpipe": P - 1,
    "1f1b": P - 1,
    "interleaved": (P - 1) / V,  # Narayanan et al. 2021
    "breadth-first": (P - 1) / V,  # Lamy-Poirier 2023
    "zb-h1": (P - 1) / 3,  # (p - 1)(f + b - w), of f + b + w; Qi et al. 2023, table 2
    "zb-h2": 0,  # (p - 1)(f + b - 2w)
    "zb-v": 0,
}
"""Idle time of every rank, in microbatches (forward and backward)."""


@pytest.mark.parametrize("schedule", BUBBLES)
def test_bubbles(schedule: str) -> None:
    each = simulator("mlp-64x8192", P, batch_size=3000 * M, optimizer="sgd")
    found = each.simulate(strategy(schedule)).metrics["bubble_fraction"]
    bubble = BUBBLES[schedule]
    assert found == pytest.approx(bubble / (M + bubble), abs=0.011)


MEMORY = {
    "gpipe": M / P,
    "interleaved": 1 + (P - 1) / (P * V),  # Narayanan et al. 2021
    "breadth-first": M / P,
    "zb-h1": 1,
    "zb-h2": (2 * P - 1) / P,
    "zb-v": 1,
}
"""Activations on the first rank, relative to 1F1B (Qi et al. 2023, table 2)."""


@pytest.mark.parametrize("schedule", MEMORY)
def test_activations_relative_to_1f1b(schedule: str) -> None:
    """Between B and W a layer of a transformer holds about as much as before: gradients of what its
    products made instead of what only B reads."""
    each = simulator("gpt3-1.3B", P, batch_size=2 * M, optimizer="sgd")
    ours, plain = (
        each.simulate(strategy(name)).stages[0].memory["activations_bytes"]
        for name in (schedule, "1f1b")
    )
    assert ours / plain == pytest.approx(MEMORY[schedule], rel=0.1)
