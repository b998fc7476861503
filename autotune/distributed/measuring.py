"""What real processes take for steps of a plan at its own sizes, beside what is simulated.

NumPy computes, in float64, on one thread per process: what is measured is this program on this
machine, and not what a GPU would take.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.distributed.backend import load_torch
from autotune.distributed.device import DeviceProcess, MeasuredAction, groups_of
from autotune.distributed.local import Member, run_together
from autotune.distributed.messenger import MessageSpan, Messenger
from distir.execute.values import StepValues, optimizer_step, random_values
from distir.plan import Plan

MICROSECONDS = 1e6
_RSS_BYTES = 1 if sys.platform == "darwin" else 1024
"""Unit of `ru_maxrss`."""


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """What one process measured. Spans are those of the last step, and `start` is its begin, by the
    clock of the process's machine; `peak_bytes` is all memory that the process ever had."""

    seconds: Sequence[float]
    start: float
    actions: Sequence[MeasuredAction]
    messages: Sequence[MessageSpan]
    peak_bytes: float
    host: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """Steps that were measured, without those that warmed up. A step takes what its slowest process
    takes."""

    processes: Sequence[ProcessTimes]

    @property
    def seconds(self) -> list[float]:
        """Seconds of every step."""
        every = zip(*(each.seconds for each in self.processes), strict=True)
        return [max(own) for own in every]

    @property
    def peak_bytes(self) -> float:
        """Memory of the process that had most."""
        return max(each.peak_bytes for each in self.processes)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `spread` is slowest minus fastest step, over the median."""
        seconds = self.seconds
        median = statistics.median(seconds)
        return {
            "iteration_seconds": median,
            "peak_memory_bytes": self.peak_bytes,
            "median": median,
            "minimum": min(seconds),
            "spread": (max(seconds) - min(seconds)) / median,
            "steps": len(seconds),
        }

    def environment(self) -> dict[str, Any]:
        """Where it was measured, and by what."""
        return {
            "hosts": sorted({each.host for each in self.processes}),
            "processes": len(self.processes),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": str(load_torch().__version__),
            "messages": "gloo",
            "computes": "numpy, float64, one thread per process",
        }


def measure_locally(plan: Plan, steps: int, warmup: int, deadline_seconds: float) -> Measurement:
    """Measures steps of a plan with a process per device of this machine.

    Raises `ProcessError` if a process fails or the steps do not end in time.
    """
    load_torch()  # once, before processes are forked
    given = random_step(plan)
    processes = plan.devices_per_stage * len(plan.schedule.schedule.ranks)

    def work(member: Member) -> ProcessTimes:
        messenger = Messenger(member.process, member.processes, member.note)
        messenger.join(member.store, deadline_seconds)
        times = measure_steps(plan, given, messenger, steps, warmup)
        messenger.leave()
        return times

    return Measurement(run_together(processes, work, deadline_seconds))


def measure_steps(
    plan: Plan, given: StepValues, messenger: Messenger, steps: int, warmup: int
) -> ProcessTimes:
    """Measures steps of a plan as one of its processes, which have joined. Each step begins when
    all processes are ready for it."""
    messenger.make_groups(groups_of(plan))
    device = DeviceProcess(plan, given, messenger)
    seconds: list[float] = []
    start = 0.0
    for number in range(warmup + steps):
        if number:
            device.begin_step()
        messenger.meet()
        messenger.spans.clear()
        start = time.perf_counter()
        device.step(optimizer_step(plan.workload, number + 1) if plan.workload.training else None)
        seconds.append(time.perf_counter() - start)
    messenger.meet()
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_BYTES)
    return ProcessTimes(
        seconds[warmup:], start, device.spans, messenger.spans, peak, platform.node()
    )


def random_step(plan: Plan) -> StepValues:
    """Random values for a step of a plan: the same in every process."""
    microbatches = plan.schedule.schedule.microbatches
    return random_values(plan.workload, microbatches=microbatches).values


def trace_beside(
    simulated: Mapping[str, Any], plan: Plan, measurement: Measurement
) -> dict[str, Any]:
    """The simulated step as Chrome trace events, and the last measured one beside it: a process of
    the trace per measured process, with a thread for actions and one for messages."""
    events = list(simulated["traceEvents"])
    first = 1 + max((event["pid"] for event in events), default=-1)
    size = plan.devices_per_stage
    for number, times in enumerate(measurement.processes):
        process, (rank, device) = first + number, divmod(number, size)
        name = f"measured: rank {rank}, device {device}"
        events.append(_named("process_name", process, 0, name))
        threads: tuple[tuple[str, Sequence[tuple[str, float, float]]], ...] = (
            ("actions", [(str(each.action), each.start, each.end) for each in times.actions]),
            ("messages", [(each.what, each.start, each.end) for each in times.messages]),
        )
        for thread, (what, spans) in enumerate(threads):
            events.append(_named("thread_name", process, thread, what))
            for label, start, end in spans:
                events.append(
                    {
                        "ph": "X",
                        "name": label,
                        "pid": process,
                        "tid": thread,
                        "ts": (start - times.start) * MICROSECONDS,
                        "dur": (end - start) * MICROSECONDS,
                    }
                )
    return {**simulated, "traceEvents": events}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


__all__ = [
    "Measurement",
    "ProcessTimes",
    "measure_locally",
    "measure_steps",
    "random_step",
    "trace_beside",
]
