"""From what stages take and hold to metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distir.cost import CostModel
from distir.plan import Plan
from distir.simulation.result import SECONDS_KINDS, SimulationResult, StageReport
from distir.units import format_bytes


@dataclass(frozen=True, slots=True)
class RankSeconds:
    """One pipeline rank in an iteration, with the stages it holds. `begin` and `end` are when its
    iteration begins and when it is done; the others may have begun before, and may go on."""

    stages: tuple[int, ...]
    compute: float
    exposed: Mapping[str, float]
    transfer: float
    bubble: float
    optimizer: float
    begin: float
    end: float
    memory: Mapping[str, float]


def make_result(plan: Plan, cost: CostModel, stages: Sequence[RankSeconds]) -> SimulationResult:
    """Metrics and reports of a simulated plan.

    Steps of training follow each other on every rank, whether or not the other ranks are done: the
    iteration is as long as the rank that takes longest from its own begin to its own end.
    """
    workload = plan.workload
    overhead = cost.profile.iteration_overhead_seconds if workload.training else 0.0
    longest = max(stage.end - stage.begin for stage in stages)
    iteration = longest + overhead
    reports: list[StageReport] = []
    for rank, each in enumerate(stages):
        seconds: dict[str, float] = dict.fromkeys(SECONDS_KINDS, 0.0)
        for mesh_axis, waited in each.exposed.items():
            key = f"{mesh_axis}_communication"
            seconds[key] = seconds.get(key, 0.0) + waited
        seconds["compute"] = each.compute
        seconds["pp_communication"] += each.transfer
        seconds["bubble"] = each.bubble + longest - (each.end - each.begin)
        seconds["optimizer"] = each.optimizer
        seconds["overhead"] = overhead
        blocks = tuple(
            (plan.stages[stage].blocks[0], plan.stages[stage].blocks[-1] + 1)
            for stage in each.stages
        )
        reports.append(StageReport(rank, blocks, seconds, dict(each.memory)))
    fullest = max(reports, key=lambda report: report.peak_memory_bytes)
    reason = _memory_reason(plan, cost, fullest)
    return SimulationResult(
        strategy=plan.strategy,
        feasible=reason is None,
        reason=reason,
        metrics=_metrics(plan, cost, iteration, reports, fullest.peak_memory_bytes),
        stages=tuple(reports),
        band=cost.band,
        padding=plan.padding,
    )


def _metrics(
    plan: Plan,
    cost: CostModel,
    iteration: float,
    reports: Sequence[StageReport],
    peak_memory_bytes: float,
) -> dict[str, float]:
    workload = plan.workload
    samples = workload.batch_size / iteration
    devices = plan.strategy.devices
    flops = model_flops(plan) / iteration / devices
    types = workload.types
    peak = cost.cluster.device.peak(types.product or types.compute.short_name)
    count = len(reports)
    communication = sum(
        seconds
        for report in reports
        for kind, seconds in report.seconds.items()
        if kind.endswith("_communication")
    )
    bubble = sum(report.seconds["bubble"] for report in reports)
    return {
        "iteration_seconds": iteration,
        "throughput_samples_per_second": samples,
        "tokens_per_second_per_device": samples * workload.tokens_per_sample / devices,
        "model_tflops_per_device": flops / 1e12,
        "mfu": flops / peak,
        "peak_memory_bytes": peak_memory_bytes,
        "bubble_fraction": bubble / count / iteration,
        "communication_fraction": communication / count / iteration,
        "padding_fraction": padding_fraction(plan),
    }


def padding_fraction(plan: Plan) -> float:
    """FLOPs of products on padding, as a fraction of those of the model."""
    padded = plan.sizes.padded
    if not padded:
        return 0.0
    workload = plan.workload
    return workload.forward_flops(padded) / workload.forward_flops_per_sample - 1.0


def model_flops(plan: Plan) -> float:
    """FLOPs of products in one iteration, as PaLM counts them (Chowdhery et al. 2022, appendix B):
    the backward pass is twice the forward one, attention is counted in full."""
    workload = plan.workload
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
