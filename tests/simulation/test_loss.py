"""A loss that is spelled out on fp32 logits is a dozen passes over memory; a kernel is three; a
metric of the training batch that is a loss of its own is five."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model, simulate
from distir.cost import load_stack
from distir.errors import ClusterError, TransformError
from distir.ir import Builder, DType, Function
from distir.ops.linalg import MatMul
from distir.plan_text import format_plan, parse_plan
from tests.laws.test_engines_agree import check


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


def integers(batch_size: int) -> Function:
    """Integers times weights, which are integers."""
    builder = Builder("integers")
    x = builder.input("x", (batch_size, 8), DType.INT64)
    return builder.build([builder.add(MatMul(), x, builder.parameter("w", (8, 8)))])


def test_what_has_no_derivative_is_not_said_to_be_trained():
    cluster = load_cluster("dgx-a100", 2)
    model = load_model(integers)
    assert simulate(model, Strategy(dp=2), cluster, batch_size=4, mode="inference").feasible
    with pytest.raises(TransformError, match=r"first output is .*i64.*choose --mode inference"):
        simulate(model, Strategy(dp=2), cluster, batch_size=4)


# --- published pairs ------------------------------------------------------------------------------

COMPILED, EAGER = 6667, 5762
"""Tokens per second and GPU of Llama 3.1 8B on 8 H100 with HBM2e (2.4 TB/s), FSDP, 2 sequences of
8,192 tokens per GPU, selective checkpoints, with torch.compile and without (pytorch/torchtitan,
benchmarks/llama3_h100_202412_torchtitan.md, table 1)."""


@pytest.mark.slow(seconds=3)
def test_eager_pytorch_is_as_much_slower_than_compiled_as_published() -> None:
    cluster = load_cluster("hgx-h100", 8)
    device = replace(cluster.device, memory_bandwidth_bytes_per_second=2.4e12)
    workload = Workload(model=load_model("llama3-8b"), batch_size=16, sequence_length=8192)
    strategy = Strategy(dp=8, zero=3, recompute="alternate")

    def seconds(stack: str) -> float:
        simulator = Simulator(workload, cluster.with_device(device), load_stack(stack))
        return simulator.simulate(strategy).metrics["iteration_seconds"]

    ratio = seconds("fsdp-compiled") / seconds("fsdp-eager")
    assert ratio == pytest.approx(EAGER / COMPILED, rel=0.05)


def test_a_norm_that_is_spelled_out_moves_120_bytes_per_element_and_not_a_layer_norm() -> None:
    """Of RMS norms of 16-bit values: 36 bytes forward, 76 for the operand's gradient, and 8 for the
    scale's, where kernels move 4, 6 and 4."""

    def more(model: str) -> float:
        workload = Workload(model=load_model(model), batch_size=1, sequence_length=1024)
        cluster = load_cluster("hgx-h100", 1)
        found = [
            Simulator(workload, cluster, replace(load_stack("ideal"), spells_norms_out=spelled))
            for spelled in (True, False)
        ]
        first, second = (each.simulate(Strategy()).metrics["iteration_seconds"] for each in found)
        return first - second

    norms, hidden = 2 * 16 + 1, 2048
    bytes_more = (36 - 4) + (76 - 6) + (8 - 4)
    assert more("gpt2") == 0.0
    assert more("llama3.2-1b") == pytest.approx(
        norms * 1024 * hidden * bytes_more / 3.35e12, rel=0.02
    )


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [1, 2])
def test_copies_of_logits_are_in_memory_where_the_head_is(tp: int) -> None:
    """Of 4 · 1024 · 50257 logits, split by tp and padded, three copies of 4 bytes; the last of two
    stages has them."""
    workload = Workload(model=load_model("gpt2"), batch_size=4, sequence_length=1024)
    strategy = Strategy(tp=tp, pp=2, microbatches=1)
    peaks = [
        [stage.memory for stage in simulator.simulate(strategy).stages]
        for copies in (0, 3)
        for simulator in [
            Simulator(
                workload,
                load_cluster("dgx-a100", 2 * tp),
                replace(load_stack("ideal"), loss_copies=copies),
            )
        ]
    ]
    first, last = (
        sum(peaks[1][stage].values()) - sum(peaks[0][stage].values()) for stage in (0, 1)
    )
    logits = 4 * 1024 * 50258 / tp if tp > 1 else 4 * 1024 * 50257
    assert first == 0
    assert 0.6 * 12 * logits <= last <= 12.01 * logits


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_copies_of_logits_are_counted_alike_by_both_engines(schedule: str) -> None:
    workload = Workload(model=load_model("gpt2"), batch_size=4, sequence_length=64)
    stack = replace(load_stack("ideal"), loss_copies=3)
    simulator = Simulator(workload, load_cluster("dgx-a100", 4), stack)
    strategies = [
        Strategy(tp=2, pp=2, microbatches=4, schedule=schedule),
        Strategy(dp=2, pp=2, microbatches=2, schedule=schedule),
    ]
    together = simulator.simulate_many(strategies).metrics["peak_memory_bytes"]
    for strategy, peak in zip(strategies, together, strict=True):
        fast, _ = check(simulator, simulator.plan(strategy))
        assert fast.metrics["peak_memory_bytes"] == float(peak)


def test_a_plan_with_copies_of_logits_is_read_back_from_its_text() -> None:
    workload = Workload(model=load_model("gpt2"), batch_size=4, sequence_length=64)
    stack = replace(load_stack("ideal"), loss_copies=2)
    simulator = Simulator(workload, load_cluster("dgx-a100", 2), stack)
    for strategy in (Strategy(dp=2), Strategy(tp=2)):
        text = format_plan(simulator.plan(strategy))
        assert "copies=2" in text
        assert format_plan(parse_plan(text)) == text
