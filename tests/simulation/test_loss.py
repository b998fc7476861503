"""A loss that is spelled out on fp32 logits is a dozen passes over memory; a kernel is three; a
metric of the training batch that is a loss of its own is five."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import load_stack
from distir.errors import ClusterError


def head_seconds(spelled_out: bool = False, metrics: int = 0) -> float:
    facts = {"spells_loss_out": spelled_out, "loss_metrics": metrics}
    stack = replace(load_stack("ideal"), **facts)
    workload = Workload(model=load_model("gpt2"), batch_size=4, sequence_length=1024)
    simulator = Simulator(workload, load_cluster("dgx-a100", 1), stack)
    return simulator.simulate(Strategy()).metrics["iteration_seconds"]


def test_a_loss_that_is_spelled_out_moves_52_bytes_per_logit_instead_of_6():
    """4 · 1024 · 50257 logits: 46 bytes more each, at 2039 GB/s."""
    more = head_seconds(spelled_out=True) - head_seconds(spelled_out=False)
    assert more == pytest.approx(46 * 4 * 1024 * 50257 / 2039e9, rel=0.02)


def test_a_metric_moves_22_bytes_per_logit():
    more = head_seconds(metrics=2) - head_seconds()
    assert more == pytest.approx(2 * 22 * 4 * 1024 * 50257 / 2039e9, rel=0.02)


def test_fewer_metrics_than_none_are_refused():
    with pytest.raises(ClusterError, match="loss_metrics is -1; expected at least 0"):
        replace(load_stack("ideal"), loss_metrics=-1)
