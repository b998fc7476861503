"""Precision fp8: operands of products are cast, all else is as in bf16."""

from __future__ import annotations

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import OpClass, Work, load_profile
from distir.simulation.pricing.instructions import Pricing


def pricing(cluster: str, precision: str) -> Pricing:
    workload = Workload(model=load_model("gpt2"), batch_size=8, precision=precision)
    simulator = Simulator(workload, load_cluster(cluster), load_profile("ideal"))
    return Pricing.of(simulator.cost, simulator.plan(Strategy()))


def product(n: int) -> Work:
    return Work(OpClass.PRODUCT, 2.0 * n**3, 4.0 * n**2, 2.0 * n**2, "bf16")


def seconds(priced: Pricing, work: Work) -> float:
    return sum(float(priced.cost.kernel_seconds(each)) for each in priced._with_casts(work))


def test_a_large_product_runs_at_twice_the_rate_and_pays_for_its_casts():
    """8192^3 on an H100: 1.1e12 FLOP at what it sustains of 1979 TFLOP/s, and of two operands half
    of what is read in two bytes, for two products take it, and what is written in one: 268 MB at
    3.35 TB/s."""
    fast, slow = pricing("hgx-h100", "fp8"), pricing("hgx-h100", "bf16")
    sustained = fast.cost.cluster.device.sustained_fraction
    expected = 2 * 8192**3 / (1978.9e12 * sustained) + 4 * 8192**2 / 3.35e12
    assert seconds(fast, product(8192)) == pytest.approx(expected, rel=1e-3)
    expected = 2 * 8192**3 / (989.4e12 * sustained)
    assert seconds(slow, product(8192)) == pytest.approx(expected, rel=1e-3)


def test_other_work_is_as_in_bf16():
    for kind in (OpClass.ATTENTION, OpClass.MEMORY):
        work = Work(kind, 1e12, 1e9, 1e9, "bf16")
        assert pricing("hgx-h100", "fp8")._with_casts(work) == (work,)


def test_a_device_without_fp8_computes_in_bf16():
    assert seconds(pricing("dgx-a100", "fp8"), product(4096)) == seconds(
        pricing("dgx-a100", "bf16"), product(4096)
    )


def test_a_step_is_faster_and_keeps_in_fp8_what_products_alone_read():
    def result(precision: str):
        workload = Workload(model=load_model("gpt3-6.7B"), batch_size=8, precision=precision)
        cluster = load_cluster("hgx-h100", 8)
        return Simulator(workload, cluster).simulate(Strategy(tp=8)).metrics

    fp8, bf16 = result("fp8"), result("bf16")
    assert fp8["iteration_seconds"] < bf16["iteration_seconds"]
    # Per token and layer both norms' results in one byte less (2 h): 32 x 8 x 2048 x 2 x 4096.
    # The activation's 4 h / 8, too, and part of the embedding's and head's.
    kept = 32 * 8 * 2048 * (2 + 4 / 8) * 4096
    saved = bf16["peak_memory_bytes"] - fp8["peak_memory_bytes"]
    assert saved == pytest.approx(kept, rel=0.05)
    assert fp8["mfu"] < 2 * bf16["mfu"]
