"""A plan on real processes: its result, and its comparison with one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.distributed.backend import load_torch
from autotune.distributed.computing import Where, carriers_on, check_devices, computing_on
from autotune.distributed.device import PIPELINE, DeviceOutcome, run_step
from autotune.distributed.local import Member, run_together
from autotune.distributed.messenger import Messenger
from autotune.distributed.wire import axes_name
from distir.errors import TransformError
from distir.execute.counts import Counts, StepMeasurements
from distir.execute.executor import Execution, all_ranks, result_of
from distir.execute.rank import Rank
from distir.execute.values import OptimizerStep, StepValues
from distir.execute.verify import Verification, Verifier
from distir.plan import Plan
from distir.schedules import CompiledSchedule
from distir.strategy import Strategy

DEADLINE_SECONDS = 120.0
"""How long a step of a small model may take, unless someone says otherwise."""


@dataclass(frozen=True, slots=True)
class ProcessTraffic:
    """Bytes of messages over all processes under one name (mesh axes, or `pp`)."""

    planned: int
    sent: int


@dataclass(frozen=True, slots=True)
class RealExecution:
    """A step that ran on real processes. `seconds` are those of the slowest process from the first
    action to the last message."""

    execution: Execution
    processes: int
    seconds: float
    traffic: Mapping[str, ProcessTraffic]


def execute_on_processes(
    plan: Plan,
    given: StepValues,
    optimizer: OptimizerStep | None,
    deadline_seconds: float = DEADLINE_SECONDS,
    where: Where = "numpy",
) -> RealExecution:
    """Runs one step of a plan with a process per device of this machine, in float64. `where` says
    what computes.

    Raises `ProcessError` if a process fails or the step does not end in time.
    """
    load_torch()  # once, before processes are forked
    processes = plan.devices_per_stage * len(plan.schedule.schedule.ranks)
    check_devices(where, processes)

    def work(member: Member) -> DeviceOutcome:
        computing = computing_on(where, member.process, exact=True)
        messenger = Messenger(member.process, member.processes, member.note, carriers_on(where))
        messenger.join(member.store, deadline_seconds)
        outcome = run_step(plan, given, optimizer, messenger, computing)
        messenger.leave()
        return outcome

    outcomes: list[DeviceOutcome] = run_together(processes, work, deadline_seconds)
    return RealExecution(
        put_together(plan, given, outcomes, updated=optimizer is not None),
        processes,
        max(each.seconds for each in outcomes),
        _traffic(outcomes),
    )


def put_together(
    plan: Plan, given: StepValues, outcomes: Sequence[DeviceOutcome], *, updated: bool
) -> Execution:
    """The execution whose devices' shards processes handed back, in the order of processes.

    Raises `TransformError` if devices that should hold copies of a value disagree about it.
    """
    ranks = all_ranks(plan, given)
    size = plan.devices_per_stage
    by_rank = [outcomes[number * size : (number + 1) * size] for number in range(len(ranks))]
    for rank, own in zip(ranks, by_rank, strict=True):
        _fill(rank, own)
    measured = StepMeasurements(
        counts={(r.number, i): stage.ops.counts for r in ranks for i, stage in r.stages.items()},
        state={
            (rank.number, index): own[0].stages[index].state
            for rank, own in zip(ranks, by_rank, strict=True)
            for index in rank.stages
        },
        memory=tuple(own[0].memory for own in by_rank),
    )
    return Execution(result_of(plan, ranks, updated=updated), measured)


def _fill(rank: Rank, outcomes: Sequence[DeviceOutcome]) -> None:
    """Gives a rank the shards that its devices ended with."""
    for index, stage in rank.stages.items():
        own = [each.stages[index] for each in outcomes]
        if any(each.counts != own[0].counts for each in own):
            raise TransformError(f"devices of stage {index} did not send or compute the same")
        stage.ops.counts = own[0].counts
        for microbatch in own[0].results:
            made = (each.results[microbatch] for each in own)
            stage.results[microbatch] = [list(shards) for shards in zip(*made, strict=True)]
    every = zip(rank.parameters.values(), *(each.parameters for each in outcomes), strict=True)
    for parameter, *own in every:
        parameter.shards = [each.shard for each in own]
        parameter.owned = [each.owned for each in own]
        parameter.moments = [list(m) for m in zip(*(each.moments for each in own), strict=True)]
        gradients = [each.gradient for each in own if each.gradient is not None]
        parameter.gradient = gradients or None


def _traffic(outcomes: Sequence[DeviceOutcome]) -> dict[str, ProcessTraffic]:
    """Bytes per name, as the ops of the plan say and as messages were made."""
    planned: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for each in outcomes:
        sent.update(each.sent)
        for stage in each.stages.values():
            planned.update(_planned(stage.counts))
    names = sorted({*planned, *sent})
    return {
        name: ProcessTraffic(planned[name], sent[name])
        for name in names
        if planned[name] or sent[name]
    }


def _planned(counts: Counts) -> Counter[str]:
    planned: Counter[str] = Counter()
    for (_, mesh_axes), size in counts.collective_bytes.items():
        if not mesh_axes:  # copies to the host, which no message carries
            continue
        planned[axes_name(mesh_axes)] += round(size)
    planned[PIPELINE] += round(sum(counts.sent_bytes.values()))
    return planned


@dataclass(frozen=True, slots=True)
class RealVerification:
    """A strategy that real processes executed, compared with one device."""

    verification: Verification
    processes: int
    seconds: float
    traffic: Mapping[str, ProcessTraffic]

    @property
    def passed(self) -> bool:
        """Whether all values agree, and every message was as long as planned."""
        as_planned = all(each.planned == each.sent for each in self.traffic.values())
        return self.verification.passed and as_planned

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values, which `autotune execute --json` writes."""
        return {
            **self.verification.to_dict(),
            "passed": self.passed,
            "processes": self.processes,
            "seconds": self.seconds,
            "bytes_sent": {
                name: {"planned": each.planned, "sent": each.sent}
                for name, each in self.traffic.items()
            },
        }


@dataclass(slots=True)
class RealVerifier:
    """Verifies strategies of one workload as `Verifier` does, on real processes."""

    verifier: Verifier
    deadline_seconds: float = DEADLINE_SECONDS
    where: Where = "numpy"
    _last: list[RealExecution] = field(default_factory=list[RealExecution])

    def verify(
        self, strategy: Strategy, schedule: CompiledSchedule | None = None
    ) -> RealVerification:
        """Executes a strategy on a process per device and compares the results with one device;
        `schedule` takes the place of the strategy's.

        Raises `StrategyError` if the strategy cannot be applied, and `ProcessError` if a process
        fails.
        """
        verification = self.verifier.verify(strategy, self._execute, schedule)
        real = self._last.pop()
        return RealVerification(verification, real.processes, real.seconds, real.traffic)

    def _execute(self, plan: Plan, given: StepValues, optimizer: OptimizerStep) -> Execution:
        self._last.append(
            execute_on_processes(plan, given, optimizer, self.deadline_seconds, self.where)
        )
        return self._last[-1].execution


__all__ = [
    "ProcessTraffic",
    "RealExecution",
    "RealVerification",
    "RealVerifier",
    "execute_on_processes",
    "put_together",
]
