"""Kinds of program are cut into stages together as each of them is cut alone."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model

KINDS = [
    [
        Strategy(dp=4, pp=2, zero=zero, recompute=recompute, microbatches=8, schedule=schedule)
        for schedule in ("gpipe", "1f1b", "zb-h1")
    ]
    for zero, recompute in product((0, 2), ("none", "selective", "full"))
]


@pytest.mark.parametrize("batch_size", [64, 4096])
@pytest.mark.parametrize("model", ["gpt2", "t5-small"])
def test_kinds_are_cut_together_as_alone(model: str, batch_size: int) -> None:
    workload = Workload(model=load_model(model), batch_size=batch_size)
    cluster = load_cluster("dgx-a100", 8)
    together = Simulator(workload, cluster).simulate_many([own for kind in KINDS for own in kind])
    alone = [Simulator(workload, cluster).simulate_many(kind) for kind in KINDS]
    assert not together.invalid
    for name, values in together.metrics.items():
        apart = np.concatenate([each.metrics[name] for each in alone])
        np.testing.assert_allclose(values, apart, rtol=1e-12)
