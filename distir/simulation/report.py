"""From what stages take and hold to metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from distir.cost import Band, CostModel
from distir.cost.amounts import larger
from distir.errors import StrategyError
from distir.metrics import Iteration, beyond_reason, measured, reason_beyond
from distir.plan import Plan
from distir.shares import SECONDS, communication, is_communication, share_heading
from distir.simulation.ranks.one import RankSeconds
from distir.simulation.result import SimulationResult, StageReport
from distir.units import format_bytes
from distir.workload import Workload


def make_result(plan: Plan, cost: CostModel, stages: Sequence[RankSeconds]) -> SimulationResult:
    """Metrics and reports of a simulated plan.

    Steps of training follow each other on every rank, whether or not the other ranks are done: the
    iteration is as long as the rank that takes longest from its own begin to its own end. Raises
    `StrategyError` if no machine could take so long, or hold so much.
    """
    shares = _shares(plan.workload, cost, stages)
    reports: list[StageReport] = []
    for rank, (each, seconds) in enumerate(zip(stages, shares, strict=True)):
        blocks = tuple(
            (plan.stages[stage].blocks[0], plan.stages[stage].blocks[-1] + 1)
            for stage in each.stages
        )
        again = _recomputed(plan, blocks)
        held = dict(each.memory)
        reports.append(StageReport(rank, blocks, seconds, held, again, each.host_bytes))
    fullest = max(reports, key=lambda report: report.peak_memory_bytes)
    reason = _memory_reason(plan, cost, fullest) or _host_reason(plan, cost, reports)
    iteration = _iteration(plan, cost, stages, reports)
    if beyond_reason(iteration):
        raise StrategyError(reason_beyond(iteration))
    return SimulationResult(
        strategy=plan.strategy,
        feasible=reason is None,
        reason=reason,
        metrics=measured(iteration),
        stages=tuple(reports),
        band=band_of(plan.workload, cost, plan.strategy.devices),
        padding=plan.padding,
        memory_limit_bytes=cost.cluster.device.memory_bytes,
        host_limit_bytes=cost.cluster.host_bytes_per_device,
    )


def band_of(workload: Workload, cost: CostModel, devices: int) -> Band:
    """How far measured times of a workload on so many devices may be from predicted ones."""
    return cost.band(
        mixture=bool(workload.expert_axes),
        devices=devices,
        parameters=workload.num_parameters,
        sequence=max(workload.sequence_lengths, default=0),
    )


def _recomputed(plan: Plan, runs: Sequence[tuple[int, int]]) -> dict[str, int]:
    """The number of layers in runs of blocks by what they recompute, where the plan says so."""
    own = [
        plan.recomputed[block]
        for begin, end in runs
        for block in range(begin, end)
        if plan.recomputed and block in plan.workload.program.layers
    ]
    return dict(Counter(own))


def _shares(
    workload: Workload, cost: CostModel, stages: Sequence[RankSeconds]
) -> list[dict[str, float]]:
    """Per rank its shares of the iteration."""
    overhead = cost.stack.overhead_seconds(workload.training)
    longest = larger(*(stage.end - stage.begin for stage in stages))
    found: list[dict[str, float]] = []
    for each in stages:
        seconds: dict[str, float] = dict.fromkeys(SECONDS, 0.0)
        for mesh_axis, waited in each.exposed.items():
            share = communication(mesh_axis)
            seconds[share] = seconds.get(share, 0.0) + waited
        seconds["compute"] = each.compute
        seconds[communication("pp")] += each.transfer
        seconds["bubble"] = each.bubble + longest - (each.end - each.begin)
        seconds["optimizer"] = each.optimizer
        seconds["overhead"] = overhead
        found.append(seconds)
    return found


def _iteration(
    plan: Plan, cost: CostModel, stages: Sequence[RankSeconds], reports: Sequence[StageReport]
) -> Iteration:
    """What metrics are made of."""
    waited = sum(
        seconds
        for report in reports
        for share, seconds in report.seconds.items()
        if is_communication(share)
    )
    overhead = cost.stack.overhead_seconds(plan.workload.training)
    return Iteration(
        workload=plan.workload,
        cost=cost,
        devices=plan.strategy.devices,
        seconds=larger(*(stage.end - stage.begin for stage in stages)) + overhead,
        bubble_seconds=sum(report.seconds["bubble"] for report in reports) / len(reports),
        communication_seconds=waited / len(reports),
        peak_memory_bytes=larger(*(report.peak_memory_bytes for report in reports)),
        padding_fraction=plan.workload.padding_fraction(plan.sizes.padded),
        communicators=plan.strategy.communicators,
    )


def _host_reason(plan: Plan, cost: CostModel, reports: Sequence[StageReport]) -> str | None:
    """Why what the plan offloads does not fit in the memory of a host, or None."""
    fullest = max(reports, key=lambda report: report.host_bytes)
    if cost.fits_host(fullest.host_bytes):
        return None
    sharing = cost.host.sharing(cost.cluster.num_devices)
    each = "its device has" if sharing == 1 else f"each of its {sharing} devices has"
    return (
        f"out of host memory: stage {fullest.stage} of {plan.strategy.pp} offloads "
        f"{format_bytes(fullest.host_bytes)} per device, but of the "
        f"{format_bytes(cost.host.memory_bytes)} of a host {each} "
        f"{format_bytes(cost.cluster.host_bytes_per_device)}"
    )


def _memory_reason(plan: Plan, cost: CostModel, fullest: StageReport) -> str | None:
    """Why the plan does not fit, or None."""
    capacity = cost.cluster.device.memory_bytes
    held, communicators = fullest.peak_memory_bytes, plan.strategy.communicators
    if cost.fits(held, communicators):
        return None
    needed = cost.needed_bytes(held, communicators)
    reserve = f", reserve {format_bytes(needed - held)}" if needed > held else ""
    largest = sorted(fullest.memory.items(), key=lambda item: -item[1])
    holders = ", ".join(
        f"{share_heading(share)} {format_bytes(size)}" for share, size in largest if size
    )
    anyway = " with all its layers recomputed" if set(fullest.recomputed) == {"full"} else ""
    return (
        f"out of memory: stage {fullest.stage} of {plan.strategy.pp} needs {format_bytes(needed)} "
        f"of {format_bytes(capacity)} per device{anyway} ({holders}{reserve})"
    )
