"""Published bubbles and memory of schedules, through the whole simulator: `p` ranks of equal
blocks, `m` microbatches, `v` chunks, links that are free. Stages hold equally many layers, as in
the papers: the cuts of distir are uneven where that makes a short iteration shorter.

In an MLP of square layers the forward pass, the input part and the weight part of the backward pass
are one product each, so `f = b = w`. What is left over are biases, and the first layer, whose input
needs no gradient.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from distir import SimulationResult, Simulator, Strategy, load_cluster
from distir.cost.cluster import Senders
from tests.golden.test_pipeline import simulator

P, M, V = 4, 16, 2

CHUNKS = {"interleaved": V, "breadth-first": V, "zb-v": V}


def strategy(schedule: str) -> Strategy:
    return Strategy(pp=P, microbatches=M, schedule=schedule, chunks=CHUNKS.get(schedule, 1))


def evenly_cut(each: Simulator, chosen: Strategy) -> SimulationResult:
    """The result of stages with equally many layers; what is beside the layers, if there are not as
    many blocks, is on the first and on the last stage."""
    blocks, stages = each.workload.num_blocks, chosen.stages
    beside, layers = (blocks % stages) // 2, blocks // stages
    cut = [beside + layers * stage for stage in range(1, stages)]
    return each.simulate_plan(each.planner.plan(chosen, cut))


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
def test_bubbles_are_the_published_ones(schedule: str) -> None:
    each = simulator("mlp-64x8192", P, batch_size=3000 * M, optimizer="sgd")
    found = evenly_cut(each, strategy(schedule)).metrics["bubble_fraction"]
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
def test_activations_are_the_published_multiples_of_those_of_1f1b(schedule: str) -> None:
    """Between B and W a layer of a transformer holds about as much as before: gradients of what its
    products made instead of what only B reads."""
    each = simulator("gpt3-1.3B", P, batch_size=2 * M, optimizer="sgd")
    ours, plain = (
        evenly_cut(each, strategy(name)).stages[0].memory["activations_bytes"]
        for name in (schedule, "1f1b")
    )
    assert ours / plain == pytest.approx(MEMORY[schedule], rel=0.1)


def test_chimera_halves_the_bubble_and_keeps_two_copies() -> None:
    """`p - 2` slots of backward passes with `p` microbatches (Li and Hoefler 2021, table 2), where
    1F1B has `p - 1` of both; parameters twice, and their gradients are all-reduced between the
    copies."""
    each = simulator("mlp-64x8192", P, batch_size=3000 * P, optimizer="sgd")
    plain, ours = (
        evenly_cut(each, Strategy(pp=P, microbatches=P, schedule=name))
        for name in ("1f1b", "chimera")
    )
    assert plain.metrics["bubble_fraction"] == pytest.approx((P - 1) / (2 * P - 1), abs=0.01)
    idle = (P - 2) * 2 / 3
    assert ours.metrics["bubble_fraction"] == pytest.approx(idle / (P + idle), abs=0.01)
    for rank in range(P):
        mirror = plain.stages[P - 1 - rank].memory["parameters_bytes"]
        own = plain.stages[rank].memory["parameters_bytes"]
        assert ours.stages[rank].memory["parameters_bytes"] == own + mirror


def test_chimera_balances_activations() -> None:
    """Between `p/2 + 1` and `p` microbatches on every rank, most in the middle."""
    each = simulator("mlp-64x8192", P, batch_size=3000 * M, optimizer="sgd")
    plain, ours = (
        [stage.memory["activations_bytes"] for stage in evenly_cut(each, strategy(name)).stages]
        for name in ("1f1b", "chimera")
    )
    assert max(ours) == ours[1] == pytest.approx(max(plain), rel=0.1)
    assert min(ours) == pytest.approx(max(plain) * (P / 2 + 1) / P, rel=0.1)


def test_tied_gradients_of_uneven_ranks_cross_what_lies_between_them() -> None:
    """Devices 0, 1 and 4 in nodes of two: two of three messages leave their node."""
    cluster = load_cluster("dgx-a100", 6)
    levels = (replace(cluster.levels[0], size=2), *cluster.levels[1:])
    found = replace(cluster, levels=levels).group_across(tuple(Senders(at, 1) for at in (0, 1, 4)))
    assert found.size == 3
    assert found.fan_out[0] == 2
    assert found.fan_out[1] == 2


def test_tied_embeddings_are_held_once_where_both_stages_are_on_one_rank() -> None:
    """GPT-2 in two chunks: with ZB-V the first and the last stage are on the first rank, with
    interleaving they are apart and each has a copy."""
    each = simulator("gpt2", 2, batch_size=8, sequence_length=128)
    together, apart = (
        each.simulate(Strategy(pp=2, chunks=2, microbatches=4, schedule=name))
        for name in ("zb-v", "interleaved")
    )
    embedding = 50257 * 768
    for kind, size in (("parameters_bytes", 2), ("optimizer_bytes", 12)):
        more = [sum(stage.memory[kind] for stage in found.stages) for found in (apart, together)]
        assert more[0] - more[1] == embedding * size
