"""A loss that is spelled out on fp32 logits is a dozen passes over memory; a kernel is three."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import load_profile


def head_seconds(spelled_out: bool) -> float:
    profile = replace(load_profile("ideal"), spells_loss_out=spelled_out)
    workload = Workload(model=load_model("gpt2"), batch_size=4, sequence_length=1024)
    simulator = Simulator(workload, load_cluster("dgx-a100", 1), profile)
    return simulator.simulate(Strategy()).metrics["iteration_seconds"]


def test_52_bytes_per_logit_instead_of_6():
    """4 · 1024 · 50257 logits: 46 bytes more each, at 2039 GB/s."""
    more = head_seconds(spelled_out=True) - head_seconds(spelled_out=False)
    assert more == pytest.approx(46 * 4 * 1024 * 50257 / 2039e9, rel=0.02)
