"""What real processes take for steps of a plan at its own sizes, beside what is simulated.

PyTorch computes, in the types of the plan and op by op, on one thread per process or on a GPU per
process; or NumPy does, in float64. On a GPU, steps are timed when all its work is done, and actions
and messages by events in its stream. That part has run on no GPU yet.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.distributed.backend import load_torch, load_torch_to_fork
from autotune.distributed.clock import Clock, clock_of
from autotune.distributed.computing import Where, carriers_on, check_devices, computing_on
from autotune.distributed.device import DeviceProcess, MeasuredAction, channels_of, groups_of
from autotune.distributed.local import Member, run_together
from autotune.distributed.messenger import MessageSpan, Messenger
from distir.axes.rescale import shape_at
from distir.errors import DistirError
from distir.execute.computing import NUMPY, Computing
from distir.execute.values import StepValues, optimizer_step, random_values
from distir.plan import Plan
from distir.units import short_bytes
from distir.workload import OPTIMIZERS, Workload

MICROSECONDS = 1e6
COMPUTES: Mapping[Where, str] = {
    "numpy": "numpy, float64, one thread per process",
    "cpu": "torch, the types of the plan, op by op, one thread per process",
    "cuda": "torch, the types of the plan, op by op, one GPU per process",
}


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
    device: str
    processor_seconds: Sequence[float]
    """Per step, how long the process had a processor."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Steps that were measured, without those that warmed up. A step takes what its slowest process
    takes."""

    processes: Sequence[ProcessTimes]
    where: Where = "cpu"

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
        """JSON values; `spread` is slowest minus fastest step, over the median, and
        `processor_seconds` for how long the busiest process had a processor, at least."""
        seconds = self.seconds
        median = statistics.median(seconds)
        return {
            "iteration_seconds": median,
            "peak_memory_bytes": self.peak_bytes,
            "median": median,
            "minimum": min(seconds),
            "processor_seconds": max(min(each.processor_seconds) for each in self.processes),
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
            "devices": sorted({each.device for each in self.processes}),
            "messages": "nccl" if self.where == "cuda" else "gloo",
            "computes": COMPUTES[self.where],
        }


def measure_locally(
    plan: Plan, steps: int, warmup: int, deadline_seconds: float, where: Where = "cpu"
) -> Measurement:
    """Measures steps of a plan with a process per device of this machine. `where` says what
    computes.

    Raises `ProcessError` if a process fails or the steps do not end in time.
    """
    load_torch_to_fork()
    given = random_step(plan)
    processes = plan.devices_per_stage * len(plan.schedule.schedule.ranks)
    check_devices(where, processes)

    def work(member: Member) -> ProcessTimes:
        tf32 = plan.workload.precision == "tf32"
        computing = computing_on(where, member.process, tf32=tf32)
        messenger = Messenger(member.process, member.processes, member.note, carriers_on(where))
        messenger.clock = clock_of(where)
        messenger.join(member.store, deadline_seconds)
        times = measure_steps(plan, given, messenger, steps, warmup, computing)
        messenger.leave()
        return times

    return Measurement(
        run_together(processes, work, deadline_seconds, one_core_each=where != "cuda"), where
    )


def measure_steps(
    plan: Plan,
    given: StepValues,
    messenger: Messenger,
    steps: int,
    warmup: int,
    computing: Computing = NUMPY,
) -> ProcessTimes:
    """Measures steps of a plan as one of its processes, which have joined. Each step begins when
    all processes are ready for it."""
    messenger.make_groups(groups_of(plan), channels_of(plan))
    device, clock = DeviceProcess(plan, given, messenger, computing), messenger.clock
    seconds, busy = list[float](), list[float]()
    start = 0.0
    for number in range(warmup + steps):
        if number:
            device.begin_step()
        messenger.meet()
        messenger.spans.clear()
        start, begun = clock.begin_step(), time.process_time()
        device.step(optimizer_step(plan.workload, number + 1) if plan.workload.training else None)
        seconds.append(clock.end_step() - start)
        busy.append(time.process_time() - begun)
    messenger.meet()
    return ProcessTimes(
        seconds[warmup:],
        start,
        [MeasuredAction(each.action, *_read(clock, each)) for each in device.spans],
        [MessageSpan(each.what, *_read(clock, each)) for each in messenger.spans],
        clock.peak_bytes(),
        platform.node(),
        clock.device,
        busy[warmup:],
    )


def _read(clock: Clock, span: MeasuredAction | MessageSpan) -> tuple[float, float]:
    return clock.read(span.start), clock.read(span.end)


def random_step(plan: Plan) -> StepValues:
    """Random values for a step of a plan: the same in every process. Raises `DistirError` if they
    are more than the memory of this machine."""
    _check_memory(plan.workload)
    microbatches = plan.schedule.schedule.microbatches
    return random_values(plan.workload, microbatches=microbatches).values


def _check_memory(workload: Workload) -> None:
    """Values are drawn for the whole model, in float64, and every process takes its own."""
    axes, sizes = workload.program.axes, workload.sizes(workload.batch_size)
    parameters = workload.program.function.parameters
    elements = sum(math.prod(shape_at(axes.dims[value], sizes)) for value in parameters)
    needed = 8.0 * elements * (1 + OPTIMIZERS[workload.optimizer].num_moments)
    if needed > host_bytes():
        raise DistirError(
            f"the parameters and moments of {workload.model.name} take {short_bytes(needed)} of "
            f"memory in float64, in which they are drawn, and this machine has "
            f"{short_bytes(host_bytes())}; try a model with fewer layers"
        )


def host_bytes() -> float:
    """The memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


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
    "host_bytes",
    "measure_locally",
    "measure_steps",
    "random_step",
    "trace_beside",
]
