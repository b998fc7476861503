"""Blocks for which strategies choose alike have one program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model

PLAIN = Strategy(tp=4)


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    return Simulator(Workload(model=load_model("gpt2"), batch_size=8), load_cluster("dgx-a100", 4))


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("sequence", [False, True])
def test_only_layers_have_other_programs_where_layers_recompute(
    simulator: Simulator, recompute: str, sequence: bool
) -> None:
    kept = replace(PLAIN, sequence_parallel=sequence)
    planner = simulator.planner
    both = zip(
        planner.block_programs(kept),
        planner.block_programs(replace(kept, recompute=recompute)),
        strict=True,
    )
    layers = planner.program.layers
    assert all((own is other) == (at not in layers) for at, (own, other) in enumerate(both))


def test_gathered_activations_stay_only_where_some_are_gathered(simulator: Simulator) -> None:
    def programs(sequence: bool, kept: str) -> tuple[object, ...]:
        strategy = replace(PLAIN, sequence_parallel=sequence, keep_gathered=kept)
        return simulator.planner.block_programs(strategy)

    assert programs(False, "none") == programs(False, "activations")
    assert programs(True, "none") != programs(True, "activations")
