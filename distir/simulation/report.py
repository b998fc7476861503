"""From what stages take and hold to metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distir.axes.model import Axis
from distir.cost import CostModel
from distir.cost.amounts import larger
from distir.plan import Plan
from distir.simulation.ranks.one import RankSeconds
from distir.simulation.result import SECONDS_KINDS, SimulationResult, StageReport
from distir.units import format_bytes
from distir.workload import Workload


def make_result(plan: Plan, cost: CostModel, stages: Sequence[RankSeconds]) -> SimulationResult:
    """Metrics and reports of a simulated plan.

    Steps of training follow each other on every rank, whether or not the other ranks are done: the
    iteration is as long as the rank that takes longest from its own begin to its own end.
    """
    shares = _shares(plan.workload, cost, stages)
    reports: list[StageReport] = []
    for rank, (each, seconds) in enumerate(zip(stages, shares, strict=True)):
        blocks = tuple(
            (plan.stages[stage].blocks[0], plan.stages[stage].blocks[-1] + 1)
            for stage in each.stages
        )
        reports.append(StageReport(rank, blocks, seconds, dict(each.memory)))
    padding = padding_fraction(plan.workload, plan.sizes.padded)
    fullest = max(reports, key=lambda report: report.peak_memory_bytes)
    reason = _memory_reason(plan, cost, fullest)
    return SimulationResult(
        strategy=plan.strategy,
        feasible=reason is None,
        reason=reason,
        metrics=make_metrics(plan.workload, cost, plan.strategy.devices, stages, padding),
        stages=tuple(reports),
        band=cost.band,
        padding=plan.padding,
    )


def _shares(
    workload: Workload, cost: CostModel, stages: Sequence[RankSeconds]
) -> list[dict[str, float]]:
    """Per rank its shares of the iteration."""
    overhead = _overhead(workload, cost)
    longest = larger(*(stage.end - stage.begin for stage in stages))
    found: list[dict[str, float]] = []
    for each in stages:
        seconds: dict[str, float] = dict.fromkeys(SECONDS_KINDS, 0.0)
        for mesh_axis, waited in each.exposed.items():
            key = f"{mesh_axis}_communication"
            seconds[key] = seconds.get(key, 0.0) + waited
        seconds["compute"] = each.compute
        seconds["pp_communication"] += each.transfer
        seconds["bubble"] = each.bubble + longest - (each.end - each.begin)
        seconds["optimizer"] = each.optimizer
        seconds["overhead"] = overhead
        found.append(seconds)
    return found


def _overhead(workload: Workload, cost: CostModel) -> float:
    return cost.profile.iteration_overhead_seconds if workload.training else 0.0


def make_metrics(
    workload: Workload,
    cost: CostModel,
    devices: int,
    stages: Sequence[RankSeconds],
    padding: float,
) -> dict[str, float]:
    """What an iteration of these ranks means, by the names of `METRICS`. `padding`: the fraction
    of products that is made on padding."""
    shares = _shares(workload, cost, stages)
    communication = sum(
        seconds
        for each in shares
        for kind, seconds in each.items()
        if kind.endswith("_communication")
    )
    return metrics_of(
        workload,
        cost,
        devices=devices,
        iteration=larger(*(stage.end - stage.begin for stage in stages)),
        peak_memory_bytes=larger(*(sum(stage.memory.values()) for stage in stages)),
        bubble=sum(each["bubble"] for each in shares) / len(stages),
        communication=communication / len(stages),
        padding=padding,
    )


def metrics_of(
    workload: Workload,
    cost: CostModel,
    *,
    devices: Any,
    iteration: Any,
    peak_memory_bytes: Any,
    bubble: Any,
    communication: Any,
    padding: Any,
) -> dict[str, Any]:
    """Metrics of one strategy, or of many as arrays: from the seconds of an iteration without its
    fixed part, those of them that the ranks wait for each other and for messages, on average, and
    the bytes of the fullest rank."""
    iteration = iteration + _overhead(workload, cost)
    samples = workload.batch_size / iteration
    flops = model_flops(workload) / iteration / devices
    types = workload.types
    peak = cost.cluster.device.peak(types.product or types.compute.short_name)
    return {
        "iteration_seconds": iteration,
        "throughput_samples_per_second": samples,
        "tokens_per_second_per_device": samples * workload.tokens_per_sample / devices,
        "model_tflops_per_device": flops / 1e12,
        "mfu": flops / peak,
        "peak_memory_bytes": peak_memory_bytes,
        "bubble_fraction": bubble / iteration,
        "communication_fraction": communication / iteration,
        "padding_fraction": padding,
    }


def padding_fraction(workload: Workload, padded: Mapping[Axis, int]) -> float:
    """FLOPs of products on padding, as a fraction of those of the model, where these axes are as
    long."""
    if not padded:
        return 0.0
    return workload.forward_flops(padded) / workload.forward_flops_per_sample - 1.0


def model_flops(workload: Workload) -> float:
    """FLOPs of products in one iteration, as PaLM counts them (Chowdhery et al. 2022, appendix B):
    the backward pass is twice the forward one, attention is counted in full."""
    forward = workload.forward_flops_per_sample * workload.batch_size
    return forward * (3.0 if workload.training else 1.0)


def _memory_reason(plan: Plan, cost: CostModel, fullest: StageReport) -> str | None:
    """Why the plan does not fit, or None."""
    capacity = cost.cluster.device.memory_bytes
    needed = fullest.peak_memory_bytes
    if needed <= capacity:
        return None
    largest = sorted(fullest.memory.items(), key=lambda item: -item[1])
    holders = ", ".join(
        f"{kind.removesuffix('_bytes')} {format_bytes(size)}" for kind, size in largest if size
    )
    return (
        f"out of memory: stage {fullest.stage} of {plan.strategy.pp} needs {format_bytes(needed)} "
        f"of {format_bytes(capacity)} per device ({holders})"
    )
