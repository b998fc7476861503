"""Pipeline schedules as data: generators, text form, validation.

A generator is a pure function `(stages, microbatches) -> Schedule`; `SCHEDULES` names those for
training. Inference has one schedule, `forward_only`.
"""

from __future__ import annotations

from typing import Protocol

from distir.registry import Registry
from distir.schedules.action import KINDS, Action, Kind, parse_action
from distir.schedules.compiled import (
    BACKWARD,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
    CompiledSchedule,
    Held,
    compile_schedule,
)
from distir.schedules.forward_only import forward_only
from distir.schedules.gpipe import gpipe
from distir.schedules.one_f_one_b import one_f_one_b
from distir.schedules.schedule import (
    Schedule,
    dependencies,
    format_grid,
    format_schedule,
    max_in_flight,
    parse_schedule,
)
from distir.schedules.validate import validate

__all__ = [
    "BACKWARD",
    "COST_KINDS",
    "FORWARD",
    "INPUT_PART",
    "KINDS",
    "SCHEDULES",
    "WEIGHT_PART",
    "Action",
    "CompiledSchedule",
    "Held",
    "Kind",
    "Schedule",
    "ScheduleGenerator",
    "compile_schedule",
    "dependencies",
    "format_grid",
    "format_schedule",
    "forward_only",
    "gpipe",
    "max_in_flight",
    "one_f_one_b",
    "parse_action",
    "parse_schedule",
    "validate",
]


class ScheduleGenerator(Protocol):
    """A pure function that makes the schedule for a number of stages and microbatches."""

    def __call__(self, stages: int, microbatches: int) -> Schedule: ...


SCHEDULES: Registry[ScheduleGenerator] = Registry("schedule")
SCHEDULES.add("gpipe", gpipe, "all forward passes, then all backward passes; keeps all activations")
SCHEDULES.add("1f1b", one_f_one_b, "forward and backward alternate; as fast as gpipe, keeps fewer")
